// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package state keeps what a BMC has to remember beyond its frontends, in three
// objects beside it that go when it goes, for it owns them.
//
// The ConfigMap <bmc>-bmc-state has the event log, an entry a line, in JSON. It is bounded, the oldest entries make room. Lines that
// can't be read, as after an edit by hand, are kept under a key of their own.
//
// The Secret <bmc>-bmc-accounts has the accounts that were created through
// StateService, each under a key of its own. Passwords are in clear text, as in
// the Secret that a VirtualMachineBMC names: the IPMI handshake needs them
// (RAKP, IPMI 2.0 section 13.31), a frontend gets them over the registry, and
// whoever may read the one Secret may read the other.
//
// The Secret <bmc>-bmc-subscriptions has the event subscriptions, one a line, in
// JSON. The headers that a subscriber wants to be sent are often credentials.
//
// Several controllers may write: each change is made to the newest version of
// the object and made again when another was faster. What the caches hold is
// metadata alone, contents are read by name.
package state
