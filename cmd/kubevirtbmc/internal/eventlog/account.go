// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"unicode"

	"google.golang.org/protobuf/proto"

	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/ipmiuser"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

// MaxAccounts is how many accounts a BMC may have beside its own, as in a cluster.
const MaxAccounts = 15

// Registry is who tells frontends of accounts.
type Registry interface {
	// Owns tells whether a BMC has an account of a name by its configuration; an
	// error where there is no such BMC.
	Owns(bmc *referencev1.BMCReference, username string) (bool, error)
	// SetAccounts gives a BMC accounts beside those of its configuration.
	SetAccounts(bmc *referencev1.BMCReference, accounts []*registryv1.Account)
}

func keyOf(bmc *referencev1.BMCReference) string { return bmc.GetNamespace() + "/" + bmc.GetName() }

// ListAccounts implements StateService.
func (s *Service) ListAccounts(_ context.Context, request *statev1.ListAccountsRequest) (*statev1.ListAccountsResponse, error) {
	if _, err := s.registry.Owns(request.GetBmc(), ""); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	response := &statev1.ListAccountsResponse{}
	for _, a := range s.accounts[keyOf(request.GetBmc())] {
		response.Accounts = append(response.Accounts, s.stored(a))
	}
	return response, nil
}

// CreateAccount implements StateService.
func (s *Service) CreateAccount(_ context.Context, request *statev1.CreateAccountRequest) (*statev1.CreateAccountResponse, error) {
	if strings.ContainsFunc(request.GetUsername(), func(r rune) bool { return r == ':' || !unicode.IsPrint(r) }) {
		return nil, grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "a user name has printable characters alone, and no colon")
	}
	taken, err := s.registry.Owns(request.GetBmc(), request.GetUsername())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(request.GetBmc())
	at, found := s.find(key, request.GetUsername())
	if taken || found {
		return nil, grpcstatus.New(errorsv1.Reason_REASON_ALREADY_EXISTS, "the BMC has an account of that name")
	}
	if len(s.accounts[key]) >= MaxAccounts {
		return nil, grpcstatus.New(errorsv1.Reason_REASON_LIMIT_REACHED, "the BMC has %d accounts already", MaxAccounts)
	}
	a := &registryv1.Account{
		Username: request.GetUsername(), Password: request.GetPassword(), Role: request.GetRole(),
		PasswordChangeRequired: request.GetPasswordChangeRequired(),
	}
	s.accounts[key] = slices.Insert(s.accounts[key], at, a)
	if request.GetDisabled() {
		s.disabled[a] = true
	}
	s.publish(request.GetBmc())
	return &statev1.CreateAccountResponse{Account: s.stored(a)}, nil
}

// UpdateAccount implements StateService.
func (s *Service) UpdateAccount(_ context.Context, request *statev1.UpdateAccountRequest) (*statev1.UpdateAccountResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(request.GetBmc())
	at, found := s.find(key, request.GetUsername())
	if !found {
		return nil, errNoAccount()
	}
	a := s.accounts[key][at]
	if request.Password != nil {
		a.Password, a.PasswordChangeRequired = request.GetPassword(), false
	}
	if request.Role != nil {
		a.Role = request.GetRole()
	}
	if request.PasswordChangeRequired != nil {
		a.PasswordChangeRequired = request.GetPasswordChangeRequired()
	}
	if request.Disabled != nil {
		delete(s.disabled, a)
		if request.GetDisabled() {
			s.disabled[a] = true
		}
	}
	s.publish(request.GetBmc())
	return &statev1.UpdateAccountResponse{Account: s.stored(a)}, nil
}

// DeleteAccount implements StateService.
func (s *Service) DeleteAccount(_ context.Context, request *statev1.DeleteAccountRequest) (*statev1.DeleteAccountResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(request.GetBmc())
	at, found := s.find(key, request.GetUsername())
	if !found {
		return nil, errNoAccount()
	}
	delete(s.disabled, s.accounts[key][at])
	s.accounts[key] = slices.Delete(s.accounts[key], at, at+1)
	s.publish(request.GetBmc())
	return &statev1.DeleteAccountResponse{}, nil
}

// find returns where the account of a name is, or is to be.
func (s *Service) find(key, username string) (int, bool) {
	return slices.BinarySearchFunc(s.accounts[key], username, func(a *registryv1.Account, name string) int {
		return cmp.Compare(a.GetUsername(), name)
	})
}

// publish tells the registry of the accounts that can log in.
func (s *Service) publish(bmc *referencev1.BMCReference) {
	var list []*registryv1.Account
	for _, a := range s.accounts[keyOf(bmc)] {
		if s.disabled[a] {
			continue
		}
		a = proto.CloneOf(a)
		a.Protocols = protocolsOf(a)
		if a.GetPasswordChangeRequired() { // IPMI knows no such state.
			a.Protocols = a.GetProtocols()[:1]
		}
		list = append(list, a)
	}
	s.registry.SetAccounts(bmc, list)
}

func (s *Service) stored(a *registryv1.Account) *statev1.StoredAccount {
	return &statev1.StoredAccount{
		Username: a.GetUsername(), Role: a.GetRole(), Disabled: s.disabled[a],
		PasswordChangeRequired: a.GetPasswordChangeRequired(), Protocols: protocolsOf(a),
	}
}

// protocolsOf returns the protocols that can carry an account's name and password.
func protocolsOf(a *registryv1.Account) []registryv1.Protocol {
	protocols := []registryv1.Protocol{registryv1.Protocol_PROTOCOL_REDFISH}
	if ipmiuser.Fits(a.GetUsername(), a.GetPassword()) {
		protocols = append(protocols, registryv1.Protocol_PROTOCOL_IPMI)
	}
	return protocols
}

func errNoAccount() error {
	return grpcstatus.New(errorsv1.Reason_REASON_ENTRY_NOT_FOUND, "the BMC has no such account")
}
