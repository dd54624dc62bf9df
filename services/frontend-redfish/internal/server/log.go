// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"time"

	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/message"
	"kubevirtbmc.dev/services/frontend-redfish/internal/resource"
)

func (s *Server) events(ctx context.Context, c *call) (*statev1.ListEventsResponse, error) {
	if c.read != nil && c.read.events != nil {
		return c.read.events, nil
	}
	log, err := s.cfg.Backend.Events(ctx, c.endpoint.ref)
	if c.read != nil {
		c.read.events = log
	}
	return log, err
}

func (s *Server) getEventLog(ctx context.Context, c *call) (reply, error) {
	log, err := s.events(ctx, c)
	if err != nil {
		return reply{}, err
	}
	return ok(resource.NewLogService(log.GetCapacity(), time.Now()))
}

func (s *Server) getLogEntries(ctx context.Context, c *call) (reply, error) {
	log, err := s.events(ctx, c)
	if err != nil {
		return reply{}, err
	}
	return ok(resource.NewExpandedCollection(resource.LogEntriesURI, "#LogEntryCollection.LogEntryCollection", "LogEntry Collection", resource.LogEntries(log.GetEvents())))
}

func (s *Server) getLogEntry(ctx context.Context, c *call) (reply, error) {
	log, err := s.events(ctx, c)
	if err != nil {
		return reply{}, err
	}
	return oneOf(c, resource.LogEntries(log.GetEvents()))
}

// clearLog empties the event log. Clients send no body or an empty object; the
// action has no parameter that this service takes.
func (s *Server) clearLog(ctx context.Context, c *call) (reply, error) {
	body, refusal := readBody(c)
	if refusal != nil {
		return reply{}, refusal
	}
	if _, given := body["LogEntriesETag"]; given {
		return reply{}, message.Errorf(http.StatusBadRequest, message.ActionParameterNotSupported, "LogEntriesETag", "LogService.ClearLog")
	}
	if err := s.cfg.Backend.ClearEvents(ctx, c.endpoint.ref); err != nil {
		return reply{}, err
	}
	return reply{status: http.StatusNoContent}, nil
}
