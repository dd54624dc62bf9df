// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/backend"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// Boot option parameters (IPMI v2.0 table 28-14).
const (
	optionSetInProgress   = 0
	optionFlagClearing    = 3
	optionInfoAcknowledge = 4
	optionBootFlags       = 5
	optionMask            = 0x7F
	optionInvalidBit      = 0x80
	bootFlagsSize         = 5
)

// Boot flags, data 1 (IPMI v2.0 table 28-14).
const (
	flagValid      = 0x80
	flagPersistent = 0x40
	flagEFI        = 0x20
)

// Boot devices, bits 5:2 of boot flags data 2.
const (
	deviceMask        = 0x3C
	deviceNone        = 0x00
	devicePXE         = 0x04
	deviceHardDisk    = 0x08
	deviceCD          = 0x14
	deviceRemoteCD    = 0x20
	deviceRemoteMedia = 0x24 // Supermicro's number of a UEFI hard disk, sent by Ironic.
	deviceRemoteDisk  = 0x2C
	setComplete       = 0x00
	setInProgress     = 0x01
	setCommitWrite    = 0x02
)

// BootOptions are the boot options of one BMC that mean nothing to the machine:
// what a client wrote comes back. They last as long as the frontend serves the
// BMC.
type BootOptions struct {
	mu          sync.Mutex
	progress    byte
	progressBy  uint32 // Session that set progress.
	clearing    byte
	acknowledge byte
	invalid     [optionBootFlags + 1]bool
}

// SessionEnded completes what a session had in progress.
func (o *BootOptions) SessionEnded(id uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.progressBy == id {
		o.progress, o.progressBy = setComplete, 0
	}
}

type boot struct {
	boot backend.Boot
}

func registerBoot(m *Mux, b backend.Boot) {
	c := boot{boot: b}
	m.Handle(ipmi.NetFnChassis, 0x08, Command{
		Name: "set_system_boot_options", Privilege: ipmi.PrivilegeOperator, Backend: true, Mutates: true, LogData: true,
		MinLength: 1, MaxLength: 17, Handle: c.set,
	})
	m.Handle(ipmi.NetFnChassis, 0x09, Command{
		Name: "get_system_boot_options", Privilege: ipmi.PrivilegeOperator, Backend: true,
		MinLength: 3, MaxLength: 3, Handle: c.get,
	})
}

// set answers Set System Boot Options (IPMI v2.0 section 28.12).
func (c boot) set(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	option, invalid, data := r.Data[0]&optionMask, r.Data[0]&optionInvalidBit != 0, r.Data[1:]
	o := &r.Target.Options
	if option != optionBootFlags {
		code := o.set(r.Session.ID, option, invalid, data)
		if code == ipmi.OK && option == optionFlagClearing && len(data) > 0 {
			code = c.revalidate(ctx, r)
		}
		return code, nil
	}
	if len(data) == 0 {
		o.mark(optionBootFlags, invalid)
		return ipmi.OK, nil
	}
	if len(data) != bootFlagsSize {
		return ipmi.InvalidLength, nil
	}
	override, ok := overrideOf(data)
	if !ok {
		return ipmi.InvalidDataField, nil
	}
	if override.GetPersistence() == bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE {
		override.Validity = o.validity()
	}
	if code := backend.CompletionCode(c.boot.SetOverride(ctx, r.Target.Reference, override)); code != ipmi.OK {
		return code, nil
	}
	o.mark(optionBootFlags, invalid)
	return ipmi.OK, nil
}

// revalidate has an override that an IPMI client has set follow a new flag
// clearing: clients may write the parameters in either order.
func (c boot) revalidate(ctx context.Context, r *Request) ipmi.CompletionCode {
	status, err := c.boot.Status(ctx, r.Target.Reference)
	if err != nil {
		return backend.CompletionCode(err)
	}
	override, validity := status.GetOverride(), r.Target.Options.validity()
	if override.GetPersistence() != bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE || len(override.GetBootFlags()) == 0 ||
		override.GetValidity().AsDuration() == validity.AsDuration() {
		return ipmi.OK
	}
	changed, _ := overrideOf(override.GetBootFlags())
	changed.Validity = validity
	return backend.CompletionCode(c.boot.SetOverride(ctx, r.Target.Reference, changed))
}

// validity is how long a one-time override waits for a Chassis Control command: 60 s
// (IPMI v2.0 table 28-14, parameter 3, bit 3), or for ever. A persistent one is for
// all starts, from when it is set.
func (o *BootOptions) validity() *durationpb.Duration {
	const countdown = 60 * time.Second
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.clearing&keepOnTimeout != 0 {
		return nil
	}
	return durationpb.New(countdown)
}

