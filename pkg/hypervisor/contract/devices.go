// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package contract

import "kubevirtbmc.dev/pkg/hypervisor"

// tray returns a tray of a machine.
func (b *bed) tray(ref hypervisor.Ref, device string) hypervisor.Tray {
	b.Helper()
	trays, err := b.Hypervisor.Trays(ref)
	b.ok("trays", err)
	for _, t := range trays {
		if t.Device == device {
			return t
		}
	}
	b.Fatalf("machine has no tray %s", device)
	return hypervisor.Tray{}
}

func inserted(t hypervisor.Tray, url string) bool {
	return t.Medium != nil && t.Medium.Phase == hypervisor.MediumInserted && t.Medium.URL == url
}

func (b *bed) untilTray(ref hypervisor.Ref, device, what string, is func(hypervisor.Tray) bool) {
	b.Helper()
	b.until(ref, what, func(*hypervisor.Machine) bool { return is(b.tray(ref, device)) })
}

func volumeOf(m *hypervisor.Machine, device string) string {
	for _, d := range m.Devices {
		if d.Name == device {
			return d.Volume
		}
	}
	return ""
}

func media(b *bed) {
	if b.ImageURL == "" {
		b.Skip("this bench has no media")
	}
	ref := b.NewMachine(b.T, Spec{RunStrategy: hypervisor.RunStrategyHalted, Devices: append(Devices(),
		hypervisor.BootDevice{Name: "cd", Kind: hypervisor.DeviceCDROM})})
	h, ctx := b.Hypervisor, b.Context()
	if t := b.tray(ref, "cd"); t.Medium != nil {
		b.Errorf("an empty tray has the medium %+v", *t.Medium)
	}
	b.is("insert into no tray", h.Insert(ctx, ref, "disk", hypervisor.Image{URL: b.ImageURL}), hypervisor.ErrNoTray)
	b.is("eject from no tray", h.Eject(ctx, ref, "disk"), hypervisor.ErrNoTray)
	b.ok("eject an empty tray", h.Eject(ctx, ref, "cd"))

	b.ok("insert", h.Insert(ctx, ref, "cd", hypervisor.Image{URL: b.ImageURL, Username: "user", Password: "password"}))
	if t := b.tray(ref, "cd"); t.Medium == nil || t.Medium.URL != b.ImageURL || t.Medium.Foreign {
		b.Errorf("the tray does not show the image after the write: %+v", t.Medium)
	}
	b.untilTray(ref, "cd", "inserted", func(t hypervisor.Tray) bool { return inserted(t, b.ImageURL) })
	first := volumeOf(b.get(ref), "cd")
	if first == "" {
		b.Errorf("the machine's device shows no volume")
	}
	b.ok("replace", h.Insert(ctx, ref, "cd", hypervisor.Image{URL: b.ImageURL2}))
	b.untilTray(ref, "cd", "replaced", func(t hypervisor.Tray) bool { return inserted(t, b.ImageURL2) })
	if got := volumeOf(b.get(ref), "cd"); got == "" || got == first {
		b.Errorf("the device shows the volume %q after %q was replaced", got, first)
	}
	b.ok("eject", h.Eject(ctx, ref, "cd"))
	b.untilTray(ref, "cd", "empty", func(t hypervisor.Tray) bool { return t.Medium == nil })
	if got := volumeOf(b.get(ref), "cd"); got != "" {
		b.Errorf("the device still shows the volume %q", got)
	}
	b.ok("insert", h.Insert(ctx, ref, "cd", hypervisor.Image{URL: b.ImageURL}))
	b.ok("eject during the import", h.Eject(ctx, ref, "cd"))
	b.stays(ref, "empty", func(*hypervisor.Machine) bool { return b.tray(ref, "cd").Medium == nil })
}

func foreignMedia(b *bed) {
	if b.ImageURL == "" {
		b.Skip("this bench has no media")
	}
	ref := b.NewMachine(b.T, Spec{RunStrategy: hypervisor.RunStrategyHalted, Devices: append(Devices(),
		hypervisor.BootDevice{Name: "tools", Kind: hypervisor.DeviceCDROM, Volume: "tools"})})
	if t := b.tray(ref, "tools"); t.Medium == nil || !t.Medium.Foreign || t.Medium.URL != "" {
		b.Errorf("the medium is not foreign: %+v", t.Medium)
	}
	b.is("insert", b.Hypervisor.Insert(b.Context(), ref, "tools", hypervisor.Image{URL: b.ImageURL}), hypervisor.ErrForeignMedium)
	b.is("eject", b.Hypervisor.Eject(b.Context(), ref, "tools"), hypervisor.ErrForeignMedium)
	if got := volumeOf(b.get(ref), "tools"); got != "tools" {
		b.Errorf("the foreign volume is now %q", got)
	}
}
