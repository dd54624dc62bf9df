// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipmiuser has what IPMI can carry of an account.
package ipmiuser

// Lengths in bytes (IPMI 2.0: RAKP message 1, table 13-11; Set User Name, section
// 22.28; Set User Password, section 22.30).
const (
	MaxName     = 16
	MaxPassword = 20
)

// Fits tells whether an account of this name and password can log in over IPMI.
func Fits(name, password string) bool {
	return len(name) <= MaxName && len(password) <= MaxPassword
}
