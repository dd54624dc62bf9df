// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package acceptance

import (
	"errors"
	"maps"
	"slices"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
)

// boot is about boot overrides.
var boot = map[string]func(*bed){
	"once from the network":        func(b *bed) { bootOnce(b, always.spec, bootv1.BootTarget_BOOT_TARGET_PXE, "nic") },
	"once from CD":                 func(b *bed) { bootOnce(b, manual.spec, bootv1.BootTarget_BOOT_TARGET_CD, "cd") },
	"once from disk":               func(b *bed) { bootOnce(b, rerun.spec, bootv1.BootTarget_BOOT_TARGET_HDD, "disk") },
	"once, of one that is off":     func(b *bed) { bootOnce(b, halted.spec, bootv1.BootTarget_BOOT_TARGET_PXE, "nic") },
	"once, taken back":             bootTakenBack,
	"continuous":                   bootContinuous,
	"off, set boot device, on":     offSetOn,
	"used by a restart by force":   func(b *bed) { usedByRestart(b, forceRestart) },
	"used by a graceful restart":   func(b *bed) { usedByRestart(b, gracefulRestart) },
	"not used by the guest":        notUsedByGuest,
	"user's edit in between":       bootEdited,
	"order":                        bootOrder,
	"order beneath an override":    bootOrderBeneath,
	"kernel boot":                  bootKernel,
	"machine without such a drive": bootNoDevice,
}

const (
	persistOnce     = bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE
	persistAlways   = bootv1.BootPersistence_BOOT_PERSISTENCE_CONTINUOUS
	persistDisabled = bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED
)

var oncePXE = &bootv1.BootOverride{Persistence: persistOnce, Target: bootv1.BootTarget_BOOT_TARGET_PXE}

// devices are a disk, which is booted from, a network interface behind it, and
// a CD-ROM drive with a medium that nothing is booted from.
func devices() []hypervisor.BootDevice {
	return []hypervisor.BootDevice{
		{Name: "disk", Kind: hypervisor.DeviceDisk, Order: 1, Volume: "disk"},
		{Name: "cd", Kind: hypervisor.DeviceCDROM, Volume: "cd"},
		{Name: "nic", Kind: hypervisor.DeviceInterface, Order: 2},
	}
}

// override reads a machine's boot override.
func (b *bed) override(ref hypervisor.Ref) *bootv1.BootOverride {
	b.Helper()
	response, err := b.boot.GetBoot(b.Context(), &bootv1.GetBootRequest{Bmc: bmc(ref)})
	b.ok("get boot", err)
	return response.GetStatus().GetOverride()
}

// arm sets a boot override.
func (b *bed) arm(ref hypervisor.Ref, override *bootv1.BootOverride) {
	b.Helper()
	response, err := b.boot.SetBootOverride(b.Context(), &bootv1.SetBootOverrideRequest{Bmc: bmc(ref), Override: override})
	b.ok("set boot override", err)
	got := response.GetStatus().GetOverride()
	if got.GetPersistence() != override.GetPersistence() || got.GetTarget() != override.GetTarget() {
		b.Errorf("override is %s, want %s", got, override)
	}
	// No two devices share an order.
	orders := map[int]string{}
	for _, d := range b.get(ref).Devices {
		if other, taken := orders[d.Order]; taken && d.Order > 0 {
			b.Errorf("%s and %s have boot order %d", d.Name, other, d.Order)
		}
		orders[d.Order] = d.Name
	}
}

// clear takes a machine's boot override back.
func (b *bed) clear(ref hypervisor.Ref) {
	b.Helper()
	b.arm(ref, &bootv1.BootOverride{Persistence: persistDisabled, Target: bootv1.BootTarget_BOOT_TARGET_NONE})
}

// bootedFrom expects the guest to have been started from a device.
func (b *bed) bootedFrom(ref hypervisor.Ref, want string) {
	b.Helper()
	if b.Guest.BootedFrom == nil {
		// The device that the instance tries first will have to do.
		first, order := "", 0
		for name, n := range b.get(ref).Instance.BootOrder {
			if order == 0 || n < order {
				first, order = name, n
			}
		}
		if first != want {
			b.Errorf("the instance boots from %s first, want %s", first, want)
		}
		return
	}
	for end := time.Now().Add(b.Timeout); ; b.rest() {
		got, err := b.Guest.BootedFrom(ref)
		b.ok("ask the guest", err)
		if got == want {
			return
		}
		if got != "" || time.Now().After(end) {
			b.Errorf("the guest was booted from %q, want %s", got, want)
			return
		}
	}
}

