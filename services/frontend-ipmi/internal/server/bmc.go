// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"net/netip"

	"google.golang.org/protobuf/proto"

	"kubevirtbmc.dev/pkg/ipmiuser"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/command"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/session"
)

// Bounds of what IPMI can carry (IPMI v2.0 sections 13.31 and 22.30).
const (
	maxKg    = 20
	maxUsers = 62 // Numbered from 2 on with 6 bits.
)

// bmc is what the registry says of a BMC, checked and in this package's terms.
type bmc struct {
	reference *referencev1.BMCReference
	guid      ipmi.GUID
	port      uint16
	// clientPort is the port that clients use.
	clientPort uint16
	// clientAddress is where clients reach it; not valid: where the frontend is.
	clientAddress netip.Addr
	suites        []*rmcpplus.Suite
	kg            string
	accounts      []session.Account
	// skipped are the names of accounts whose name or password IPMI can't carry.
	skipped []string
}

func parseBMC(in *registryv1.BMC) (*bmc, error) {
	guid, err := ipmi.ParseGUID(in.GetUuid())
	if err != nil {
		return nil, err
	}
	port := in.GetIpmi().GetUdp().GetPort()
	if port == 0 || port > 65535 {
		return nil, fmt.Errorf("IPMI port %d is not a port", port)
	}
	b := &bmc{
		reference: proto.CloneOf(in.GetBmc()), guid: guid, port: uint16(port),
		kg: string(in.GetIpmi().GetKg()),
	}
	switch client := in.GetIpmi().GetUdp().GetClientPort(); {
	case client > 65535:
		return nil, fmt.Errorf("IPMI port %d of clients is not a port", client)
	case client != 0:
		b.clientPort = uint16(client)
	default:
		b.clientPort = b.port
	}
	if a := in.GetIpmi().GetClientAddress(); a != "" {
		if b.clientAddress, err = netip.ParseAddr(a); err != nil {
			return nil, fmt.Errorf("address that clients use: %w", err)
		}
	}
	if len(b.kg) > maxKg {
		return nil, errors.New("the key-generating key (Kg) is longer than 20 bytes")
	}
	for _, id := range in.GetIpmi().GetCipherSuites() {
		suite := rmcpplus.SuiteByID(id)
		if suite == nil {
			return nil, fmt.Errorf("cipher suite %d is not served", id)
		}
		b.suites = append(b.suites, suite)
	}
	if len(b.suites) == 0 {
		b.suites = []*rmcpplus.Suite{rmcpplus.Suite17, rmcpplus.Suite3}
	}
	for _, a := range in.GetAccounts() {
		privilege := privilegeOf(a)
		if privilege == ipmi.PrivilegeNone {
			continue
		}
		name, password := a.GetUsername(), a.GetPassword()
		if name == "" || password == "" || !ipmiuser.Fits(name, password) {
			b.skipped = append(b.skipped, name)
			continue
		}
		b.accounts = append(b.accounts, session.Account{Name: name, Password: password, Privilege: privilege})
	}
	return b, nil
}

// privilegeOf returns the privilege level of an account's role; PrivilegeNone
// when the account is not for IPMI.
func privilegeOf(a *registryv1.Account) ipmi.Privilege {
	for _, p := range a.GetProtocols() {
		if p != registryv1.Protocol_PROTOCOL_IPMI {
			continue
		}
		switch a.GetRole() {
		case registryv1.Role_ROLE_READ_ONLY:
			return ipmi.PrivilegeUser
		case registryv1.Role_ROLE_OPERATOR:
			return ipmi.PrivilegeOperator
		case registryv1.Role_ROLE_ADMINISTRATOR:
			return ipmi.PrivilegeAdministrator
		case registryv1.Role_ROLE_UNSPECIFIED:
		}
	}
	return ipmi.PrivilegeNone
}

// account returns the account of a name, nil when nobody has it. It takes the
// same time wherever in the list the name is or is not.
func (b *bmc) account(name string) *session.Account {
	var found *session.Account
	for i := range b.accounts {
		if b.accounts[i].Name == name {
			found = &b.accounts[i]
		}
	}
	return found
}

// users are the accounts as commands tell of them.
func (b *bmc) users() []command.User {
	users := make([]command.User, min(len(b.accounts), maxUsers))
	for i := range users {
		users[i] = command.User{Name: b.accounts[i].Name, Privilege: b.accounts[i].Privilege}
	}
	return users
}

// keeps tells whether a session that began under an earlier state of the BMC
// may go on: its account is as it was, and so are Kg and the cipher suites.
func (b *bmc) keeps(s *session.Session, before *bmc) bool {
	if b.kg != before.kg {
		return false
	}
	offered := false
	for _, suite := range b.suites {
		offered = offered || suite == s.Suite
	}
	if !offered {
		return false
	}
	if s.State == session.Opened {
		return true
	}
	now := b.account(s.Username)
	if s.Account == nil || now == nil {
		return s.Account == nil && now == nil
	}
	return *now == *s.Account
}
