// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package account knows who may log in to a BMC, with which password and role,
// and slows down those who guess.
package account

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"slices"

	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
)

// digest stands for a password. It is keyed with a secret of this process, so
// that the memory of a BMC does not hold its passwords.
type digest [sha256.Size]byte

// digestKey is the process's secret.
var digestKey = func() []byte {
	key := make([]byte, 32)
	rand.Read(key)
	return key
}()

func digestOf(password string) digest {
	mac := hmac.New(sha256.New, digestKey)
	mac.Write([]byte(password))
	return digest(mac.Sum(nil))
}

// Account is a user who has logged in.
type Account struct {
	// Username is the name.
	Username string
	// Role is what the user may do.
	Role registryv1.Role
	// IPMI tells whether the user may log in over IPMI too.
	IPMI bool
	// PasswordChangeRequired: the user may do nothing but change the password.
	PasswordChangeRequired bool

	password digest
}

// Set is the accounts of one BMC. It does not change once made.
type Set struct {
	accounts []Account
}

// NewSet returns the accounts of a registry entry that may use Redfish. An
// account without a name, a password or a known role can't log in.
func NewSet(accounts []*registryv1.Account) *Set {
	s := &Set{}
	for _, a := range accounts {
		if a.GetUsername() == "" || a.GetPassword() == "" || Privileges(a.GetRole()) == 0 ||
			!slices.Contains(a.GetProtocols(), registryv1.Protocol_PROTOCOL_REDFISH) {
			continue
		}
		s.accounts = append(s.accounts, Account{
			Username: a.GetUsername(), Role: a.GetRole(), password: digestOf(a.GetPassword()),
			IPMI:                   slices.Contains(a.GetProtocols(), registryv1.Protocol_PROTOCOL_IPMI),
			PasswordChangeRequired: a.GetPasswordChangeRequired(),
		})
	}
	return s
}

// Len returns how many accounts there are.
func (s *Set) Len() int { return len(s.accounts) }

// All returns the accounts, in the registry's order.
func (s *Set) All() []Account { return s.accounts }

// Find returns the account of a name.
func (s *Set) Find(username string) (Account, bool) {
	for _, a := range s.accounts {
		if a.Username == username {
			return a, true
		}
	}
	return Account{}, false
}

// Check returns the account of a name and password. It takes the same time for
// an unknown name as for a wrong password.
func (s *Set) Check(username, password string) (Account, bool) {
	got := digestOf(password)
	name := digestOf(username)
	found := -1
	for i := range s.accounts {
		want := digestOf(s.accounts[i].Username)
		ok := subtle.ConstantTimeCompare(name[:], want[:]) & subtle.ConstantTimeCompare(got[:], s.accounts[i].password[:])
		found = subtle.ConstantTimeSelect(ok, i, found)
	}
	if found < 0 {
		return Account{}, false
	}
	return s.accounts[found], true
}

// Holds tells whether the account is in the set unchanged: same name, password,
// role and duty to change the password.
func (s *Set) Holds(a Account) bool { return slices.Contains(s.accounts, a) }
