// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package account

import registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"

// Privilege is what an operation needs; a bit set.
type Privilege uint8

// The standard privileges of DSP0266 that roles are made of.
const (
	Login Privilege = 1 << iota
	ConfigureSelf
	ConfigureComponents
	ConfigureUsers
	ConfigureManager
)

// Privileges returns what a role may do; nothing for an unknown one.
func Privileges(role registryv1.Role) Privilege {
	switch role {
	case registryv1.Role_ROLE_READ_ONLY:
		return Login | ConfigureSelf
	case registryv1.Role_ROLE_OPERATOR:
		return Login | ConfigureSelf | ConfigureComponents
	case registryv1.Role_ROLE_ADMINISTRATOR:
		return Login | ConfigureSelf | ConfigureComponents | ConfigureUsers | ConfigureManager
	default:
		return 0
	}
}

// RoleName returns a role's Redfish name; empty for an unknown one.
func RoleName(role registryv1.Role) string {
	switch role {
	case registryv1.Role_ROLE_READ_ONLY:
		return "ReadOnly"
	case registryv1.Role_ROLE_OPERATOR:
		return "Operator"
	case registryv1.Role_ROLE_ADMINISTRATOR:
		return "Administrator"
	default:
		return ""
	}
}

// Has tells whether all of the wanted privileges are there.
func (p Privilege) Has(want Privilege) bool { return p&want == want }
