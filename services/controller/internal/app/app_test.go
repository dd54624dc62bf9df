// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/services/controller/internal/certificate"
	"kubevirtbmc.dev/services/controller/internal/reconciler"
)

func TestRun_wrongFlags(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		flags []string
		want  string
	}{
		"no cluster":            {nil, "in-cluster configuration"},
		"no registry of agents": {[]string{"--agent-image-name=virtbmc"}, "--agent-registry is needed"},
		"no kubeconfig":         {[]string{"--kubeconfig=/nonexistent"}, "load kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := flag.NewFlagSet(t.Name(), flag.ContinueOnError)
			run := New(flags)
			if err := flags.Parse(tc.flags); err != nil {
				t.Fatal(err)
			}
			p := &process.Process{Log: slog.New(slog.DiscardHandler), Registry: process.NewRegistry(), Health: process.NewHealth()}
			if err := run(t.Context(), p); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestFlags_provision(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		flags                []string
		machines, namespaces string
	}{
		"off":        {nil, "none", "none"},
		"emptied":    {[]string{"--provision-machines=a=b", "--provision-machines="}, "none", "none"},
		"machines":   {[]string{"--provision-machines=a=b,!c"}, "a=b,!c", "none"},
		"namespaces": {[]string{"--provision-namespaces=kubernetes.io/metadata.name in (x,y)"}, "none", "kubernetes.io/metadata.name in (x,y)"},
		"wrong":      {[]string{"--provision-machines=a in"}, "error", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := flag.NewFlagSet(t.Name(), flag.ContinueOnError)
			flags.SetOutput(io.Discard)
			o := newOptions(flags)
			err := flags.Parse(tc.flags)
			if (err != nil) != (tc.machines == "error") {
				t.Fatalf("parse flags: %v", err)
			}
			if err != nil {
				return
			}
			text := func(selector fmt.Stringer, is bool) string {
				if !is {
					return "none"
				}
				return selector.String()
			}
			if got := text(o.Provision.Machines, o.Provision.Machines != nil); got != tc.machines {
				t.Errorf("machines %q, want %q", got, tc.machines)
			}
			if got := text(o.Provision.Namespaces, o.Provision.Namespaces != nil); got != tc.namespaces {
				t.Errorf("namespaces %q, want %q", got, tc.namespaces)
			}
		})
	}
}

// What a flag says counts where a BMC does not say.
func TestFlags_defaults(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		flags []string
		want  reconciler.Defaults
	}{
		"none": {nil, reconciler.Defaults{Mode: "Shared", BootOverride: "Template"}},
		"others": {
			[]string{"--default-mode=Dedicated", "--boot-override-strategy=Admission", "--default-ipmi", "--default-http"},
			reconciler.Defaults{Mode: "Dedicated", BootOverride: "Admission", IPMI: true, HTTP: true},
		},
		"the same": {
			[]string{"--default-mode=Shared", "--boot-override-strategy=Template", "--default-ipmi=false", "--default-http=false"},
			reconciler.Defaults{Mode: "Shared", BootOverride: "Template"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := flag.NewFlagSet(t.Name(), flag.ContinueOnError)
			o := newOptions(flags)
			if err := flags.Parse(tc.flags); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, o.Defaults); diff != "" {
				t.Errorf("defaults mismatch (-want +got):\n%s", diff)
			}
		})
	}
	for _, wrong := range []string{"--default-mode=shared", "--default-mode=", "--boot-override-strategy=Once"} {
		flags := flag.NewFlagSet(t.Name(), flag.ContinueOnError)
		flags.SetOutput(io.Discard)
		newOptions(flags)
		if err := flags.Parse([]string{wrong}); err == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
}

func TestServiceCertificates_flag(t *testing.T) {
	t.Parallel()
	flags := flag.NewFlagSet(t.Name(), flag.ContinueOnError)
	o := newOptions(flags)
	if err := flags.Parse([]string{"--service-certificate=a-tls=a,a-headless.other.svc,10.0.0.1", "--service-certificate=b-tls=b", "--cluster-domain=lab"}); err != nil {
		t.Fatal(err)
	}
	want := []certificate.Service{
		{Secret: "a-tls", Names: []string{"a.bmc.svc", "a.bmc.svc.lab", "a.bmc", "a", "a-headless.other.svc", "10.0.0.1"}},
		{Secret: "b-tls", Names: []string{"b.bmc.svc", "b.bmc.svc.lab", "b.bmc", "b"}},
	}
	if diff := cmp.Diff(want, o.certificates.expand("bmc")); diff != "" {
		t.Errorf("names mismatch (-want +got):\n%s", diff)
	}
	for _, wrong := range []string{"", "a-tls", "a-tls=", "=a"} {
		if err := new(services).Set(wrong); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
}
