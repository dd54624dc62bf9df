// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	kvv1 "kubevirt.io/api/core/v1"
)

// Annotations of a VirtualMachineInstance (they come from the template of the
// VirtualMachine) that say how its guest behaves.
const (
	// ignoreACPIAnnotation "true": the guest does not react to its power button.
	ignoreACPIAnnotation = "guest.kubevirtbmc.dev/ignore-acpi"
	// shutdownAfterAnnotation is how long the guest takes to shut down; the
	// default is shutdownDefault.
	shutdownAfterAnnotation = "guest.kubevirtbmc.dev/shutdown-after"
	// powerOffAfterAnnotation, rebootAfterAnnotation and crashAfterAnnotation
	// make the guest do that by itself, so long after each boot.
	powerOffAfterAnnotation = "guest.kubevirtbmc.dev/power-off-after"
	rebootAfterAnnotation   = "guest.kubevirtbmc.dev/reboot-after"
	crashAfterAnnotation    = "guest.kubevirtbmc.dev/crash-after"
	// agentAnnotation "true": the guest runs the guest agent.
	agentAnnotation = "guest.kubevirtbmc.dev/agent"
)

const (
	// shutdownDefault is how long a guest takes to shut down.
	shutdownDefault = time.Second
	// repeatEvery is how often a guest says what it was booted from, while
	// nobody types: whoever connects late wants to know too.
	repeatEvery = 3 * time.Second
	// quietAfterInput is how long it says nothing of its own after input.
	quietAfterInput = 10 * time.Second
)

// outcome is how a machine's life ended.
type outcome int

const (
	// alive: it has not ended.
	alive outcome = iota
	// poweredOff: the guest did it.
	poweredOff
	// crashed: the guest or the hypervisor died.
	crashed
	// destroyed: it was switched off from outside.
	destroyed
	// moved: it lives on, on another node.
	moved
)

// machine is one life of a virtual machine. The hypervisor's part follows
// libvirt, as KubeVirt drives it.
type machine struct {
	serial serial

	mu sync.Mutex
	// boots says, in order, what the firmware tries to boot from.
	boots []bootDevice
	// terminateOnReboot makes a reboot by the guest the end of the machine.
	terminateOnReboot bool
	// The guest's habits; a zero duration means never.
	ignoreACPI                        bool
	shutdownAfter                     time.Duration
	powerOffAfter, rebootAfter, crash time.Duration

	paused bool
	end    outcome
	// up is how long the guest has run since it was booted.
	up time.Duration
	// booted is the device that it runs from, nil if there was none.
	booted *bootDevice
	// shutdownAt is when, counted in up, it will have shut down; 0 is never.
	shutdownAt time.Duration
	// rebootPending makes the next power-off a reboot. A soft reboot without
	// guest agent presses the power button, and the hypervisor starts the
	// machine again when it goes off; a guest that does not react leaves this
	// behind.
	rebootPending bool
	// lastInput and lastOutput are counted in up.
	lastInput, lastOutput time.Duration
	line                  []byte
}

// bootDevice is a device in boot order.
type bootDevice struct {
	kind, name string
	// order is its boot order, 0 if none is set.
	order uint
	// empty says that there is no medium in it.
	empty bool
}

func (d bootDevice) String() string {
	if d.order == 0 {
		return d.kind + " " + d.name
	}
	return fmt.Sprintf("%s %s (boot order %d)", d.kind, d.name, d.order)
}

