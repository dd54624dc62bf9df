// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"

	"kubevirtbmc.dev/pkg/logkey"
	"kubevirtbmc.dev/services/frontend-redfish/internal/account"
	"kubevirtbmc.dev/services/frontend-redfish/internal/message"
	"kubevirtbmc.dev/services/frontend-redfish/internal/resource"
	"kubevirtbmc.dev/services/frontend-redfish/internal/session"
)

func (s *Server) getSessionService(context.Context, *call) (reply, error) {
	return ok(resource.NewSessionService(session.Timeout))
}

func (s *Server) getSessions(_ context.Context, c *call) (reply, error) {
	var members []string
	for _, sn := range c.endpoint.sessions.List() {
		if !mayUse(c, sn) {
			continue
		}
		members = append(members, resource.MemberURI(resource.SessionsURI, sn.ID))
	}
	return ok(resource.NewCollection(resource.SessionsURI, "#SessionCollection.SessionCollection", "Session Collection", members...))
}

// createSession logs in.
func (s *Server) createSession(ctx context.Context, c *call) (reply, error) {
	body, refusal := readBody(c)
	if refusal != nil {
		return reply{}, refusal
	}
	if body == nil {
		return reply{}, message.Errorf(http.StatusBadRequest, message.MalformedJSON)
	}
	var problems []message.Message
	username := sessionProperty(body, "UserName", &problems)
	password := sessionProperty(body, "Password", &problems)
	if len(problems) > 0 {
		return reply{}, &message.Error{Status: http.StatusBadRequest, Messages: problems}
	}
	who, refusal := s.logIn(ctx, c, username, password)
	if refusal != nil {
		return reply{}, refusal
	}
	source := ""
	if c.source.IsValid() {
		source = c.source.String()
	}
	sn, token := c.endpoint.sessions.Create(who, source)
	if !c.endpoint.state.Load().accounts.Holds(who) { // Changed while it logged in.
		c.endpoint.sessions.Delete(sn.ID)
		return reply{}, message.Errorf(http.StatusUnauthorized, message.NoValidSession)
	}
	c.account, c.session = who, sn
	s.cfg.Log.InfoContext(ctx, "logged in", logkey.Request, c.id,
		logkey.Namespace, c.endpoint.ref.GetNamespace(), logkey.BMC, c.endpoint.ref.GetName(),
		logkey.Protocol, "redfish", logkey.User, who.Username, logkey.Source, source, logkey.Session, sn.ID)
	created := newSession(sn)
	if who.PasswordChangeRequired {
		created.Messages = []message.Message{passwordChangeRequired(who).Messages[0]}
	}
	resource.SetETag(created)
	return reply{status: http.StatusCreated, body: created, location: created.ODataID, token: token}, nil
}

// sessionProperty returns a property that a login needs, or adds what is wrong
// with it to the problems.
func sessionProperty(body properties, name string, problems *[]message.Message) string {
	value, wrong := body.text(name)
	switch {
	case wrong: // The value may be a password: it is not repeated.
		*problems = append(*problems, message.New(message.PropertyValueTypeError, hidden, name).About("#/"+name))
	case value == nil:
		*problems = append(*problems, message.New(message.PropertyMissing, name).About("#/"+name))
	default:
		return *value
	}
	return ""
}

// mayUse tells whether a caller may read and end a session: one's own, or with the
// privilege, others' (DMTF's privilege registry, Session).
func mayUse(c *call, sn session.Session) bool {
	return sn.Account.Username == c.account.Username || account.Privileges(c.account.Role).Has(account.ConfigureManager)
}

func newSession(sn session.Session) *resource.Session {
	return resource.NewSession(sn.ID, sn.Account.Username, account.RoleName(sn.Account.Role), sn.Source, sn.Created)
}

func (s *Server) getSession(_ context.Context, c *call) (reply, error) {
	sn, found := c.endpoint.sessions.Get(c.r.PathValue("id"))
	if !found {
		return reply{}, missing(c)
	}
	if !mayUse(c, sn) {
		return reply{}, message.Errorf(http.StatusForbidden, message.InsufficientPrivilege)
	}
	return ok(newSession(sn))
}

// deleteSession logs out: oneself, or with the privilege, others.
func (s *Server) deleteSession(_ context.Context, c *call) (reply, error) {
	sn, found := c.endpoint.sessions.Get(c.r.PathValue("id"))
	if !found {
		return reply{}, missing(c)
	}
	if !mayUse(c, sn) {
		return reply{}, message.Errorf(http.StatusForbidden, message.InsufficientPrivilege)
	}
	if refusal := checkMatch(c, newSession(sn)); refusal != nil {
		return reply{}, refusal
	}
	c.endpoint.sessions.Delete(sn.ID)
	return reply{status: http.StatusNoContent}, nil
}

func missing(c *call) *message.Error {
	return message.Errorf(http.StatusNotFound, message.ResourceMissingAtURI, shorten(c.r.URL.Path))
}
