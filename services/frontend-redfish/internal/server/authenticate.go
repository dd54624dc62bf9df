// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"time"

	"kubevirtbmc.dev/pkg/logkey"
	"kubevirtbmc.dev/services/frontend-redfish/internal/account"
	"kubevirtbmc.dev/services/frontend-redfish/internal/message"
)

// authenticate finds out who asks: by session token, else by Basic
// authentication.
func (s *Server) authenticate(ctx context.Context, c *call) *message.Error {
	if token := c.r.Header.Get("X-Auth-Token"); token != "" {
		found, ok := c.endpoint.sessions.Use(token)
		if !ok || !c.endpoint.state.Load().accounts.Holds(found.Account) {
			return message.Errorf(http.StatusUnauthorized, message.NoValidSession)
		}
		c.session, c.account = found, found.Account
		return nil
	}
	username, password, ok := c.r.BasicAuth()
	if !ok {
		return message.Errorf(http.StatusUnauthorized, message.NoValidSession)
	}
	who, err := s.logIn(ctx, c, username, password)
	if err != nil {
		return err
	}
	c.account = who
	return nil
}

// logIn checks a user name and password.
func (s *Server) logIn(ctx context.Context, c *call, username, password string) (account.Account, *message.Error) {
	if wait := s.backoff.Wait(c.endpoint, c.source, username); wait > 0 {
		s.metrics.logins.WithLabelValues("held_back").Inc()
		seconds := int(math.Ceil(wait.Seconds()))
		e := message.Errorf(http.StatusServiceUnavailable, message.ServiceTemporarilyUnavailable, strconv.Itoa(seconds))
		e.RetryAfter = seconds
		e.Text = "Too many failed logins of this user from this address. Retry in " + (time.Duration(seconds) * time.Second).String() + "."
		return account.Account{}, e
	}
	who, ok := c.endpoint.state.Load().accounts.Check(username, password)
	if !ok {
		s.backoff.Failed(c.endpoint, c.source, username)
		s.metrics.logins.WithLabelValues("refused").Inc()
		s.cfg.Log.WarnContext(ctx, "login refused", logkey.Request, c.id,
			logkey.Namespace, c.endpoint.ref.GetNamespace(), logkey.BMC, c.endpoint.ref.GetName(),
			logkey.Protocol, "redfish", logkey.User, username, logkey.Source, c.source.String())
		return account.Account{}, message.Errorf(http.StatusUnauthorized, message.ResourceAtURIUnauthorized, shorten(c.r.URL.Path), "wrong user name or password")
	}
	s.backoff.Succeeded(c.endpoint, c.source, username)
	s.metrics.logins.WithLabelValues("accepted").Inc()
	return who, nil
}
