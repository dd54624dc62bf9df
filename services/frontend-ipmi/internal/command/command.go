// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"log/slog"
	"net/netip"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/backend"
)

// Config has what commands need.
type Config struct {
	Power backend.Power
	Boot  backend.Boot
	// Inventory tells what machines are made of; nil: commands that need it are
	// not served.
	Inventory backend.Inventory
	// Events has the event logs; nil: there is no System Event Log.
	Events   backend.Events
	Firmware Firmware
	// InterfaceOf finds the host's network interface that has an address; nil:
	// none has.
	InterfaceOf func(netip.Addr) (Interface, bool)
	// Log gets what happens between commands; nil: nobody does.
	Log *slog.Logger
}

// New returns a mux with all commands that are served.
func New(cfg Config) *Mux {
	if cfg.InterfaceOf == nil {
		cfg.InterfaceOf = func(netip.Addr) (Interface, bool) { return Interface{}, false }
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	m := NewMux()
	support := byte(deviceSupport)
	if cfg.Events != nil {
		support |= selSupport
		registerSEL(m, cfg.Events)
	}
	if cfg.Inventory != nil {
		support |= fruSupport
	}
	registerApp(m, cfg.Firmware, support, cfg.Events != nil)
	registerWatchdog(m, dog{power: cfg.Power, boot: cfg.Boot, events: cfg.Events, log: cfg.Log})
	registerDCMI(m, cfg.Events)
	registerSession(m)
	registerChassis(m, cfg.Power)
	registerBoot(m, cfg.Boot)
	registerPayload(m)
	registerSOL(m)
	registerChannel(m)
	registerUser(m)
	registerSDR(m)
	registerSensor(m, cfg.Power)
	registerLAN(m, cfg.InterfaceOf)
	if cfg.Inventory != nil {
		registerSystemInfo(m, cfg.Inventory)
		registerFRU(m, cfg.Inventory)
	}
	return m
}
