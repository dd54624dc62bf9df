// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"sync"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// setBoot writes boot orders, again where something else has changed the
// machine in the meantime.
func (b *bed) setBoot(ref hypervisor.Ref, orders map[string]int) error {
	for {
		err := b.Hypervisor.SetBoot(b.Context(), ref, b.get(ref).ResourceVersion, orders, "")
		if !errors.Is(err, hypervisor.ErrStale) {
			return err
		}
	}
}

func bootOrder(b *bed) {
	ref, m := b.started(Spec{RunStrategy: hypervisor.RunStrategyManual, Devices: Devices()})
	before := map[string]int{"disk": 1, "nic": 2}
	after := map[string]int{"nic": 1}
	if got := m.Instance.BootOrder; !maps.Equal(got, before) {
		b.Errorf("the instance has boot order %v, want %v", got, before)
	}
	if m.OutOfDate() {
		b.Errorf("an instance that has just started is out of date")
	}
	b.ok("set boot", b.setBoot(ref, map[string]int{"nic": 1, "disk": 0}))
	m = b.get(ref)
	if got := hypervisor.BootOrder(m.Devices); !maps.Equal(got, after) {
		b.Errorf("the template has boot order %v after the write, want %v", got, after)
	}
	if got := m.Instance.BootOrder; !maps.Equal(got, before) {
		b.Errorf("the running instance has boot order %v, want %v", got, before)
	}
	if !m.OutOfDate() {
		b.Errorf("the running instance is not out of date")
	}
	b.ok("restart", b.Hypervisor.Restart(b.Context(), ref))
	m = b.until(ref, "running anew", newInstance(m.Instance.UID))
	if got := m.Instance.BootOrder; !maps.Equal(got, after) {
		b.Errorf("the new instance has boot order %v, want %v", got, after)
	}
}

func bootOrderRefused(b *bed) {
	ref := b.NewMachine(b.T, Spec{RunStrategy: hypervisor.RunStrategyHalted, Devices: Devices()})
	version := b.get(ref).ResourceVersion
	b.invalid("duplicate order", b.setBoot(ref, map[string]int{"nic": 1}))
	b.invalid("unknown device", b.setBoot(ref, map[string]int{"floppy": 3}))
	if got, want := hypervisor.BootOrder(b.get(ref).Devices), map[string]int{"disk": 1, "nic": 2}; !maps.Equal(got, want) {
		b.Errorf("refused orders left %v, want %v", got, want)
	}
	b.ok("swap", b.setBoot(ref, map[string]int{"nic": 1, "disk": 2}))
	b.is("stale version", b.Hypervisor.SetBoot(b.Context(), ref, version, map[string]int{"nic": 2, "disk": 1}, ""), hypervisor.ErrStale)
}

func state(b *bed) {
	ref := b.machine(hypervisor.RunStrategyHalted)
	set := func(old, state []byte) error { return b.Hypervisor.SetState(b.Context(), ref, old, state) }
	one, two := []byte(`{"a":1}`), []byte(`{"a":2}`)
	if got := b.get(ref).State; got != nil {
		b.Fatalf("a new machine has the state %q", got)
	}
	b.is("set from a state that is not there", set(one, two), hypervisor.ErrStale)
	b.ok("set", set(nil, one))
	if got := b.get(ref).State; !bytes.Equal(got, one) {
		b.Errorf("state is %q after the write, want %q", got, one)
	}
	b.is("set from none", set(nil, two), hypervisor.ErrStale)
	b.ok("replace", set(one, two))
	b.is("replace again", set(one, two), hypervisor.ErrStale)
	b.ok("remove", set(two, nil))
	if got := b.get(ref).State; got != nil {
		b.Errorf("state is %q after it was removed", got)
	}
}

func stateWriters(b *bed) {
	const writers, each = 4, 5
	ref := b.machine(hypervisor.RunStrategyHalted)
	var group sync.WaitGroup
	for range writers {
		group.Go(func() {
			for range each {
				for {
					m, err := b.Hypervisor.Get(ref)
					if err != nil {
						b.Errorf("get: %v", err)
						return
					}
					next := []byte("x")
					if m.State != nil {
						next = fmt.Appendf(nil, "%sx", m.State)
					}
					err = b.Hypervisor.SetState(b.Context(), ref, m.State, next)
					if err == nil {
						break
					}
					if !errors.Is(err, hypervisor.ErrStale) {
						b.Errorf("set state: %v", err)
						return
					}
				}
			}
		})
	}
	group.Wait()
	if got := len(b.get(ref).State); got != writers*each {
		b.Errorf("%d of %d writes are left", got, writers*each)
	}
}

func subscribe(b *bed) {
	ref := b.machine(hypervisor.RunStrategyManual)
	var mu sync.Mutex
	var last *hypervisor.Machine
	heard := func() *hypervisor.Machine {
		mu.Lock()
		defer mu.Unlock()
		return last
	}
	cancel := b.Hypervisor.Subscribe(func(changed hypervisor.Ref) {
		if changed != ref {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		// Reading inside the notice is what the order of both is about.
		last, _ = b.Hypervisor.Get(ref)
	})
	b.ok("start", b.Hypervisor.Start(b.Context(), ref))
	b.until(ref, "running, and its last notice heard", func(m *hypervisor.Machine) bool {
		at := heard()
		return running(m) && at != nil && running(at)
	})
	cancel()
	before := heard()
	b.ok("stop", b.Hypervisor.Stop(b.Context(), ref, grace(0)))
	b.until(ref, "without instance", absent)
	if heard() != before {
		b.Errorf("a subscriber was called after it had cancelled")
	}
}

func inventory(b *bed) {
	ref, other := b.machine(hypervisor.RunStrategyHalted), b.machine(hypervisor.RunStrategyHalted)
	m, o := b.get(ref), b.get(other)
	if m.Ref != ref || m.UID == "" || m.UID == o.UID {
		b.Errorf("machine %v has UID %q, another one has %q", m.Ref, m.UID, o.UID)
	}
	if h := m.Hardware; h.Sockets < 1 || h.CoresPerSocket < 1 || h.ThreadsPerCore < 1 || h.MemoryBytes < 1 {
		b.Errorf("machine has no CPU or memory: %+v", h)
	}
	for _, d := range m.Devices {
		if d.Kind == hypervisor.DeviceInterface {
			mac := macOf(m, d.Name)
			if mac == "" || mac == macOf(o, d.Name) {
				b.Errorf("interface %s has the MAC address %q, that of another machine %q", d.Name, mac, macOf(o, d.Name))
			}
		}
	}
	all, err := b.Hypervisor.List()
	b.ok("list", err)
	found := 0
	for _, m := range all {
		if m.Ref == ref || m.Ref == other {
			found++
		}
	}
	if found != 2 {
		b.Errorf("the list has %d of 2 machines", found)
	}
}

func macOf(m *hypervisor.Machine, name string) string {
	for _, i := range m.Hardware.Interfaces {
		if i.Name == name {
			return i.MAC
		}
	}
	return ""
}
