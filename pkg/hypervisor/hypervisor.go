// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"io"
	"time"
)

// Machines reads machines from a cache.
type Machines interface {
	// Get returns a machine; ErrNotFound when there is none, ErrUnavailable
	// while the cache can't tell.
	Get(ref Ref) (*Machine, error)
	// List returns all machines, in no order.
	List() ([]*Machine, error)
	// Subscribe calls changed after each change of a machine or of its trays,
	// its creation and its deletion included. After the last change there is
	// always a call, from which on Get returns the last state; calls for states
	// in between may be missing. The function must return at once; it may call
	// Get.
	Subscribe(changed func(Ref)) (cancel func())
}

// Power starts, stops and restarts machines, as KubeVirt's subresources do:
// success means that the request was accepted. Beside the errors that each verb
// names, all return ErrNotFound, ErrUnavailable (ErrUnseen when the request was
// accepted and only the cache is late) and, where a concurrent writer won,
// ErrStale.
type Power interface {
	// Start asks for an instance. *ConflictError when a live instance exists,
	// under Always and Once, and under RerunOnFailure when the instance Failed;
	// ErrUnderway while another request is pending. Turns Halted into Always.
	Start(ctx context.Context, ref Ref) error
	// Stop asks the guest to shut down and ends the instance when the grace
	// period is over: nil means the machine's own, 0 at once and without the
	// guest's help. Turns Always and Once into Halted. *ConflictError when
	// there is no live instance under RerunOnFailure and Manual; under Halted
	// unless a live instance exists and the grace period is shorter than its
	// present one.
	Stop(ctx context.Context, ref Ref, grace *time.Duration) error
	// Restart asks for a stop and then a start. *ConflictError without an
	// instance, under Halted and Once; ErrUnderway while another request is
	// pending.
	Restart(ctx context.Context, ref Ref) error
	// Reset resets the running guest at once; the instance stays the same.
	// ErrNoInstance; *InvalidError when it does not run.
	Reset(ctx context.Context, ref Ref) error
	// SoftReboot asks the guest to reboot; nothing tells whether it does.
	// ErrNoInstance; *ConflictError when it does not run, is paused, or can
	// hear neither agent nor ACPI.
	SoftReboot(ctx context.Context, ref Ref) error
	// Pause freezes the guest. ErrNoInstance; *ConflictError when it does not
	// run or is paused; ErrUnsupported where the machine's probes forbid it.
	Pause(ctx context.Context, ref Ref) error
	// Unpause lets a paused guest go on. ErrNoInstance; *ConflictError when it
	// is not paused.
	Unpause(ctx context.Context, ref Ref) error
	// SetRunStrategy changes the run strategy if it still is from, else
	// ErrStale. From Halted to Always, RerunOnFailure or Once starts the
	// machine; to Halted stops it.
	SetRunStrategy(ctx context.Context, ref Ref, from, to RunStrategy) error
	// DeleteInstance deletes the instance if it is the one with this UID, else
	// ErrNoInstance. The run strategy decides what follows.
	DeleteInstance(ctx context.Context, ref Ref, uid string) error
}

// Boot changes what new instances of a machine boot from.
type Boot interface {
	// SetBoot writes boot orders, and the firmware mode unless it is empty, to
	// the template of the version that the caller has read: ErrStale when there
	// is a newer one. Orders name devices; 0 takes the order away; devices that
	// are not named keep theirs. *InvalidError when two devices would share an
	// order or a device does not exist. The running instance is not changed.
	SetBoot(ctx context.Context, ref Ref, resourceVersion string, orders map[string]int, mode FirmwareMode) error
}

// State keeps a few kilobytes beside the machine, for the services that act on
// it.
type State interface {
	// SetState replaces the state if it still is old (nil: none), else
	// ErrStale. A nil state is none. ErrUnseen when it is written and only the
	// cache is late; any other ErrUnavailable leaves open whether it is written.
	SetState(ctx context.Context, ref Ref, old, state []byte) error
}

// Console reaches a machine's first serial port.
type Console interface {
	// OpenConsole connects to the running guest's serial port. An earlier
	// connection, whoever has it, is ended by the new one and reads io.EOF, as
	// does a connection whose instance ends or moves to another node, and one
	// that the hypervisor has cut off for reasons of its own. A connection that
	// is certain to have broken on the way reads ErrUnavailable. ErrNoInstance
	// when the guest does not run, ErrUnsupported when the machine has no serial
	// console.
	OpenConsole(ctx context.Context, ref Ref) (io.ReadWriteCloser, error)
}

// Image is what Insert fetches.
type Image struct {
	// URL of the image, without credentials.
	URL string
	// Username and Password for the image server; empty for none.
	Username string
	Password string
}

// Media fills and empties CD-ROM trays.
type Media interface {
	// Trays returns a machine's trays from a cache, in the order of its devices or
	// the one to use first. One that Insert would add may be among them. Subscribe
	// of Machines tells of their changes.
	Trays(ref Ref) ([]Tray, error)
	// Insert accepts an image for a tray; the import goes on by itself and past
	// the end of this process where the hypervisor is another one. A medium of
	// an earlier Insert, imported or not, is replaced. ErrNoTray,
	// ErrForeignMedium, ErrUnsupported.
	Insert(ctx context.Context, ref Ref, device string, image Image) error
	// Eject empties a tray and gives up an import under way; an empty tray is
	// no error. ErrNoTray, ErrForeignMedium.
	Eject(ctx context.Context, ref Ref, device string) error
}

// Hypervisor is all of the above.
type Hypervisor interface {
	Machines
	Power
	Boot
	State
	Console
	Media
}
