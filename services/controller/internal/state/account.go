// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"fmt"
	"log/slog"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/logkey"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/controller/internal/record"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

// MaxAccounts is how many accounts a BMC may have beside that of its Secret.
const MaxAccounts = 15

// accountsOf reads the accounts of a BMC.
func (s *Store) accountsOf(ctx context.Context, ref registry.Ref) ([]record.Account, error) {
	uid, err := s.uid(ref)
	if err != nil {
		return nil, err
	}
	o, err := s.accounts.read(ctx, ref, uid)
	if err != nil || o == nil {
		return nil, s.translate(ctx, ref, err)
	}
	list, unreadable := record.ParseAccounts(o.data)
	if unreadable > 0 {
		s.config.Log.LogAttrs(ctx, slog.LevelWarn, "accounts can't be read; they can't log in",
			slog.String(logkey.Namespace, ref.Namespace), slog.String(logkey.BMC, ref.Name), slog.Int("accounts", unreadable))
	}
	return list, nil
}

// StoredAccounts returns the accounts of a BMC, by name.
func (s *Store) StoredAccounts(ctx context.Context, ref registry.Ref) ([]*statev1.StoredAccount, error) {
	list, err := s.accountsOf(ctx, ref)
	if err != nil {
		return nil, err
	}
	stored := make([]*statev1.StoredAccount, len(list))
	for i, a := range list {
		stored[i] = a.Stored()
	}
	return stored, nil
}

// Accounts returns the accounts of a BMC that can log in, as frontends are to
// have them, by name: over IPMI those whose name and password it can carry, and
// not those whose password has to be changed, since IPMI knows no such state.
func (s *Store) Accounts(ctx context.Context, ref registry.Ref) ([]*registryv1.Account, error) {
	list, err := s.accountsOf(ctx, ref)
	if err != nil {
		return nil, err
	}
	var accounts []*registryv1.Account
	for _, a := range list {
		if a.Disabled {
			continue
		}
		protocols := a.Protocols()
		if a.PasswordChangeRequired {
			protocols = []registryv1.Protocol{registryv1.Protocol_PROTOCOL_REDFISH}
		}
		accounts = append(accounts, &registryv1.Account{
			Username: a.Username, Password: a.Password, Role: a.RegistryRole(), Protocols: protocols,
			PasswordChangeRequired: a.PasswordChangeRequired,
		})
	}
	return accounts, nil
}

// CreateAccount adds an account. ALREADY_EXISTS, LIMIT_REACHED when the BMC has
// MaxAccounts, INVALID_REQUEST for a name that nobody can log in with.
func (s *Store) CreateAccount(ctx context.Context, ref registry.Ref, a record.Account) (*statev1.StoredAccount, error) {
	username := a.Username
	if err := record.CheckUsername(username); err != nil {
		return nil, err
	}
	_, err := s.accounts.change(ctx, ref, func(data map[string][]byte) error {
		_, taken := data[record.KeyOf(username)]
		if !taken {
			var err error
			if taken, err = s.inSecret(ctx, ref, username); err != nil {
				return err
			}
		}
		if taken {
			return grpcstatus.New(errorsv1.Reason_REASON_ALREADY_EXISTS, "the BMC has an account of that name")
		}
		if len(data) >= MaxAccounts {
			return grpcstatus.New(errorsv1.Reason_REASON_LIMIT_REACHED, "the BMC has %d accounts already", MaxAccounts)
		}
		return record.PutAccount(data, a)
	})
	if err != nil {
		return nil, err
	}
	return a.Stored(), nil
}

// inSecret tells whether the account in the Secret that a BMC names has a username,
// over Redfish or IPMI. It would be the one that logs in. Both are read from the API
// server: the registry knows accounts on the controller that leads alone.
func (s *Store) inSecret(ctx context.Context, ref registry.Ref, username string) (bool, error) {
	bmc, err := s.config.Objects.Resource(BMCs).Namespace(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("read BMC: %w", err)
	}
	name, _, err := unstructured.NestedString(bmc.Object, "spec", "authSecretRef", "name")
	if err != nil {
		return false, fmt.Errorf("read BMC: %w", err)
	}
	if name == "" {
		return false, nil
	}
	secret, err := s.config.Core.Secrets(ref.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read Secret of BMC: %w", err)
	}
	for _, key := range []string{v1beta1.SecretKeyUsername, v1beta1.SecretKeyIPMIUsername} {
		if value, ok := secret.Data[key]; ok && string(value) == username {
			return true, nil
		}
	}
	return false, nil
}

// AccountChange is what is to change of an account; nil: it stays.
type AccountChange struct {
	Password *string
	Role     *registryv1.Role
	Disabled *bool
	// PasswordChangeRequired: nil beside a password takes it back.
	PasswordChangeRequired *bool
}

// UpdateAccount changes an account. ENTRY_NOT_FOUND when it is not there.
func (s *Store) UpdateAccount(ctx context.Context, ref registry.Ref, username string, change AccountChange) (*statev1.StoredAccount, error) {
	var a record.Account
	_, err := s.accounts.change(ctx, ref, func(data map[string][]byte) error {
		content, ok := data[record.KeyOf(username)]
		if !ok {
			return errNoAccount()
		}
		before, err := record.ParseAccount(record.KeyOf(username), content)
		if err != nil {
			return grpcstatus.New(errorsv1.Reason_REASON_INTERNAL, "the account can't be read; delete it and create it anew")
		}
		a = before
		if change.Password != nil {
			a.Password, a.PasswordChangeRequired = *change.Password, false
		}
		if change.Role != nil {
			a.Role = record.RoleName(*change.Role)
		}
		if change.Disabled != nil {
			a.Disabled = *change.Disabled
		}
		if change.PasswordChangeRequired != nil {
			a.PasswordChangeRequired = *change.PasswordChangeRequired
		}
		if a == before {
			return errUnchanged
		}
		return record.PutAccount(data, a)
	})
	if err != nil {
		return nil, err
	}
	return a.Stored(), nil
}

// DeleteAccount removes an account, one that can't be read too. ENTRY_NOT_FOUND
// when it is not there.
func (s *Store) DeleteAccount(ctx context.Context, ref registry.Ref, username string) error {
	_, err := s.accounts.change(ctx, ref, func(data map[string][]byte) error {
		if _, ok := data[record.KeyOf(username)]; !ok {
			return errNoAccount()
		}
		delete(data, record.KeyOf(username))
		return nil
	})
	return err
}

func errNoAccount() error {
	return grpcstatus.New(errorsv1.Reason_REASON_ENTRY_NOT_FOUND, "the BMC has no such account")
}
