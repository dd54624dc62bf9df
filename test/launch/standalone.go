// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"path/filepath"
	"testing"

	"kubevirtbmc.dev/pkg/testport"
)

// Standalone is a running `kubevirtbmc standalone` with simulated machines.
type Standalone struct {
	*Process
	Username, Password, Token string
	// CAFile has the certificate to trust.
	CAFile string

	ipmi, redfish, api int
}

// StartStandalone starts standalone mode with n simulated machines, waits until
// all of them are served and returns how to reach them.
func StartStandalone(tb testing.TB, n int, args ...string) *Standalone {
	tb.Helper()
	first := testport.FreeRow(tb, n+n+1)
	s := &Standalone{
		Username: "admin", Password: "Pass-word 20 chars!!", Token: "test-token",
		CAFile: filepath.Join(tb.TempDir(), "ca.pem"),
		ipmi:   first, redfish: first + n, api: first + n + n,
	}
	s.Process = Start(tb,
		[]string{"BMC_USERNAME=" + s.Username, "BMC_PASSWORD=" + s.Password, "KUBEVIRTBMC_TOKEN=" + s.Token},
		Build(tb, "cmd/kubevirtbmc"), append([]string{
			"standalone", "--simulate", fmt.Sprint(n),
			"--ipmi-port", fmt.Sprint(s.ipmi), "--redfish-port", fmt.Sprint(s.redfish), "--api-port", fmt.Sprint(s.api),
			"--ca-out", s.CAFile, "--log-level", "debug",
		}, args...)...)
	s.WaitStdout(tb, "Ctrl-C ends it.")
	return s
}

// IPMIPort returns the UDP port of BMC number i.
func (s *Standalone) IPMIPort(i int) string { return fmt.Sprint(s.ipmi + i) }

// Redfish returns the address of BMC number i.
func (s *Standalone) Redfish(i int) string { return fmt.Sprintf("127.0.0.1:%d", s.redfish+i) }

// API returns the address of gRPC and REST.
func (s *Standalone) API() string { return fmt.Sprintf("127.0.0.1:%d", s.api) }
