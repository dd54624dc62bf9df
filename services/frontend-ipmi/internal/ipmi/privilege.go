// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package ipmi

import "fmt"

// Privilege is a privilege level (IPMI v2.0 section 6.8).
type Privilege byte

// Privilege levels. PrivilegeNone is below all: it stands for a session that
// does not exist yet, and in requests for "as high as possible".
const (
	PrivilegeNone          Privilege = 0
	PrivilegeCallback      Privilege = 1
	PrivilegeUser          Privilege = 2
	PrivilegeOperator      Privilege = 3
	PrivilegeAdministrator Privilege = 4
	PrivilegeOEM           Privilege = 5
)

// String returns the level's name in capitals, as the specification has it.
func (p Privilege) String() string {
	switch p {
	case PrivilegeNone:
		return "NONE"
	case PrivilegeCallback:
		return "CALLBACK"
	case PrivilegeUser:
		return "USER"
	case PrivilegeOperator:
		return "OPERATOR"
	case PrivilegeAdministrator:
		return "ADMINISTRATOR"
	case PrivilegeOEM:
		return "OEM"
	}
	return fmt.Sprintf("Privilege(%d)", byte(p))
}
