// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package simulator_test

import (
	"flag"
	"testing"
	"testing/synctest"

	"kubevirtbmc.dev/pkg/hypervisor/contract"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/pkg/hypervisor/simulator/simulatortest"
)

var update = flag.Bool("update", false, "rewrite the contract's table of verbs that is on record")

func TestContract(t *testing.T) {
	t.Parallel()
	contract.Run(t, func(*testing.T) contract.Bench {
		s := simulator.New(simulator.Config{Delays: simulator.FastDelays()})
		bench := simulatortest.Bench(s, s)
		bench.Update = *update
		bench.Isolate = func(t *testing.T, test func(*testing.T, contract.Bench)) {
			synctest.Test(t, func(t *testing.T) {
				s := simulator.New(simulator.Config{})
				test(t, simulatortest.Slow(simulatortest.Bench(s, s)))
			})
		}
		return bench
	})
}
