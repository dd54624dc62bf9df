// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"flag"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"kubevirtbmc.dev/pkg/process"
)

func TestConfig_Validate(t *testing.T) {
	t.Parallel()
	whole := []string{"--bmc=lab/vm", "--registry=a", "--power=b", "--media=c", "--ca-file=d", "--token-file=e", "--replica=f"}
	without := func(name string) []string {
		var rest []string
		for _, arg := range whole {
			if !strings.HasPrefix(arg, "--"+name+"=") {
				rest = append(rest, arg)
			}
		}
		return rest
	}
	for name, tc := range map[string]struct {
		args []string
		want string // empty: nothing is wrong
	}{
		"all that is needed":          {whole, ""},
		"no BMC":                      {without("bmc"), "--bmc is needed"},
		"no registry":                 {without("registry"), "--registry is needed"},
		"no power":                    {without("power"), "--power is needed"},
		"no media":                    {without("media"), "--media is needed"},
		"no CA":                       {without("ca-file"), "--ca-file is needed"},
		"no token":                    {without("token-file"), "--token-file is needed"},
		"a BMC without namespace":     {append(without("bmc"), "--bmc=vm"), `"vm" is not namespace/name`},
		"a BMC with an empty name":    {append(without("bmc"), "--bmc=lab/"), `"lab/" is not namespace/name`},
		"a BMC of three parts":        {append(without("bmc"), "--bmc=lab/vm/x"), `"lab/vm/x" is not namespace/name`},
		"a certificate without a key": {append(without(""), "--tls-cert-file=x"), "go together"},
		"a key without a certificate": {append(without(""), "--tls-key-file=x"), "go together"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := flag.NewFlagSet(name, flag.ContinueOnError)
			run := Configure(flags)
			if err := flags.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			err := run(t.Context(), &process.Process{Health: process.NewHealth()})
			// With all flags it goes on to the first file.
			want := tc.want
			if want == "" {
				want = "read CA certificates"
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("run: %v, want %q", err, want)
			}
		})
	}
}

// What faces the network of a BMC holds no Kubernetes code.
func TestProgram_hasNoKubernetes(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", "../..").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := strings.Fields(string(out))
	for _, needed := range []string{"ipmi/ipmifrontend", "redfish/redfishfrontend"} {
		if !slices.Contains(packages, "kubevirtbmc.dev/services/frontend-"+needed) {
			t.Errorf("frontend-%s is not linked: the test looks at the wrong program", needed)
		}
	}
	for _, path := range packages {
		for _, part := range []string{"k8s.io/", "sigs.k8s.io/", "kubevirt.io/", "kubevirtbmc.dev/api", "kubevirtbmc.dev/pkg/kubeaccess"} {
			if strings.HasPrefix(path, part) {
				t.Errorf("%s is linked", path)
			}
		}
	}
}
