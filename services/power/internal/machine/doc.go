// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package machine carries out what clients ask of machines: power actions and
// boot overrides.
//
// What was accepted is written beside the machine (package record) by
// compare-and-swap before anything is done about it, and each step before it is
// taken. So a process that dies leaves nothing half done for good: the next one
// finds the operation, observes the machine and goes on. Steps are chosen from
// what is observed (package transition), and repeating one does no harm, but
// for reset and reboot: nothing shows that those have happened, so one that was
// being sent when its process died is reported as failed and not repeated.
//
// An operation has a holder and a lease. Only the holder takes steps; when its
// lease is over another process takes the operation over.
package machine
