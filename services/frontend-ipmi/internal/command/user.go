// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// User is an account as IPMI numbers it.
type User struct {
	Name      string
	Privilege ipmi.Privilege
}

// Users have the numbers from firstUser on, in the registry's order. Number 1 is
// the null user, which exists nowhere here.
const (
	nullUser   = 1
	firstUser  = 2
	maxUsers   = 63
	userIDMask = 0x3F
	nameSize   = 16
)

// registerUser adds the user commands of IPMI v2.0 section 22 that read. Those
// that set (43h, 45h, 47h) are not served: accounts live in the BMC's Secret.
func registerUser(m *Mux) {
	m.Handle(ipmi.NetFnApp, 0x44, Command{
		Name: "get_user_access", Privilege: ipmi.PrivilegeOperator,
		MinLength: 2, MaxLength: 2, Handle: userAccess,
	})
	m.Handle(ipmi.NetFnApp, 0x46, Command{
		Name: "get_user_name", Privilege: ipmi.PrivilegeOperator,
		MinLength: 1, MaxLength: 1, Handle: userName,
	})
}

// user returns who has a number; nil and true for the null user, false for a
// number that nobody can have.
func (t *Target) user(id byte) (*User, bool) {
	switch {
	case id == nullUser:
		return nil, true
	case id >= firstUser && int(id) < firstUser+len(t.Users):
		return &t.Users[id-firstUser], true
	}
	return nil, false
}

// userID returns the number of a name; 0 when it has none.
func (t *Target) userID(name string) byte {
	for i := range t.Users {
		if t.Users[i].Name == name {
			return byte(firstUser + i)
		}
	}
	return 0
}

// lastUser returns the highest number that somebody has.
func (t *Target) lastUser() byte {
	return byte(min(firstUser-1+len(t.Users), maxUsers))
}

// userAccess answers Get User Access (IPMI v2.0 section 22.27). All names are
// fixed: they come from Kubernetes.
func userAccess(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const (
		enabled   = 0x40
		disabled  = 0x80
		messaging = 0x10
		noAccess  = 0x0F
	)
	if !isLANChannel(r.Data[0]) {
		return ipmi.InvalidDataField, nil
	}
	u, ok := r.Target.user(r.Data[1] & userIDMask)
	if !ok {
		return ipmi.InvalidDataField, nil
	}
	last := r.Target.lastUser()
	data := []byte{last, disabled | (last - nullUser), last, noAccess}
	if u != nil {
		data[1] = enabled | (last - nullUser)
		data[3] = messaging | byte(u.Privilege) // A LAN has no link to authenticate.
	}
	return ipmi.OK, data
}

// userName answers Get User Name (IPMI v2.0 section 22.29).
func userName(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	u, ok := r.Target.user(r.Data[0] & userIDMask)
	if !ok {
		return ipmi.InvalidDataField, nil
	}
	name := make([]byte, nameSize)
	if u != nil {
		copy(name, u.Name)
	}
	return ipmi.OK, name
}
