// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package hostnet_test

import (
	"net/netip"
	"testing"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/hostnet"
)

func TestInterfaceOf(t *testing.T) {
	t.Parallel()
	loopback, ok := hostnet.InterfaceOf(netip.MustParseAddr("::ffff:127.0.0.1"))
	if !ok || loopback.Bits != 8 || len(loopback.MAC) != 0 {
		t.Errorf("loopback: %+v, %v", loopback, ok)
	}
	for _, address := range []netip.Addr{netip.MustParseAddr("192.0.2.77"), {}} {
		if i, ok := hostnet.InterfaceOf(address); ok {
			t.Errorf("%v is on %+v", address, i)
		}
	}
}
