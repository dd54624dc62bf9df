// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package acceptance

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// park is the machines that one test has made. Tests that share a hypervisor
// see nothing of each other's.
type park struct {
	mu       sync.Mutex
	machines map[hypervisor.Ref]bool
	views    []*view
}

func (p *park) has(ref hypervisor.Ref) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.machines[ref]
}

// add shows a machine to the processes, which have missed its first notices.
func (p *park) add(ref hypervisor.Ref) {
	p.mu.Lock()
	if p.machines == nil {
		p.machines = map[hypervisor.Ref]bool{}
	}
	p.machines[ref] = true
	views := p.views
	p.mu.Unlock()
	for _, v := range views {
		v.tell(ref)
	}
}

// view is the hypervisor as one process sees it: the machines of one park. The
// process may die at one of its requests.
type view struct {
	hypervisor.Hypervisor
	park *park
	died chan struct{}

	mu          sync.Mutex
	dead        bool
	subscribers []func(hypervisor.Ref)
	// counts are the requests so far, by verb.
	counts map[string]int
	// dieAt is when to die: "before" or "after", verb and count.
	dieAt string
}

func (v *view) tell(ref hypervisor.Ref) {
	v.mu.Lock()
	subscribers := v.subscribers
	v.mu.Unlock()
	for _, changed := range subscribers {
		changed(ref)
	}
}

// Get returns a machine of the park.
func (v *view) Get(ref hypervisor.Ref) (*hypervisor.Machine, error) {
	if !v.park.has(ref) {
		return nil, hypervisor.ErrNotFound
	}
	return v.Hypervisor.Get(ref)
}

// List returns the park's machines.
func (v *view) List() ([]*hypervisor.Machine, error) {
	all, err := v.Hypervisor.List()
	if err != nil {
		return nil, err
	}
	var machines []*hypervisor.Machine
	for _, m := range all {
		if v.park.has(m.Ref) {
			machines = append(machines, m)
		}
	}
	return machines, nil
}

// Subscribe tells of the park's machines.
func (v *view) Subscribe(changed func(hypervisor.Ref)) (cancel func()) {
	v.park.mu.Lock()
	v.mu.Lock()
	if len(v.subscribers) == 0 {
		v.park.views = append(v.park.views, v)
	}
	v.subscribers = append(v.subscribers, changed)
	v.mu.Unlock()
	v.park.mu.Unlock()
	return v.Hypervisor.Subscribe(func(ref hypervisor.Ref) {
		if v.park.has(ref) {
			changed(ref)
		}
	})
}

// die makes all further requests fail.
func (v *view) die() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.dieLocked()
}

func (v *view) dieLocked() {
	if !v.dead {
		v.dead = true
		close(v.died)
	}
}

// do sends a request, unless the process is dead or dies at it. A process that
// dies afterwards does not hear the answer.
func (v *view) do(verb string, request func() error) error {
	v.mu.Lock()
	if v.counts == nil {
		v.counts = map[string]int{}
	}
	v.counts[verb]++
	at := fmt.Sprintf(" %s %d", verb, v.counts[verb])
	if v.dieAt == "before"+at {
		v.dieLocked()
	}
	dead, last := v.dead, v.dieAt == "after"+at
	v.mu.Unlock()
	if dead {
		return hypervisor.ErrUnavailable
	}
	err := request()
	if last {
		v.die()
		return hypervisor.ErrUnavailable
	}
	return err
}

// opened is how many connections to consoles were opened.
func (v *view) opened() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.counts["open console"]
}

// OpenConsole is counted as "open console".
func (v *view) OpenConsole(ctx context.Context, ref hypervisor.Ref) (io.ReadWriteCloser, error) {
	var conn io.ReadWriteCloser
	err := v.do("open console", func() (err error) {
		conn, err = v.Hypervisor.OpenConsole(ctx, ref)
		return err
	})
	return conn, err
}

// Start is counted as "start".
func (v *view) Start(ctx context.Context, ref hypervisor.Ref) error {
	return v.do("start", func() error { return v.Hypervisor.Start(ctx, ref) })
}

// Stop is counted as "stop".
func (v *view) Stop(ctx context.Context, ref hypervisor.Ref, grace *time.Duration) error {
	return v.do("stop", func() error { return v.Hypervisor.Stop(ctx, ref, grace) })
}

// Restart is counted as "restart".
func (v *view) Restart(ctx context.Context, ref hypervisor.Ref) error {
	return v.do("restart", func() error { return v.Hypervisor.Restart(ctx, ref) })
}

// Reset is counted as "reset".
func (v *view) Reset(ctx context.Context, ref hypervisor.Ref) error {
	return v.do("reset", func() error { return v.Hypervisor.Reset(ctx, ref) })
}

// SoftReboot is counted as "soft reboot".
func (v *view) SoftReboot(ctx context.Context, ref hypervisor.Ref) error {
	return v.do("soft reboot", func() error { return v.Hypervisor.SoftReboot(ctx, ref) })
}

// Pause is counted as "pause".
func (v *view) Pause(ctx context.Context, ref hypervisor.Ref) error {
	return v.do("pause", func() error { return v.Hypervisor.Pause(ctx, ref) })
}

// Unpause is counted as "unpause".
func (v *view) Unpause(ctx context.Context, ref hypervisor.Ref) error {
	return v.do("unpause", func() error { return v.Hypervisor.Unpause(ctx, ref) })
}

// SetRunStrategy is counted as "set run strategy".
func (v *view) SetRunStrategy(ctx context.Context, ref hypervisor.Ref, from, to hypervisor.RunStrategy) error {
	return v.do("set run strategy", func() error { return v.Hypervisor.SetRunStrategy(ctx, ref, from, to) })
}

// DeleteInstance is counted as "delete instance".
func (v *view) DeleteInstance(ctx context.Context, ref hypervisor.Ref, uid string) error {
	return v.do("delete instance", func() error { return v.Hypervisor.DeleteInstance(ctx, ref, uid) })
}

// SetBoot is counted as "set boot".
func (v *view) SetBoot(ctx context.Context, ref hypervisor.Ref, version string, orders map[string]int, mode hypervisor.FirmwareMode) error {
	return v.do("set boot", func() error { return v.Hypervisor.SetBoot(ctx, ref, version, orders, mode) })
}

// SetState is counted as "set state".
func (v *view) SetState(ctx context.Context, ref hypervisor.Ref, old, state []byte) error {
	return v.do("set state", func() error { return v.Hypervisor.SetState(ctx, ref, old, state) })
}
