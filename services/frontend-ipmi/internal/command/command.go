// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import "kubevirtbmc.dev/services/frontend-ipmi/internal/backend"

// Config has what commands need.
type Config struct {
	Power    backend.Power
	Boot     backend.Boot
	Firmware Firmware
}

// New returns a mux with all commands that are served.
func New(cfg Config) *Mux {
	m := NewMux()
	registerApp(m, cfg.Firmware)
	registerSession(m)
	registerChassis(m, cfg.Power)
	registerBoot(m, cfg.Boot)
	registerPayload(m)
	registerSOL(m)
	return m
}
