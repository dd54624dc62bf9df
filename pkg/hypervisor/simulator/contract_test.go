// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package simulator_test

import (
	"testing"

	"kubevirtbmc.dev/pkg/hypervisor/contract"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/pkg/hypervisor/simulator/simulatortest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	contract.Run(t, func(*testing.T) contract.Bench {
		s := simulator.New(simulator.Config{Delays: simulator.FastDelays()})
		return simulatortest.Bench(s, s)
	})
}
