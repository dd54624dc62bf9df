// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package instance carries out one-time boot overrides: an admission webhook
// that changes the one VirtualMachineInstance that an override is for, at its
// creation.
//
// The VirtualMachine's template is never touched, so that nothing has to be
// restored, no condition RestartRequired appears, and nobody who keeps the
// template elsewhere sees a difference. An instance that was changed carries the
// override's ID (bootoverride.InstanceAnnotation); the power service takes the
// override for used when it sees such an instance, not when the webhook is called,
// since a creation may fail after it.
//
// What can't be done or fails leaves the instance as it is, since a machine that
// boots from the wrong device is better than one that does not start. The power
// service sees that by the annotation that is missing.
package instance
