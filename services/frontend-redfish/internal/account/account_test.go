// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package account

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
)

func entry(name, password string, role registryv1.Role, protocols ...registryv1.Protocol) *registryv1.Account {
	return &registryv1.Account{Username: name, Password: password, Role: role, Protocols: protocols}
}

const redfish = registryv1.Protocol_PROTOCOL_REDFISH

func TestSet_Check(t *testing.T) {
	t.Parallel()
	s := NewSet([]*registryv1.Account{
		entry("admin", "a", registryv1.Role_ROLE_ADMINISTRATOR, redfish),
		entry("reader", "b", registryv1.Role_ROLE_READ_ONLY, registryv1.Protocol_PROTOCOL_IPMI, redfish),
		entry("ipmi", "c", registryv1.Role_ROLE_OPERATOR, registryv1.Protocol_PROTOCOL_IPMI),
		entry("blank", "", registryv1.Role_ROLE_OPERATOR, redfish),
		entry("", "d", registryv1.Role_ROLE_OPERATOR, redfish),
		entry("roleless", "e", registryv1.Role_ROLE_UNSPECIFIED, redfish),
	})
	if s.Len() != 2 {
		t.Errorf("%d accounts, want 2", s.Len())
	}
	for _, tc := range []struct {
		name, password string
		ok             bool
	}{
		{"admin", "a", true},
		{"reader", "b", true},
		{"admin", "b", false},
		{"admin", "", false},
		{"Admin", "a", false},
		{"ipmi", "c", false},
		{"blank", "", false},
		{"", "d", false},
		{"", "", false},
		{"roleless", "e", false},
		{"nobody", "a", false},
	} {
		a, ok := s.Check(tc.name, tc.password)
		if ok != tc.ok || ok && a.Username != tc.name {
			t.Errorf("Check(%q, %q) = %+v, %v", tc.name, tc.password, a.Username, ok)
		}
	}
}

func TestSet_Holds(t *testing.T) {
	t.Parallel()
	a, _ := NewSet([]*registryv1.Account{entry("x", "a", registryv1.Role_ROLE_OPERATOR, redfish)}).Check("x", "a")
	for name, tc := range map[string]struct {
		now  *registryv1.Account
		want bool
	}{
		"unchanged":        {entry("x", "a", registryv1.Role_ROLE_OPERATOR, redfish), true},
		"another password": {entry("x", "b", registryv1.Role_ROLE_OPERATOR, redfish), false},
		"another role":     {entry("x", "a", registryv1.Role_ROLE_READ_ONLY, redfish), false},
		"another name":     {entry("y", "a", registryv1.Role_ROLE_OPERATOR, redfish), false},
		"not for Redfish":  {entry("x", "a", registryv1.Role_ROLE_OPERATOR), false},
	} {
		if got := NewSet([]*registryv1.Account{tc.now}).Holds(a); got != tc.want {
			t.Errorf("%s: Holds = %v", name, got)
		}
	}
}

