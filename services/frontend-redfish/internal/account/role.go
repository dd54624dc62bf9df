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

// Roles returns the roles that there are; they are fixed.
func Roles() []registryv1.Role {
	return []registryv1.Role{registryv1.Role_ROLE_ADMINISTRATOR, registryv1.Role_ROLE_OPERATOR, registryv1.Role_ROLE_READ_ONLY}
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

// RoleOf returns the role of a Redfish name; false for a name that no role has.
func RoleOf(name string) (registryv1.Role, bool) {
	for _, role := range Roles() {
		if RoleName(role) == name {
			return role, true
		}
	}
	return registryv1.Role_ROLE_UNSPECIFIED, false
}

// Names returns the privileges' names in DSP0266.
func (p Privilege) Names() []string {
	var names []string
	for i, name := range [...]string{"Login", "ConfigureSelf", "ConfigureComponents", "ConfigureUsers", "ConfigureManager"} {
		if p.Has(1 << i) {
			names = append(names, name)
		}
	}
	return names
}

// Has tells whether all of the wanted privileges are there.
func (p Privilege) Has(want Privilege) bool { return p&want == want }