// bootDevices returns what the firmware tries, in order. Where no device has
// an order it tries the disks as they come. A network interface without an
// order is not bootable.
func bootDevices(spec *kvv1.VirtualMachineInstanceSpec) []bootDevice {
	volumes := map[string]bool{}
	for _, v := range spec.Volumes {
		volumes[v.Name] = true
	}
	var ordered, rest []bootDevice
	for _, d := range spec.Domain.Devices.Disks {
		b := bootDevice{kind: "disk", name: d.Name, empty: !volumes[d.Name]}
		if d.CDRom != nil {
			b.kind = "cdrom"
		}
		if d.BootOrder != nil {
			b.order = *d.BootOrder
			ordered = append(ordered, b)
		} else {
			rest = append(rest, b)
		}
	}
	for _, i := range spec.Domain.Devices.Interfaces {
		if i.BootOrder != nil {
			ordered = append(ordered, bootDevice{kind: "network", name: i.Name, order: *i.BootOrder})
		}
	}
	if len(ordered) == 0 {
		return rest
	}
	slices.SortStableFunc(ordered, func(a, b bootDevice) int { return int(a.order) - int(b.order) })
	return ordered
}

// newMachine switches a machine on.
func newMachine(vmi *kvv1.VirtualMachineInstance) *machine {
	m := prepareMachine(vmi)
	m.boot()
	return m
}

// prepareMachine makes what the VMI says of a machine, which is still off.
func prepareMachine(vmi *kvv1.VirtualMachineInstance) *machine {
	duration := func(key string) time.Duration {
		d, err := time.ParseDuration(vmi.Annotations[key])
		if err != nil {
			return 0
		}
		return d
	}
	m := &machine{
		boots:             bootDevices(&vmi.Spec),
		terminateOnReboot: terminateOnReboot(vmi),
		ignoreACPI:        vmi.Annotations[ignoreACPIAnnotation] == "true" || acpiDisabled(vmi),
		shutdownAfter:     duration(shutdownAfterAnnotation),
		powerOffAfter:     duration(powerOffAfterAnnotation),
		rebootAfter:       duration(rebootAfterAnnotation),
		crash:             duration(crashAfterAnnotation),
	}
	if m.shutdownAfter == 0 {
		m.shutdownAfter = shutdownDefault
	}
	return m
}

// acpiDisabled reports whether the machine has no power button at all.
func acpiDisabled(vmi *kvv1.VirtualMachineInstance) bool {
	f := vmi.Spec.Domain.Features
	return f != nil && f.ACPI.Enabled != nil && !*f.ACPI.Enabled
}

// boot runs the firmware and starts the guest. The caller holds the lock, or
// nobody else knows the machine yet.
func (m *machine) boot() {
	m.up, m.shutdownAt, m.lastInput, m.lastOutput, m.line = 0, 0, -quietAfterInput, 0, nil
	m.booted = nil
	m.serial.send("\r\nStand-in firmware\r\n")
	for i, d := range m.boots {
		m.serial.send("Booting from " + d.String() + " ...\r\n")
		if !d.empty {
			m.booted = &m.boots[i]
			break
		}
		m.serial.send("Boot failed: no medium\r\n")
	}
	m.announce()
}

// announce says what the machine runs from.
func (m *machine) announce() {
	if m.booted == nil {
		m.serial.send("No bootable device.\r\n")
	} else {
		m.serial.send("Guest booted from " + m.booted.String() + "\r\n")
	}
	m.lastOutput = m.up
}

// tick lets time pass for the guest. It does not pass while it is paused.
func (m *machine) tick(dt time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.end != alive || m.paused {
		return
	}
	m.up += dt
	due := func(at time.Duration) bool { return at > 0 && m.up >= at }
	guest := m.booted != nil // without one nobody acts by himself
	switch {
	case guest && due(m.crash):
		m.finish(crashed)
	case due(m.shutdownAt), guest && due(m.powerOffAfter):
		m.powerOff()
	case guest && due(m.rebootAfter):
		m.reboot()
	case m.up-m.lastOutput >= repeatEvery && m.up-m.lastInput >= quietAfterInput:
		m.announce()
	}
}

// powerOff is the guest switching the machine off.
func (m *machine) powerOff() {
	if m.rebootPending {
		m.rebootPending = false
		m.boot()
		return
	}
	m.finish(poweredOff)
}

// reboot is the guest rebooting.
func (m *machine) reboot() {
	if m.terminateOnReboot {
		m.finish(poweredOff)
		return
	}
	m.boot()
}