// restored waits until the template is as it was: the way back begins when the
// override is used.
func (b *bed) restored(ref hypervisor.Ref, before string) {
	b.Helper()
	for end := time.Now().Add(4 * b.Quiet); b.template(ref) != before && time.Now().Before(end); {
		b.rest()
	}
	b.same(ref, before)
}

// bootOnce: used by the next instance and by no other, and the template is what
// it was.
func bootOnce(b *bed, spec contract.Spec, target bootv1.BootTarget, device string) {
	spec.Devices = devices()
	ref, _ := b.on(spec)
	b.bootedFrom(ref, "disk")
	before := b.template(ref)
	b.do(ref, forceOff)
	b.arm(ref, &bootv1.BootOverride{Persistence: persistOnce, Target: target})
	b.do(ref, on)
	b.bootedFrom(ref, device)
	if got := b.override(ref); got.GetPersistence() != persistDisabled {
		b.Errorf("the override is used and still %s", got)
	}
	b.restored(ref, before)
	b.do(ref, powerCycle)
	b.bootedFrom(ref, "disk")
	b.same(ref, before)
}

func bootTakenBack(b *bed) {
	ref := b.machine(contract.Spec{RunStrategy: hypervisor.RunStrategyManual, Devices: devices()})
	before := b.template(ref)
	b.arm(ref, oncePXE)
	b.clear(ref)
	b.same(ref, before)
	// One override in the place of another.
	b.arm(ref, oncePXE)
	b.arm(ref, &bootv1.BootOverride{Persistence: persistOnce, Target: bootv1.BootTarget_BOOT_TARGET_CD})
	b.do(ref, on)
	b.bootedFrom(ref, "cd")
	b.do(ref, forceOff)
	b.restored(ref, before)
}

func bootContinuous(b *bed) {
	ref := b.machine(contract.Spec{RunStrategy: hypervisor.RunStrategyManual, Devices: devices()})
	before := b.template(ref)
	b.arm(ref, &bootv1.BootOverride{Persistence: persistAlways, Target: bootv1.BootTarget_BOOT_TARGET_PXE})
	b.do(ref, on)
	b.bootedFrom(ref, "nic")
	b.do(ref, powerCycle)
	b.bootedFrom(ref, "nic")
	if got := b.override(ref); got.GetPersistence() != persistAlways {
		b.Errorf("override is %s, want it to stay", got)
	}
	b.clear(ref)
	b.same(ref, before)
	b.do(ref, powerCycle)
	b.bootedFrom(ref, "disk")
}

// offSetOn is what provisioners do, within milliseconds.
func offSetOn(b *bed) {
	ref, instance := b.on(contract.Spec{RunStrategy: hypervisor.RunStrategyAlways, Devices: devices()})
	before := b.template(ref)
	b.ask(ref, forceOff)
	b.arm(ref, oncePXE)
	b.ask(ref, on)
	now := b.ended(ref)
	if !isOn(now) || now.GetInstanceId() == instance {
		b.Fatalf("off and on have left %s", now)
	}
	b.bootedFrom(ref, "nic")
	b.restored(ref, before)
}

// usedByRestart: a restart that would keep the instance makes a new one where
// an override waits.
func usedByRestart(b *bed, action powerv1.PowerAction) {
	ref, instance := b.on(contract.Spec{RunStrategy: hypervisor.RunStrategyAlways, Devices: devices()})
	before := b.template(ref)
	b.arm(ref, &bootv1.BootOverride{Persistence: persistOnce, Target: bootv1.BootTarget_BOOT_TARGET_CD})
	if now := b.do(ref, action); !isOn(now) || now.GetInstanceId() == instance {
		b.Errorf("%s has left %s", name(action), now)
	}
	b.bootedFrom(ref, "cd")
	b.restored(ref, before)
	// And back to the machine's own device.
	b.do(ref, forceRestart)
	b.bootedFrom(ref, "disk")
}

// notUsedByGuest: the guest's own reboot boots from where it did.
func notUsedByGuest(b *bed) {
	if b.Guest.Reboot == nil {
		b.Skip("this bench can't reboot a guest from within")
	}
	ref, instance := b.on(contract.Spec{RunStrategy: hypervisor.RunStrategyAlways, Devices: devices()})
	b.arm(ref, oncePXE)
	b.ok("reboot", b.Guest.Reboot(ref))
	b.stays(ref, "on", live(instance))
	b.bootedFrom(ref, "disk")
	if got := b.override(ref); got.GetPersistence() != persistOnce {
		b.Errorf("override is %s, want it to wait", got)
	}
	b.do(ref, powerCycle)
	b.bootedFrom(ref, "nic")
}

