// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package policy is the policy for image URLs, by the names that this service uses.
package policy

import "kubevirtbmc.dev/pkg/urlpolicy"

type (
	// Config is urlpolicy's.
	Config = urlpolicy.Config
	// Policy is urlpolicy's.
	Policy = urlpolicy.Policy
	// Dialer is urlpolicy's.
	Dialer = urlpolicy.Dialer
)

// What pkg/urlpolicy has.
var (
	ErrDenied      = urlpolicy.ErrDenied
	DefaultSchemes = urlpolicy.DefaultSchemes
	DefaultDeny    = urlpolicy.DefaultDeny
	Groups         = urlpolicy.Groups
	New            = urlpolicy.New
)
