// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"kubevirtbmc.dev/pkg/bootorder"
	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
)

// instance is a VirtualMachineInstance with its controller and its guest. The
// machine's mutex guards it.
type instance struct {
	uid       string
	phase     hypervisor.Phase
	paused    bool
	deleting  bool
	agent     bool
	grace     time.Duration
	created   time.Time
	started   time.Time
	bootOrder map[string]int
	mode      hypervisor.FirmwareMode
	override  string
	// nodes counts the nodes that it has been on.
	nodes int
	// moving says that the guest has left its node already.
	moving bool
	// devices are the template's at the instance's start; the trays' content
	// follows hot-plugged media.
	devices []hypervisor.BootDevice
	// deleted is when the guest was first asked to go.
	deleted time.Time
	// end is the timer that ends the instance.
	end *time.Timer
	// rebootPending: a soft reboot that the guest ignored makes its next
	// power-off a reboot, until it is asked to stop.
	rebootPending bool
	// boots counts the guest's starts, so that the timers of an earlier one do
	// nothing.
	boots      int
	bootedFrom string
}

func (i *instance) snapshot() *hypervisor.Instance {
	return &hypervisor.Instance{
		UID:            i.uid,
		Phase:          i.phase,
		Paused:         i.paused,
		Deleting:       i.deleting,
		GracePeriod:    i.grace,
		AgentConnected: i.agent,
		Created:        i.created,
		Started:        i.started,
		BootOrder:      i.bootOrder,
		Mode:           i.mode,
		Override:       i.override,
		Node:           i.node(),
	}
}

// node names the node that the instance is on; empty before it is on one.
func (i *instance) node() string {
	if i.nodes == 0 {
		return ""
	}
	return "node-" + strconv.Itoa(i.nodes)
}

// afterOn runs f later if i still is the machine's instance.
func (m *machine) afterOn(i *instance, delay time.Duration, f func()) *time.Timer {
	return m.after(delay, func() {
		if m.instance == i {
			f()
		}
	})
}

// backOff tells whether instances that never ran keep the next one waiting, and
// has the controller look again afterwards. Manual and Once know no back-off.
func (m *machine) backOff() bool {
	left := time.Until(m.retryAt)
	if left > 0 {
		m.syncLater(left)
	}
	return left > 0
}

// launch makes an instance.
func (m *machine) launch() {
	d := m.simulator.delays
	m.instances++
	i := &instance{
		uid:       uuid("instance", m.ref, m.uid+strconv.Itoa(m.instances)),
		phase:     hypervisor.PhasePending,
		grace:     m.spec.GracePeriod,
		created:   time.Now(),
		bootOrder: hypervisor.BootOrder(m.devices),
		mode:      m.firmware.Mode,
		devices:   slices.Clone(m.devices),
	}
	m.admit(i)
	m.instance = i
	m.restartRequired = false
	for _, t := range m.trays {
		t.pending = false
	}
	step := func(from, to hypervisor.Phase) func() {
		return func() {
			if i.phase == from && !i.deleting {
				i.phase = to
			}
		}
	}
	m.afterOn(i, d.Schedule, step(hypervisor.PhasePending, hypervisor.PhaseScheduling))
	m.afterOn(i, 2*d.Schedule, step(hypervisor.PhaseScheduling, hypervisor.PhaseScheduled))
	m.afterOn(i, 2*d.Schedule+d.Launch, func() {
		if i.phase.Final() || i.deleting {
			return
		}
		if m.failStarts > 0 {
			m.failStarts--
			m.finish(i, hypervisor.PhaseFailed)
			return
		}
		i.phase = hypervisor.PhaseRunning
		i.started = time.Now()
		i.nodes = 1
		m.failures = 0
		m.boot(i)
	})
}

// admit is the admission webhook: the instance gets the boot override that is
// armed in the machine's state.
func (m *machine) admit(i *instance) {
	if !m.simulator.admission.Load() || m.firmware.KernelBoot {
		return
	}
	armed, err := bootoverride.FromState(m.state)
	if err != nil || armed == nil {
		return
	}
	if armed.Device != "" {
		planned := bootorder.Plan(m.devices, bootorder.Orders(m.devices), armed.Device)
		if planned == nil {
			return
		}
		maps.DeleteFunc(planned, func(_ string, order int) bool { return order == 0 })
		i.bootOrder = planned
	}
	if armed.Mode != "" {
		i.mode = armed.Mode
	}
	i.override = armed.ID
}

// delete sets the instance's deletion timestamp and begins its end.
func (m *machine) delete() {
	i := m.instance
	if i.deleting {
		return
	}
	i.deleting = true
	i.deleted = time.Now()
	if i.phase.Final() {
		m.removeLater(i)
		return
	}
	m.scheduleEnd(i)
}

// podSlack is how long virt-launcher outlives the template's grace period.
const podSlack = 15 * time.Second

