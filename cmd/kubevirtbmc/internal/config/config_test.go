// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func noEnv(string) string { return "" }

func TestParse_defaults(t *testing.T) {
	t.Parallel()
	file, err := Parse([]byte("username: root\nbmcs:\n- vm: a\n- vm: b\n  name: b-bmc\n  namespace: lab\n  password: secret\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := &File{Username: "root", BMCs: []BMC{
		{Name: "a", Namespace: "default", VM: "a"},
		{Name: "b-bmc", Namespace: "lab", VM: "b", Password: "secret"},
	}}
	if d := cmp.Diff(want, file); d != "" {
		t.Errorf("Parse mismatch (-want +got):\n%s", d)
	}
}

func TestParse_refusesWhatCanNotWork(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ text, want string }{
		"no BMC":              {"bmcs: []", "no BMC"},
		"empty":               {"", "no BMC"},
		"not YAML":            {"{", "parse configuration"},
		"unknown field":       {"bmcs: [{vm: a, vmm: b}]", "vmm"},
		"no VM":               {"bmcs: [{name: a}]", "bmcs[0]: vm is missing"},
		"bad namespace":       {"bmcs: [{vm: a, namespace: A_b}]", `"A_b"`},
		"bad name":            {"bmcs: [{vm: 'a/b'}]", `"a/b"`},
		"same name twice":     {"bmcs: [{vm: a, name: x}, {vm: b, name: x}]", "default/x is there twice"},
		"two BMCs of one VM":  {"bmcs: [{vm: a, name: x}, {vm: a, name: y}]", "default/a already has BMC x"},
		"username too long":   {"bmcs: [{vm: a, username: aaaaaaaaaaaaaaaaa}]", "17 bytes, IPMI carries 16"},
		"password too long":   {"password: aaaaaaaaaaaaaaaaaaaaa\nbmcs: [{vm: a}]", "21 bytes, IPMI carries 20"},
		"two documents":       {"bmcs: [{vm: a}]\n---\nbmcs: [{vm: b}]", "more than one document"},
		"key twice":           {"bmcs: [{vm: a}]\nbmcs: [{vm: b}]", "parse configuration"},
		"colon in username":   {"username: 'a:b'\nbmcs: [{vm: a}]", "colon"},
		"every error is told": {"bmcs: [{name: a}, {vm: B}]", `"B"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := Parse([]byte(tc.text)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Parse error %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestParse_takesPasswordsAsTheyStand(t *testing.T) {
	t.Parallel()
	for _, password := range []string{"0123456", "007", "0x1F", "1e5", "1_000", "1.10", "yes", "true", "2026-12-02", "12345678901234567890", "a b"} {
		file, err := Parse([]byte("username: " + password[:3] + "\npassword: " + password + "\nbmcs: [{vm: a, password: " + password + "}]"))
		if err != nil {
			t.Errorf("%s: %v", password, err)
			continue
		}
		if file.Password != password || file.BMCs[0].Password != password || file.Username != password[:3] {
			t.Errorf("%s became %q, %q and user %q", password, file.Password, file.BMCs[0].Password, file.Username)
		}
	}
}

func TestNewCredentials_fileThenEnvironmentThenGenerated(t *testing.T) {
	t.Parallel()
	env := func(key string) string {
		return map[string]string{"BMC_USERNAME": "envuser", "BMC_PASSWORD": "envpass"}[key]
	}
	for name, tc := range map[string]struct {
		file File
		env  func(string) string
		want Credentials
	}{
		"file":        {File{Username: "u", Password: "p"}, env, Credentials{Username: "u", Password: "p"}},
		"environment": {File{}, env, Credentials{Username: "envuser", Password: "envpass"}},
		"generated":   {File{}, noEnv, Credentials{Username: "admin", Generated: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := tc.file.NewCredentials(tc.env)
			if err != nil {
				t.Fatal(err)
			}
			if tc.want.Generated {
				if len(got.Password) != 16 {
					t.Errorf("generated password has %d characters, want 16", len(got.Password))
				}
				got.Password = ""
			}
			if got != tc.want {
				t.Errorf("NewCredentials = %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestRegistry_portsAndAccounts(t *testing.T) {
	t.Parallel()
	file, err := Parse([]byte("bmcs: [{vm: a}, {vm: b, username: own, password: ownpass}]"))
	if err != nil {
		t.Fatal(err)
	}
	bmcs, err := file.Registry(Credentials{Username: "admin", Password: "pw"}, Ports{IPMI: 6230, Redfish: 8443})
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		name, user, password string
		ipmi, redfish        uint32
	}
	var got []row
	for _, b := range bmcs {
		a := b.GetAccounts()[0]
		got = append(got, row{b.GetBmc().GetName(), a.GetUsername(), a.GetPassword(), b.GetIpmi().GetUdp().GetPort(), b.GetRedfish().GetHttps().GetPort()})
	}
	want := []row{{"a", "admin", "pw", 6230, 8443}, {"b", "own", "ownpass", 6231, 8444}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(row{})); d != "" {
		t.Errorf("Registry mismatch (-want +got):\n%s", d)
	}
	if bmcs[0].GetUuid() == bmcs[1].GetUuid() {
		t.Error("two BMCs have the same UUID")
	}
	if _, err := file.Registry(Credentials{}, Ports{IPMI: 65535, Redfish: 8443}); err == nil {
		t.Error("port 65536 was not refused")
	}
}
