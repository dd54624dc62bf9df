// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package record has the form in which a BMC's event log, event subscriptions and
// accounts are kept: how they are read, whatever is there, and written.
package record
