// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package hypervisor is what the power and media services know of KubeVirt: the
// machines behind the BMCs, and the verbs that act on them. It has two kinds of
// implementation, KubeVirt itself and the in-memory simulator; the suite of
// package contract holds both to the same behaviour.
//
// The verbs are at the level of KubeVirt's subresources, refusals included:
// start is refused under the run strategy Always, stop turns Always into
// Halted, a second request in a row is ErrUnderway. What a BMC makes of that
// (idempotent actions, the user's run strategy kept) is decided above, in the
// power service.
//
// Reads come from a cache and cost no request. Subscribe tells that something
// about a machine changed, never what: a reader looks at the whole machine
// again (level-triggered), so a lost or a doubled notice does no harm. A verb
// or a write that succeeds returns only when the cache of the same process
// shows its effect on the machine's objects (the accepted request, not its
// completion).
//
// The package imports the standard library only.
package hypervisor