// finish ends the machine.
func (m *machine) finish(o outcome) {
	m.end = o
	m.serial.disconnect(nil)
}

// memory is what a machine that moves to another node takes with it. All else
// comes from its VMI.
type memory struct {
	Paused        bool          `json:"paused,omitempty"`
	Up            time.Duration `json:"up"`
	Booted        string        `json:"booted,omitempty"`
	ShutdownAt    time.Duration `json:"shutdownAt,omitempty"`
	RebootPending bool          `json:"rebootPending,omitempty"`
	LastInput     time.Duration `json:"lastInput"`
	LastOutput    time.Duration `json:"lastOutput"`
	Line          []byte        `json:"line,omitempty"`
}

// move stops the machine and hands its memory to send. If that fails it goes on
// where it was; otherwise it has gone, and its serial port is hung up.
func (m *machine) move(send func(memory) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.end != alive {
		return errors.New("the machine does not run")
	}
	s := memory{
		Paused: m.paused, Up: m.up, ShutdownAt: m.shutdownAt, RebootPending: m.rebootPending,
		LastInput: m.lastInput, LastOutput: m.lastOutput, Line: m.line,
	}
	if m.booted != nil {
		s.Booted = m.booted.String()
	}
	if err := send(s); err != nil {
		return err
	}
	m.finish(moved)
	return nil
}

// resumeMachine goes on with a machine that has moved here.
func resumeMachine(vmi *kvv1.VirtualMachineInstance, s memory) *machine {
	m := prepareMachine(vmi)
	m.paused, m.up, m.shutdownAt, m.rebootPending = s.Paused, s.Up, s.ShutdownAt, s.RebootPending
	m.lastInput, m.lastOutput, m.line = s.LastInput, s.LastOutput, s.Line
	for i, d := range m.boots {
		if d.String() == s.Booted {
			m.booted = &m.boots[i]
		}
	}
	return m
}

// powerButton presses the power button. A paused guest does not see it.
func (m *machine) powerButton() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.press()
}

func (m *machine) press() {
	if m.end != alive || m.paused || m.ignoreACPI || m.booted == nil || m.shutdownAt > 0 {
		return
	}
	m.serial.send("\r\nGuest is shutting down\r\n")
	m.shutdownAt = m.up + m.shutdownAfter
}

// softReboot asks the guest to reboot.
func (m *machine) softReboot() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.end != alive {
		return
	}
	m.rebootPending = true
	m.press()
}

// reset is the reset button: the same machine boots again.
func (m *machine) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.end == alive {
		m.boot()
	}
}

// destroy switches the machine off.
func (m *machine) destroy() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.end == alive {
		m.finish(destroyed)
	}
}

// kill is the hypervisor dying.
func (m *machine) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.end == alive {
		m.finish(crashed)
	}
}

// setPaused stops or continues the machine.
func (m *machine) setPaused(p bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paused = p
}

// state returns how the machine ended, if it did, and whether it is paused.
func (m *machine) state() (outcome, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.end, m.paused
}

// has reports whether the machine ended that way.
func (m *machine) has(o outcome) bool {
	end, _ := m.state()
	return end == o
}

// input is what is typed on the serial console. The guest sends it back, and
// carries out the commands poweroff, reboot, crash and boot.
func (m *machine) input(b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.end != alive || m.paused || m.booted == nil {
		return
	}
	m.lastInput = m.up
	for _, c := range b {
		if c != '\r' && c != '\n' {
			m.serial.send(string([]byte{c}))
			m.line = append(m.line, c)
			continue
		}
		m.serial.send("\r\n")
		command := strings.TrimSpace(string(m.line))
		m.line = nil
		switch command {
		case "poweroff":
			m.powerOff()
		case "reboot":
			m.reboot()
		case "crash":
			m.finish(crashed)
		case "boot":
			m.announce()
		}
		if m.end != alive {
			return
		}
	}
}
