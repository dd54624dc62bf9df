// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package fakebackend

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/ipmiuser"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

// MaxAccounts is how many accounts can be created.
const MaxAccounts = 15

// accounts are those that were created.
type accounts struct {
	stored    []*statev1.StoredAccount
	passwords map[string]string
	changed   func([]*registryv1.Account)
}

// OnAccounts has a function called with the accounts that can log in, each time
// that they change, as the registry would tell of them.
func (b *Backend) OnAccounts(changed func([]*registryv1.Account)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.accounts.changed = changed
}

func (a *accounts) find(name string) int {
	return slices.IndexFunc(a.stored, func(s *statev1.StoredAccount) bool { return s.GetUsername() == name })
}

func (a *accounts) publish() {
	var list []*registryv1.Account
	for _, s := range a.stored {
		if !s.GetDisabled() {
			list = append(list, &registryv1.Account{
				Username: s.GetUsername(), Password: a.passwords[s.GetUsername()], Role: s.GetRole(), Protocols: s.GetProtocols(),
				PasswordChangeRequired: s.GetPasswordChangeRequired(),
			})
		}
	}
	if a.changed != nil {
		go a.changed(list) // As late as the registry is.
	}
}

// ListAccounts implements StateService.
func (b *Backend) ListAccounts(ctx context.Context, _ *statev1.ListAccountsRequest) (*statev1.ListAccountsResponse, error) {
	leave, err := b.enter(ctx)
	defer leave()
	if err != nil {
		return nil, err
	}
	response := &statev1.ListAccountsResponse{}
	for _, s := range b.accounts.stored {
		response.Accounts = append(response.Accounts, proto.CloneOf(s))
	}
	return response, nil
}

// CreateAccount implements StateService.
func (b *Backend) CreateAccount(ctx context.Context, r *statev1.CreateAccountRequest) (*statev1.CreateAccountResponse, error) {
	leave, err := b.enter(ctx)
	defer leave()
	a := &b.accounts
	switch {
	case err != nil:
		return nil, err
	case a.find(r.GetUsername()) >= 0 || r.GetUsername() == "admin":
		return nil, grpcstatus.New(errorsv1.Reason_REASON_ALREADY_EXISTS, "taken")
	case len(a.stored) >= MaxAccounts:
		return nil, grpcstatus.New(errorsv1.Reason_REASON_LIMIT_REACHED, "full")
	}
	if a.passwords == nil {
		a.passwords = map[string]string{}
	}
	stored := &statev1.StoredAccount{
		Username: r.GetUsername(), Role: r.GetRole(), Disabled: r.GetDisabled(), PasswordChangeRequired: r.GetPasswordChangeRequired(),
		Protocols: []registryv1.Protocol{registryv1.Protocol_PROTOCOL_REDFISH},
	}
	if ipmiuser.Fits(r.GetUsername(), r.GetPassword()) {
		stored.Protocols = append(stored.Protocols, registryv1.Protocol_PROTOCOL_IPMI)
	}
	a.stored = append(a.stored, stored)
	a.passwords[r.GetUsername()] = r.GetPassword()
	a.publish()
	return &statev1.CreateAccountResponse{Account: proto.CloneOf(stored)}, nil
}

// UpdateAccount implements StateService.
func (b *Backend) UpdateAccount(ctx context.Context, r *statev1.UpdateAccountRequest) (*statev1.UpdateAccountResponse, error) {
	leave, err := b.enter(ctx)
	defer leave()
	a := &b.accounts
	if err != nil {
		return nil, err
	}
	at := a.find(r.GetUsername())
	if at < 0 {
		return nil, grpcstatus.New(errorsv1.Reason_REASON_ENTRY_NOT_FOUND, "no such account")
	}
	stored := a.stored[at]
	if r.Password != nil {
		a.passwords[r.GetUsername()], stored.PasswordChangeRequired = r.GetPassword(), false
	}
	if r.Role != nil {
		stored.Role = r.GetRole()
	}
	if r.Disabled != nil {
		stored.Disabled = r.GetDisabled()
	}
	if r.PasswordChangeRequired != nil {
		stored.PasswordChangeRequired = r.GetPasswordChangeRequired()
	}
	a.publish()
	return &statev1.UpdateAccountResponse{Account: proto.CloneOf(stored)}, nil
}

// DeleteAccount implements StateService.
func (b *Backend) DeleteAccount(ctx context.Context, r *statev1.DeleteAccountRequest) (*statev1.DeleteAccountResponse, error) {
	leave, err := b.enter(ctx)
	defer leave()
	a := &b.accounts
	if err != nil {
		return nil, err
	}
	at := a.find(r.GetUsername())
	if at < 0 {
		return nil, grpcstatus.New(errorsv1.Reason_REASON_ENTRY_NOT_FOUND, "no such account")
	}
	a.stored = slices.Delete(a.stored, at, at+1)
	a.publish()
	return &statev1.DeleteAccountResponse{}, nil
}