// scheduleEnd ends an instance that is being deleted: when the guest obeys,
// when the grace period is over, or at once.
func (m *machine) scheduleEnd(i *instance) {
	if i.end != nil {
		i.end.Stop()
	}
	d := m.simulator.delays
	i.rebootPending = false
	asked := time.Since(i.deleted)
	// A longer period than the template's hardly counts: the pod around the guest
	// keeps the times that it was made with (seen on KubeVirt 1.7.0).
	grace := min(i.grace, m.spec.GracePeriod+podSlack)
	switch {
	case i.phase == hypervisor.PhaseUnknown:
		// The node is lost: nobody confirms the end.
	case i.phase != hypervisor.PhaseRunning:
		i.end = m.afterOn(i, d.Kill, func() { m.finish(i, hypervisor.PhaseFailed) })
	case i.grace == 0:
		i.end = m.afterOn(i, d.Kill, func() { m.finish(i, hypervisor.PhaseSucceeded) })
	case !m.ignoreACPI && !i.paused && max(d.Shutdown-asked, 0) <= max(grace-asked, 0):
		i.end = m.afterOn(i, max(d.Shutdown-asked, 0), func() { m.finish(i, hypervisor.PhaseSucceeded) })
	default:
		i.end = m.afterOn(i, max(grace-asked, 0)+d.Kill, func() { m.finish(i, hypervisor.PhaseFailed) })
	}
}

// finish gives the instance its final phase.
func (m *machine) finish(i *instance, phase hypervisor.Phase) {
	if i.phase.Final() {
		return
	}
	if i.started.IsZero() && !i.deleting {
		m.failures++
		unit := m.simulator.delays.Backoff
		m.retryAt = time.Now().Add(min(unit*time.Duration(m.failures*m.failures), 30*unit))
	}
	i.phase = phase
	i.paused = false
	i.agent = false
	i.boots++
	m.hangUp()
	if i.deleting {
		m.removeLater(i)
	}
	m.syncLater(m.simulator.delays.Control)
}

func (m *machine) removeLater(i *instance) {
	m.afterOn(i, m.simulator.delays.Linger, func() {
		m.instance = nil
		if m.deleting {
			time.AfterFunc(0, func() { m.simulator.remove(m) })
			return
		}
		m.sync()
	})
}

// setGrace is the patch of the instance that stop begins with.
func (m *machine) setGrace(grace time.Duration) {
	i := m.instance
	i.grace = grace
	if i.deleting {
		m.scheduleEnd(i)
	}
}

// boot runs the guest from its firmware on.
func (m *machine) boot(i *instance) {
	i.boots++
	i.agent = false
	i.bootedFrom = ""
	boots := i.boots
	d := m.simulator.delays
	m.print(firmwareBanner(i.mode))
	m.afterOn(i, d.Firmware, func() {
		if i.boots != boots {
			return
		}
		device, text := m.bootDevice(i)
		i.bootedFrom = device
		m.print(text)
		if device == "" {
			return
		}
		m.afterOn(i, d.Guest, func() {
			if i.boots != boots {
				return
			}
			i.agent = m.agent
			m.print(loginPrompt(m.ref))
		})
	})
}

// bootDevice is what the firmware does: the devices with an order in that
// order, then those disks and trays that have none; empty drives and blank
// disks fall through. A network interface without an order has no boot ROM.
func (m *machine) bootDevice(i *instance) (name, text string) {
	if m.firmware.KernelBoot {
		return "kernel", bootText(i.mode, hypervisor.BootDevice{Name: "kernel"}, "")
	}
	devices := slices.Clone(i.devices)
	slices.SortStableFunc(devices, func(a, b hypervisor.BootDevice) int {
		return cmp.Compare(place(i.bootOrder, a), place(i.bootOrder, b))
	})
	for _, d := range devices {
		switch d.Kind {
		case hypervisor.DeviceInterface:
			if i.bootOrder[d.Name] == 0 {
				continue
			}
			n := slices.IndexFunc(m.hardware.Interfaces, func(nic hypervisor.Interface) bool { return nic.Name == d.Name })
			return d.Name, bootText(i.mode, d, m.hardware.Interfaces[n].MAC)
		case hypervisor.DeviceDisk:
			if slices.ContainsFunc(m.spec.Disks, func(s DiskSpec) bool { return s.Name == d.Name && s.Blank }) {
				continue
			}
			return d.Name, bootText(i.mode, d, "")
		case hypervisor.DeviceCDROM:
			if d.Volume == "" {
				continue
			}
			return d.Name, bootText(i.mode, d, "")
		}
	}
	return "", noBootDevice(i.mode)
}

// place sorts devices without an order behind those with one.
func place(orders map[string]int, d hypervisor.BootDevice) int {
	if order := orders[d.Name]; order > 0 {
		return order
	}
	return math.MaxInt
}

// setBoot writes orders and mode to the template.
func (m *machine) setBoot(orders map[string]int, mode hypervisor.FirmwareMode) error {
	devices := slices.Clone(m.devices)
	for name := range maps.Keys(orders) {
		n := slices.IndexFunc(devices, func(d hypervisor.BootDevice) bool { return d.Name == name })
		if n < 0 {
			return hypervisor.Invalidf("machine has no device %q", name)
		}
		devices[n].Order = orders[name]
	}
	if err := checkDevices(devices); err != nil {
		return err
	}
	if slices.Equal(devices, m.devices) && (mode == "" || mode == m.firmware.Mode) {
		return nil
	}
	m.devices = devices
	if mode != "" {
		m.firmware.Mode = mode
	}
	// KubeVirt 1.7 sets the condition at any change of the template under an
	// instance and takes it back with the next instance only.
	if m.instance != nil {
		m.restartRequired = true
	}
	return nil
}