func TestPrivileges(t *testing.T) {
	t.Parallel()
	for role, want := range map[registryv1.Role]Privilege{
		registryv1.Role_ROLE_UNSPECIFIED:   0,
		registryv1.Role_ROLE_READ_ONLY:     Login | ConfigureSelf,
		registryv1.Role_ROLE_OPERATOR:      Login | ConfigureSelf | ConfigureComponents,
		registryv1.Role_ROLE_ADMINISTRATOR: Login | ConfigureSelf | ConfigureComponents | ConfigureUsers | ConfigureManager,
		99:                                 0,
	} {
		if got := Privileges(role); got != want {
			t.Errorf("Privileges(%v) = %b, want %b", role, got, want)
		}
		if (RoleName(role) == "") != (want == 0) {
			t.Errorf("RoleName(%v) = %q", role, RoleName(role))
		}
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBackoff()
		one, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		var waits []time.Duration
		for range 12 {
			b.Failed("bmc", one, "admin")
			w := b.Wait("bmc", one, "admin")
			waits = append(waits, w)
			time.Sleep(w)
		}
		for i, seconds := range []float64{0, 0, 0, 0, 0, 1, 2, 4, 4, 4, 4, 4} {
			if waits[i].Seconds() != seconds {
				t.Errorf("wait after failure %d = %v, want %v s", i+1, waits[i], seconds)
			}
		}
		b.Failed("bmc", one, "admin")
		if b.Wait("bmc", one, "admin") == 0 {
			t.Error("no wait after many failures")
		}
		for _, w := range []time.Duration{b.Wait("bmc", other, "admin"), b.Wait("bmc", one, "operator-x"), b.Wait("bmc2", one, "admin")} {
			if w != 0 {
				t.Errorf("another source, user or BMC waits %v", w)
			}
		}
		time.Sleep(MaxPause)
		b.Succeeded("bmc", one, "admin")
		if w := b.Wait("bmc", one, "admin"); w != 0 {
			t.Errorf("wait after a success = %v", w)
		}
		b.Failed("bmc", one, "admin")
		if w := b.Wait("bmc", one, "admin"); w != firstPause {
			t.Errorf("wait after a failure after the success = %v, want %v", w, firstPause)
		}
		time.Sleep(forgetAfter + time.Second)
		b.Failed("bmc", one, "admin")
		if w := b.Wait("bmc", one, "admin"); w != 0 {
			t.Errorf("wait after a failure long after the others = %v", w)
		}
		for range FreeFailures {
			b.Failed("bmc", one, "admin")
		}
		b.Forget("bmc")
		if len(b.entries) != 0 {
			t.Errorf("%d entries after Forget", len(b.entries))
		}
	})
}

// A client with the right password does not give the one beside it that guesses
// more than about a try a second, and gets in itself.
func TestBackoff_guessingBesideAGoodClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBackoff()
		source := netip.MustParseAddr("192.0.2.1")
		var guesses, logins int
		for i := range 180 { // For 45 s.
			if i%5 == 2 && b.Wait("bmc", source, "admin") == 0 { // Not in step with the pauses.
				b.Succeeded("bmc", source, "admin")
				logins++
			}
			if b.Wait("bmc", source, "admin") == 0 {
				b.Failed("bmc", source, "admin")
				guesses++
			}
			time.Sleep(250 * time.Millisecond)
		}
		if guesses > 55 {
			t.Errorf("%d wrong passwords were tried in 45 s", guesses)
		}
		if logins == 0 {
			t.Error("the right password never got in")
		}
		for range 100 { // By itself it never waits.
			time.Sleep(MaxPause)
			if w := b.Wait("bmc", source, "admin"); w != 0 {
				t.Fatalf("the right password waits %v", w)
			}
			b.Succeeded("bmc", source, "admin")
		}
	})
}

func TestBackoff_isBounded(t *testing.T) {
	t.Parallel()
	b := NewBackoff()
	source := netip.MustParseAddr("2001:db8::1")
	for i := range 4 * userBuckets {
		b.Failed("bmc", source, fmt.Sprint("user", i))
	}
	if n := len(b.entries); n > userBuckets {
		t.Errorf("one source takes %d entries", n)
	}
	for range FreeFailures + 1 { // Neighbours in a /64 are one source.
		b.Failed("bmc", netip.MustParseAddr("2001:db8::2"), "admin")
	}
	if b.Wait("bmc", netip.MustParseAddr("2001:db8::3"), "admin") == 0 {
		t.Error("another address of the same /64 does not wait")
	}
	for i := range maxEntries + 100 {
		b.Failed("bmc", netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), "admin")
	}
	if n := len(b.entries); n > maxEntries {
		t.Errorf("%d entries, want %d at the most", n, maxEntries)
	}
	b.Failed("bmc", netip.Addr{}, "admin") // A peer without an IP address.
}
