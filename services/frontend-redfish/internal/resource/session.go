// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"time"
)

// SessionService tells of sessions.
type SessionService struct {
	Header
	ServiceEnabled bool    `json:"ServiceEnabled"`
	SessionTimeout int     `json:"SessionTimeout"`
	Status         *Status `json:"Status"`
	Sessions       Link    `json:"Sessions"`
}

// Stable returns the resource itself.
func (r *SessionService) Stable() any { return r }

// NewSessionService returns the session service.
func NewSessionService(timeout time.Duration) *SessionService {
	return &SessionService{
		Header:         Header{ODataID: SessionServiceURI, ODataType: "#SessionService.v1_2_0.SessionService", ID: "SessionService", Name: "Session Service"},
		ServiceEnabled: true, SessionTimeout: int(timeout / time.Second), Status: enabled,
		Sessions: Link{SessionsURI},
	}
}

// Session is a client that is logged in.
type Session struct {
	Header
	Messages              any      `json:"@Message.ExtendedInfo,omitempty"`
	UserName              string   `json:"UserName"`
	Roles                 []string `json:"Roles,omitempty"`
	SessionType           string   `json:"SessionType"`
	ClientOriginIPAddress string   `json:"ClientOriginIPAddress,omitempty"`
	CreatedTime           string   `json:"CreatedTime"`
}

// Stable returns the session without the messages of an answer.
func (r *Session) Stable() any {
	c := *r
	c.Messages = nil
	return &c
}

// NewSession returns a session.
func NewSession(id, user, role, source string, created time.Time) *Session {
	s := &Session{
		Header:   Header{ODataID: MemberURI(SessionsURI, id), ODataType: "#Session.v1_8_0.Session", ID: id, Name: "User Session"},
		UserName: user, SessionType: "Redfish", ClientOriginIPAddress: source,
		CreatedTime: created.UTC().Format(time.RFC3339),
	}
	if role != "" {
		s.Roles = []string{role}
	}
	return s
}
