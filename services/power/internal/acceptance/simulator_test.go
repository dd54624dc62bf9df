// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package acceptance_test

import (
	"flag"
	"testing"
	"testing/synctest"

	"kubevirtbmc.dev/pkg/hypervisor/contract"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/pkg/hypervisor/simulator/simulatortest"
	"kubevirtbmc.dev/services/power/internal/acceptance"
)

var update = flag.Bool("update", false, "rewrite the table of actions that is on record, and the one in docs/power.md")

// TestSimulator runs the suite in simulated time, with the delays of a small
// cluster.
func TestSimulator(t *testing.T) {
	t.Parallel()
	acceptance.Suite{
		Update: *update,
		Setup: func(t *testing.T, test func(*testing.T, contract.Bench)) {
			synctest.Test(t, func(t *testing.T) {
				s := simulator.New(simulator.Config{})
				test(t, simulatortest.Slow(simulatortest.Bench(s, s)))
			})
		},
	}.Run(t)
}
