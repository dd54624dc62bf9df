// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import "errors"

// What the engine refuses, beside the errors of package hypervisor.
var (
	// ErrPowerState says that the action makes no sense in the present state.
	ErrPowerState = errors.New("not possible in the machine's present power state")
	// ErrRunStrategy says that the machine's run strategy has no way to do it.
	ErrRunStrategy = errors.New("not possible with the machine's run strategy")
	// ErrOperation says that the operation under way has to end first.
	ErrOperation = errors.New("another operation on the machine is under way")
	// ErrNoBootDevice says that the machine has no device of the wanted kind.
	ErrNoBootDevice = errors.New("machine has no boot device of that kind")
	// ErrBootMode says that the machine can't have the wanted firmware mode.
	ErrBootMode = errors.New("machine can't have that firmware mode")
	// ErrKernelBoot says that the machine boots a kernel directly.
	ErrKernelBoot = errors.New("machine boots a kernel directly, past the boot order")
)
