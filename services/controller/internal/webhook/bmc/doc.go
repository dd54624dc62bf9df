// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package bmc validates VirtualMachineBMCs at their admission.
//
// Refused is what the product that this one replaces refused, and what could
// never be served: a machine that has a BMC already, names that make no Service,
// a Secret without an account, credentials that IPMI can't carry where the object
// asks for IPMI. What may be made good elsewhere, or was accepted before and works
// in part, gets a warning.
//
// An update is held to what it changes. So a BMC whose machine or Secret has gone
// can be edited, and rid of its finalizers.
//
// Nothing is defaulted: what a BMC gets that does not say otherwise is how the
// controller is set, and may be set otherwise later.
package bmc