// set stores an option of the frontend's own. Without data only its mark
// changes.
func (o *BootOptions) set(session uint32, option byte, invalid bool, data []byte) ipmi.CompletionCode {
	size := 1
	switch option {
	case optionSetInProgress, optionFlagClearing:
	case optionInfoAcknowledge:
		size = 2
	default:
		return ipmi.ParameterNotSupported
	}
	if len(data) != 0 && len(data) != size {
		return ipmi.InvalidLength
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(data) > 0 {
		switch option {
		case optionSetInProgress:
			if code := o.setProgress(session, data[0]); code != ipmi.OK {
				return code
			}
		case optionFlagClearing:
			o.clearing = data[0] & 0x1F
		case optionInfoAcknowledge:
			o.acknowledge = o.acknowledge&^data[0] | data[1]&data[0]
		}
	}
	o.invalid[option] = invalid
	return ipmi.OK
}

// setProgress keeps one session from starting while another one has begun;
// that one ends it by completing, or by ending itself.
func (o *BootOptions) setProgress(session uint32, value byte) ipmi.CompletionCode {
	switch value & 0x03 {
	case setComplete:
		o.progress, o.progressBy = setComplete, 0
	case setInProgress:
		if o.progressBy != 0 && o.progressBy != session {
			return ipmi.SetAlreadyInProgress
		}
		o.progress, o.progressBy = setInProgress, session
	case setCommitWrite: // Writes count at once; there is nothing to commit.
	default:
		return ipmi.InvalidDataField
	}
	return ipmi.OK
}

// Bits of boot flag valid bit clearing (IPMI v2.0 table 28-14, parameter 3): what
// does not clear it.
const (
	keepOnWatchdog = 0x04
	keepOnTimeout  = 0x08
)

// keepsOnWatchdog tells whether a one-time override counts for a restart that the
// watchdog timer asks for.
func (o *BootOptions) keepsOnWatchdog() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.clearing&keepOnWatchdog != 0
}

func (o *BootOptions) mark(option byte, invalid bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.invalid[option] = invalid
}

// get answers Get System Boot Options (IPMI v2.0 section 28.13).
func (c boot) get(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const version = 0x01
	option := r.Data[0] & optionMask
	o := &r.Target.Options
	o.mu.Lock()
	var data []byte
	switch option {
	case optionSetInProgress:
		data = []byte{o.progress}
	case optionFlagClearing:
		data = []byte{o.clearing}
	case optionInfoAcknowledge:
		data = []byte{0, o.acknowledge} // The write mask reads as 0.
	case optionBootFlags:
	default:
		o.mu.Unlock()
		return ipmi.ParameterNotSupported, nil
	}
	header := []byte{version, option}
	if o.invalid[option] {
		header[1] |= optionInvalidBit
	}
	o.mu.Unlock()
	if option == optionBootFlags {
		status, err := c.boot.Status(ctx, r.Target.Reference)
		if err != nil {
			return backend.CompletionCode(err), nil
		}
		data = flagsOf(status)
	}
	return ipmi.OK, append(header, data...)
}

// overrideOf translates boot flags; false for a device that no machine has. A
// client that leaves the EFI bit clear rarely means that a UEFI machine shall
// start in BIOS mode: it keeps the machine's mode.
func overrideOf(flags []byte) (*bootv1.BootOverride, bool) {
	override := &bootv1.BootOverride{
		Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE,
		BootFlags:   flags,
	}
	if flags[0]&flagPersistent != 0 {
		override.Persistence = bootv1.BootPersistence_BOOT_PERSISTENCE_CONTINUOUS
	}
	if flags[0]&flagEFI != 0 {
		override.Mode = bootv1.FirmwareMode_FIRMWARE_MODE_UEFI
	}
	switch flags[1] & deviceMask {
	case deviceNone:
		override.Target = bootv1.BootTarget_BOOT_TARGET_NONE
	case devicePXE:
		override.Target = bootv1.BootTarget_BOOT_TARGET_PXE
	case deviceHardDisk, deviceRemoteMedia, deviceRemoteDisk:
		override.Target = bootv1.BootTarget_BOOT_TARGET_HDD
	case deviceCD, deviceRemoteCD:
		override.Target = bootv1.BootTarget_BOOT_TARGET_CD
	default:
		return nil, false
	}
	if flags[0]&flagValid == 0 || override.GetTarget() == bootv1.BootTarget_BOOT_TARGET_NONE {
		return noOverride(flags), true
	}
	return override, true
}

// noOverride takes an override back.
func noOverride(flags []byte) *bootv1.BootOverride {
	return &bootv1.BootOverride{
		Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED,
		Target:      bootv1.BootTarget_BOOT_TARGET_NONE,
		BootFlags:   flags,
	}
}

// flagsOf returns the boot flags that a client wrote or, for an override that
// was set otherwise, what says the same.
func flagsOf(status *bootv1.BootStatus) []byte {
	override := status.GetOverride()
	if flags := override.GetBootFlags(); len(flags) == bootFlagsSize {
		return flags
	}
	flags := make([]byte, bootFlagsSize)
	switch override.GetPersistence() {
	case bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE:
		flags[0] = flagValid
	case bootv1.BootPersistence_BOOT_PERSISTENCE_CONTINUOUS:
		flags[0] = flagValid | flagPersistent
	case bootv1.BootPersistence_BOOT_PERSISTENCE_UNSPECIFIED, bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED:
		return flags
	}
	mode := override.GetMode()
	if mode == bootv1.FirmwareMode_FIRMWARE_MODE_UNSPECIFIED {
		mode = status.GetMode()
	}
	if mode == bootv1.FirmwareMode_FIRMWARE_MODE_UEFI {
		flags[0] |= flagEFI
	}
	switch override.GetTarget() {
	case bootv1.BootTarget_BOOT_TARGET_PXE:
		flags[1] = devicePXE
	case bootv1.BootTarget_BOOT_TARGET_HDD:
		flags[1] = deviceHardDisk
	case bootv1.BootTarget_BOOT_TARGET_CD:
		flags[1] = deviceCD
	case bootv1.BootTarget_BOOT_TARGET_UNSPECIFIED, bootv1.BootTarget_BOOT_TARGET_NONE:
	}
	return flags
}
