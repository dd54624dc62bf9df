// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package ipmi

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// GUID is a UUID as IPMI sends it. The first three fields are little endian, as
// in SMBIOS, which is what operating systems and provisioners compare with.
type GUID [16]byte

// ParseGUID reads a UUID in its text form.
func ParseGUID(s string) (GUID, error) {
	var g GUID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return g, fmt.Errorf("parse UUID %q: not of the form 8-4-4-4-12", s)
	}
	raw, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(raw) != len(g) {
		return g, fmt.Errorf("parse UUID %q: not hexadecimal", s)
	}
	order := [...]int{3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15}
	for i, from := range order {
		g[i] = raw[from]
	}
	return g, nil
}
