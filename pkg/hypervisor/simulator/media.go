// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// importSteps is in how many steps an import's progress grows.
const importSteps = 10

// tray is a CD-ROM drive. The machine's mutex guards it.
type tray struct {
	device  string
	medium  *hypervisor.Medium
	pending bool
	changed time.Time
	// failure makes the next import fail with this message.
	failure string
	inserts int
}

// Trays returns a machine's trays.
func (s *Simulator) Trays(ref hypervisor.Ref) ([]hypervisor.Tray, error) {
	m, err := s.machine(ref)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	trays := make([]hypervisor.Tray, 0, len(m.trays))
	for _, t := range m.trays {
		out := hypervisor.Tray{Device: t.device, Pending: t.pending, Changed: t.changed}
		if t.medium != nil {
			medium := *t.medium
			out.Medium = &medium
		}
		trays = append(trays, out)
	}
	return trays, nil
}

// Insert begins an import, which takes its time and fetches nothing.
func (s *Simulator) Insert(ctx context.Context, ref hypervisor.Ref, device string, image hypervisor.Image) error {
	u, err := url.Parse(image.URL)
	if err != nil || u.Host == "" {
		return hypervisor.Invalidf("image URL has no host")
	}
	u.User = nil
	return s.request(ctx, ref, VerbInsert, func(m *machine) error {
		t, err := m.ownTray(device)
		if err != nil {
			return err
		}
		if t.medium != nil {
			m.empty(t)
		}
		t.inserts++
		t.changed = time.Now()
		medium := &hypervisor.Medium{URL: u.String(), Phase: hypervisor.MediumImporting, Message: "importing"}
		t.medium = medium
		failure := t.failure
		t.failure = ""
		m.importStep(t, medium, failure)
		return nil
	})
}

// importStep brings an import a step on, unless the tray has another medium by
// now.
func (m *machine) importStep(t *tray, medium *hypervisor.Medium, failure string) {
	m.after(m.simulator.delays.Import/importSteps, func() {
		if t.medium != medium {
			return
		}
		medium.Progress += 100 / importSteps
		switch {
		case failure != "" && medium.Progress >= 50:
			medium.Phase = hypervisor.MediumFailed
			medium.Message = failure
			t.changed = time.Now()
		case medium.Progress >= 100:
			medium.Phase = hypervisor.MediumInserted
			medium.Message = ""
			m.fill(t, fmt.Sprintf("%s-medium-%d", t.device, t.inserts))
		default:
			m.importStep(t, medium, failure)
		}
	})
}

// Eject empties a tray.
func (s *Simulator) Eject(ctx context.Context, ref hypervisor.Ref, device string) error {
	return s.request(ctx, ref, VerbEject, func(m *machine) error {
		t, err := m.ownTray(device)
		if err != nil {
			return err
		}
		if t.medium != nil {
			m.empty(t)
		}
		return nil
	})
}

// ownTray finds a tray that Insert and Eject may touch.
func (m *machine) ownTray(device string) (*tray, error) {
	n := slices.IndexFunc(m.trays, func(t *tray) bool { return t.device == device })
	if n < 0 {
		return nil, hypervisor.ErrNoTray
	}
	if medium := m.trays[n].medium; medium != nil && medium.Foreign {
		return nil, hypervisor.ErrForeignMedium
	}
	return m.trays[n], nil
}

func (m *machine) empty(t *tray) {
	t.medium = nil
	m.fill(t, "")
}

// fill puts a volume into the tray, of the running instance too where that can
// be done live.
func (m *machine) fill(t *tray, volume string) {
	t.changed = time.Now()
	n := slices.IndexFunc(m.devices, func(d hypervisor.BootDevice) bool { return d.Name == t.device })
	m.devices = slices.Clone(m.devices)
	m.devices[n].Volume = volume
	i := m.instance
	if i == nil || i.phase.Final() {
		t.pending = false
		return
	}
	if !m.spec.NoHotplug {
		i.devices[n].Volume = volume
		return
	}
	t.pending = i.devices[n].Volume != volume
	if t.pending {
		m.restartRequired = true
	}
}
