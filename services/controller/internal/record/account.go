// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/ipmiuser"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

const (
	// Lengths that StateService accepts, in characters.
	maxUsername = 64
	maxPassword = 128

	rolePrefix = "ROLE_"
)

// Account is the content of a key of the Secret. The key is the name in hex.
type Account struct {
	Username string `json:"username"`
	Password string `json:"password"`
	Role     string `json:"role"`
	Disabled bool   `json:"disabled,omitempty"`
	// PasswordChangeRequired: it can't log in before its password was changed.
	PasswordChangeRequired bool `json:"passwordChangeRequired,omitempty"`
}

// KeyOf returns the key of an account.
func KeyOf(username string) string { return hex.EncodeToString([]byte(username)) }

// RegistryRole is the account's role; ROLE_UNSPECIFIED for an unknown one.
func (a Account) RegistryRole() registryv1.Role {
	return registryv1.Role(registryv1.Role_value[rolePrefix+a.Role])
}

// Protocols are those that can carry the account's name and password.
func (a Account) Protocols() []registryv1.Protocol {
	protocols := []registryv1.Protocol{registryv1.Protocol_PROTOCOL_REDFISH}
	if ipmiuser.Fits(a.Username, a.Password) {
		protocols = append(protocols, registryv1.Protocol_PROTOCOL_IPMI)
	}
	return protocols
}

// Stored is the account as StateService tells of it.
func (a Account) Stored() *statev1.StoredAccount {
	return &statev1.StoredAccount{
		Username: a.Username, Role: a.RegistryRole(), Disabled: a.Disabled, PasswordChangeRequired: a.PasswordChangeRequired,
		Protocols: a.Protocols(),
	}
}

// RoleName is a role as an account has it.
func RoleName(role registryv1.Role) string { return strings.TrimPrefix(role.String(), rolePrefix) }

// ParseAccount reads an account. Its errors hold nothing of it.
func ParseAccount(key string, content []byte) (Account, error) {
	var a Account
	if json.Unmarshal(content, &a) != nil {
		return Account{}, errors.New("parse account: not JSON")
	}
	if KeyOf(a.Username) != key || CheckUsername(a.Username) != nil || utf8.RuneCountInString(a.Username) > maxUsername ||
		a.Password == "" || utf8.RuneCountInString(a.Password) > maxPassword || a.RegistryRole() == 0 {
		return Account{}, errors.New("parse account: a field is missing or out of range")
	}
	return a, nil
}

// ParseAccounts reads the accounts of a Secret, by name, and returns how many
// keys are none.
func ParseAccounts(data map[string][]byte) (list []Account, unreadable int) {
	for key, content := range data {
		a, err := ParseAccount(key, content)
		if err != nil {
			unreadable++
			continue
		}
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b Account) int { return strings.Compare(a.Username, b.Username) })
	return list, unreadable
}

// CheckUsername tells whether a name can be logged in with: HTTP's Basic
// authentication ends it at a colon, and nobody can type a control character.
func CheckUsername(name string) error {
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r == ':' || r == utf8.RuneError || !unicode.IsPrint(r) }) {
		return grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "a user name has printable characters alone, and no colon")
	}
	return nil
}

// PutAccount puts an account into the Secret.
func PutAccount(data map[string][]byte, a Account) error {
	content, err := json.Marshal(a) //nolint:gosec // It goes into a Secret.
	if err != nil {
		return fmt.Errorf("write account: %w", err)
	}
	data[KeyOf(a.Username)] = content
	return nil
}
