// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"io"
	"strings"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// readAll reads a connection until it ends and tells how.
func readAll(conn io.Reader) <-chan error {
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, conn)
		ended <- err
	}()
	return ended
}

func (b *bed) endsWith(what string, ended <-chan error) {
	b.Helper()
	select {
	case err := <-ended:
		if err != nil {
			b.Errorf("%s: read ended with %v, want EOF", what, err)
		}
	case <-time.After(b.Timeout):
		b.Errorf("%s: still open", what)
	}
}

func console(b *bed) {
	ref, _ := b.started(Spec{RunStrategy: hypervisor.RunStrategyManual})
	first, err := b.Hypervisor.OpenConsole(b.Context(), ref)
	b.ok("open console", err)
	firstEnded := readAll(first)
	second, err := b.Hypervisor.OpenConsole(b.Context(), ref)
	b.ok("open console again", err)
	b.endsWith("the connection that was replaced", firstEnded)
	if b.Guest.Echoes {
		b.echo(second)
	}
	secondEnded := readAll(second)
	b.ok("stop", b.Hypervisor.Stop(b.Context(), ref, grace(0)))
	b.endsWith("the connection of a stopped instance", secondEnded)
	if err := first.Close(); err != nil {
		b.Errorf("close: %v", err)
	}
	if err := second.Close(); err != nil {
		b.Errorf("close: %v", err)
	}
}

// echo types and expects to read it.
func (b *bed) echo(conn io.ReadWriter) {
	b.Helper()
	const typed = "echo-7f3a"
	if _, err := conn.Write([]byte(typed)); err != nil {
		b.Fatalf("write to the console: %v", err)
	}
	found := make(chan error, 1)
	go func() {
		var seen strings.Builder
		buffer := make([]byte, 1024)
		for !strings.Contains(seen.String(), typed) {
			n, err := conn.Read(buffer)
			if err != nil {
				found <- err
				return
			}
			seen.Write(buffer[:n])
		}
		found <- nil
	}()
	select {
	case err := <-found:
		if err != nil {
			b.Fatalf("read from the console: %v", err)
		}
	case <-time.After(b.Timeout):
		b.Fatalf("the console does not echo")
	}
}

func noConsole(b *bed) {
	ref, m := b.started(Spec{RunStrategy: hypervisor.RunStrategyManual, NoSerialConsole: true})
	if m.Hardware.SerialConsole {
		b.Errorf("the machine says that it has a serial console")
	}
	_, err := b.Hypervisor.OpenConsole(b.Context(), ref)
	b.is("open console", err, hypervisor.ErrUnsupported)
}

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
