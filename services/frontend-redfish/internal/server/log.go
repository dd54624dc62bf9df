// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"time"

	"kubevirtbmc.dev/services/frontend-redfish/internal/message"
	"kubevirtbmc.dev/services/frontend-redfish/internal/resource"
)

func (s *Server) getEventLog(ctx context.Context, c *call) (reply, error) {
	log, err := s.cfg.Backend.Events(ctx, c.endpoint.ref)
	if err != nil {
		return reply{}, err
	}
	return ok(resource.NewLogService(log.GetCapacity(), time.Now()))
}

func (s *Server) getLogEntries(ctx context.Context, c *call) (reply, error) {
	log, err := s.cfg.Backend.Events(ctx, c.endpoint.ref)
	if err != nil {
		return reply{}, err
	}
	var uris []string
	for _, entry := range resource.LogEntries(log.GetEvents()) {
		uris = append(uris, entry.ODataID)
	}
	return ok(collection(resource.LogEntriesURI, "LogEntry", uris))
}

func (s *Server) getLogEntry(ctx context.Context, c *call) (reply, error) {
	log, err := s.cfg.Backend.Events(ctx, c.endpoint.ref)
	if err != nil {
		return reply{}, err
	}
	for _, entry := range resource.LogEntries(log.GetEvents()) {
		if entry.ID == c.r.PathValue("id") {
			return ok(entry)
		}
	}
	return reply{}, missing(c)
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
