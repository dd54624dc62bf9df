// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package bmclib runs bmclib, the library by which Tinkerbell's Rufio and others talk
// to BMCs, against a running standalone process.
package bmclib
