// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package credential_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/credential"
)

func TestParse(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 21)
	const both, redfishOnly = true, false
	for name, tc := range map[string]struct {
		data     map[string]string
		ipmi     bool
		accounts []string
		problem  string
	}{
		"one account for both": {
			map[string]string{"username": "admin", "password": "secret"},
			both,
			[]string{"admin secret REDFISH", "admin secret IPMI"},
			"",
		},
		"IPMI with its own": {
			map[string]string{"username": "admin", "password": long, "ipmi-username": "root", "ipmi-password": "calvin"},
			both,
			[]string{"admin " + long + " REDFISH", "root calvin IPMI"},
			"",
		},
		"IPMI can't carry the password": {
			map[string]string{"username": "admin", "password": long},
			both,
			[]string{"admin " + long + " REDFISH"},
			"key password has 21 bytes, IPMI carries 20: add a key ipmi-password",
		},
		"IPMI can't carry the user name": {
			map[string]string{"username": strings.Repeat("u", 17), "password": "secret"},
			both,
			[]string{strings.Repeat("u", 17) + " secret REDFISH"},
			"key username has 17 bytes, IPMI carries 16: add a key ipmi-username",
		},
		"IPMI can't carry its own password": {
			map[string]string{"username": "admin", "password": "secret", "ipmi-password": long},
			both,
			[]string{"admin secret REDFISH"},
			"key ipmi-password has 21 bytes, IPMI carries 20",
		},
		"what IPMI carries does not matter without it": {
			map[string]string{"username": "admin", "password": long},
			redfishOnly,
			[]string{"admin " + long + " REDFISH"},
			"",
		},
		"a key that is too long": {
			map[string]string{"username": "admin", "password": "secret", "ipmi-kg": long},
			both,
			[]string{"admin secret REDFISH"},
			"key ipmi-kg has 21 bytes, IPMI carries 20",
		},
		"20 and 16 bytes are carried": {
			map[string]string{"username": long[:16], "password": long[:20], "ipmi-kg": long[:20]},
			both,
			[]string{long[:16] + " " + long[:20] + " REDFISH", long[:16] + " " + long[:20] + " IPMI"},
			"",
		},
		"no password":       {map[string]string{"username": "admin"}, both, nil, "key password is missing or empty"},
		"no user name":      {map[string]string{"password": "secret"}, both, nil, "key username is missing or empty"},
		"an empty password": {map[string]string{"username": "admin", "password": ""}, both, nil, "key password is missing or empty"},
		"an empty Secret":   {nil, redfishOnly, nil, "key username is missing or empty"},
		"the end of a line": {map[string]string{"username": "admin", "password": "secret\n"}, both, nil, "key password has a control character, as the end of a line"},
		"not UTF-8":         {map[string]string{"username": "admin", "password": "\xff"}, both, nil, "key password is not UTF-8"},
		"a colon in the name": {
			map[string]string{"username": "ad:min", "password": "secret"},
			both,
			[]string{"ad:min secret IPMI"},
			"key username has a colon, which HTTP can't carry (RFC 7617 section 2)",
		},
		"Redfish takes no more than 1024 bytes": {
			map[string]string{"username": "admin", "password": strings.Repeat("x", 1025)},
			redfishOnly,
			nil, "key password has 1025 bytes, 1024 are allowed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := map[string][]byte{}
			for key, value := range tc.data {
				data[key] = []byte(value)
			}
			c := credential.Parse(data)
			var got []string
			for _, a := range c.Accounts(true, tc.ipmi, nil) {
				if a.GetRole() != registryv1.Role_ROLE_ADMINISTRATOR || len(a.GetProtocols()) != 1 {
					t.Errorf("%s has role %v and protocols %v", a.GetUsername(), a.GetRole(), a.GetProtocols())
				}
				got = append(got, a.GetUsername()+" "+a.GetPassword()+" "+strings.TrimPrefix(a.GetProtocols()[0].String(), "PROTOCOL_"))
			}
			if diff := cmp.Diff(tc.accounts, got); diff != "" {
				t.Errorf("accounts (-want +got):\n%s", diff)
			}
			if got := c.Problem(tc.ipmi); got != tc.problem {
				t.Errorf("problem %q, want %q", got, tc.problem)
			}
		})
	}
}

func TestCredentials_accounts_of_others(t *testing.T) {
	t.Parallel()
	c := credential.Parse(map[string][]byte{"username": []byte("admin"), "password": []byte("secret")})
	others := []*registryv1.Account{{Username: "admin", Password: "other"}, {Username: "guest", Password: "guest"}}
	var got []string
	for _, a := range c.Accounts(true, false, others) {
		got = append(got, a.GetUsername()+" "+a.GetPassword())
	}
	if diff := cmp.Diff([]string{"admin secret", "guest guest"}, got); diff != "" {
		t.Errorf("accounts (-want +got):\n%s", diff)
	}
}