// bootEdited: what the user changes while an override is armed stays.
func bootEdited(b *bed) {
	ref := b.machine(contract.Spec{RunStrategy: hypervisor.RunStrategyManual, Devices: devices()})
	b.arm(ref, oncePXE)
	for {
		err := b.Hypervisor.SetBoot(b.Context(), ref, b.get(ref).ResourceVersion, map[string]int{"cd": 9}, "")
		if err == nil {
			break
		}
		if !errors.Is(err, hypervisor.ErrStale) {
			b.Fatalf("edit: %v", err)
		}
	}
	b.do(ref, on)
	b.bootedFrom(ref, "nic")
	want := map[string]int{"disk": 1, "nic": 2, "cd": 9}
	for end := time.Now().Add(4 * b.Quiet); time.Now().Before(end); b.rest() {
		if maps.Equal(hypervisor.BootOrder(b.get(ref).Devices), want) {
			return
		}
	}
	b.Errorf("boot order is %v, want %v", hypervisor.BootOrder(b.get(ref).Devices), want)
}

// setOrder sets the machine's own boot order and expects it in the template.
func (b *bed) setOrder(ref hypervisor.Ref, names ...string) {
	b.Helper()
	response, err := b.boot.SetBootOrder(b.Context(), &bootv1.SetBootOrderRequest{Bmc: bmc(ref), Devices: names})
	b.ok("set boot order", err)
	var got []string
	for _, d := range response.GetStatus().GetDevices() {
		if d.GetOrder() > 0 {
			got = append(got, d.GetName())
		}
	}
	if !slices.Equal(got, names) {
		b.Errorf("boot order is %v, want %v", got, names)
	}
}

// bootOrder: the machine's own order counts from the next instance on, and for good.
func bootOrder(b *bed) {
	ref, _ := b.on(contract.Spec{RunStrategy: hypervisor.RunStrategyManual, Devices: devices()})
	b.setOrder(ref, "nic", "disk")
	b.bootedFrom(ref, "disk")
	for range 2 {
		b.do(ref, powerCycle)
		b.bootedFrom(ref, "nic")
	}
	_, err := b.boot.SetBootOrder(b.Context(), &bootv1.SetBootOrderRequest{Bmc: bmc(ref), Devices: []string{"nic", "floppy"}})
	b.reason("order", err, errorsv1.Reason_REASON_NO_BOOT_DEVICE)
	b.setOrder(ref, "disk", "nic", "cd")
}

// bootOrderBeneath: an override counts before an order that is set while it waits,
// and leaves that order behind.
func bootOrderBeneath(b *bed) {
	ref := b.machine(contract.Spec{RunStrategy: hypervisor.RunStrategyManual, Devices: devices()})
	b.arm(ref, oncePXE)
	b.setOrder(ref, "cd", "disk")
	if got := b.override(ref); got.GetPersistence() != persistOnce {
		b.Errorf("the override is %s", got)
	}
	b.do(ref, on)
	b.bootedFrom(ref, "nic")
	want := map[string]int{"cd": 1, "disk": 2}
	for end := time.Now().Add(4 * b.Quiet); time.Now().Before(end); b.rest() {
		if maps.Equal(hypervisor.BootOrder(b.get(ref).Devices), want) {
			return
		}
	}
	b.Errorf("boot order is %v, want %v", hypervisor.BootOrder(b.get(ref).Devices), want)
}

func bootKernel(b *bed) {
	ref := b.machine(contract.Spec{RunStrategy: hypervisor.RunStrategyHalted, KernelBoot: true})
	before := b.template(ref)
	_, err := b.boot.SetBootOverride(b.Context(), &bootv1.SetBootOverrideRequest{Bmc: bmc(ref), Override: oncePXE})
	b.reason("override", err, errorsv1.Reason_REASON_KERNEL_BOOT)
	_, err = b.boot.SetBootOrder(b.Context(), &bootv1.SetBootOrderRequest{Bmc: bmc(ref)})
	b.reason("order", err, errorsv1.Reason_REASON_KERNEL_BOOT)
	b.same(ref, before)
}

func bootNoDevice(b *bed) {
	ref := b.machine(contract.Spec{RunStrategy: hypervisor.RunStrategyHalted})
	before := b.template(ref)
	_, err := b.boot.SetBootOverride(b.Context(), &bootv1.SetBootOverrideRequest{Bmc: bmc(ref), Override: &bootv1.BootOverride{
		Persistence: persistOnce, Target: bootv1.BootTarget_BOOT_TARGET_CD,
	}})
	b.reason("override", err, errorsv1.Reason_REASON_NO_BOOT_DEVICE)
	b.same(ref, before)
}
