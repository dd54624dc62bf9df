// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"errors"
	"testing"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// MediaBench is a hypervisor whose media are under test. All is needed.
type MediaBench struct {
	Media hypervisor.Media
	// NewMachine makes a machine, which ends with the test.
	NewMachine func(t *testing.T, spec Spec) hypervisor.Ref
	// Volume names what fills a drive in a machine's template; empty: nothing.
	Volume func(ref hypervisor.Ref, device string) string
	// ImageURL is an image that can be inserted, ImageURL2 another one.
	ImageURL, ImageURL2 string
	// Timeout is how long an import may take, Quiet how long the suite watches
	// that nothing happens.
	Timeout, Quiet time.Duration
}

// RunMedia runs the part of the suite that is about media.
func RunMedia(t *testing.T, bench MediaBench) {
	t.Helper()
	t.Run("media", func(t *testing.T) { media(&mediaBed{t, bench}) })
	t.Run("media of somebody else", func(t *testing.T) { foreignMedia(&mediaBed{t, bench}) })
}

// mediaBed is a test on a bench.
type mediaBed struct {
	*testing.T
	MediaBench
}

// withMedia makes a test of media one of the whole suite.
func withMedia(test func(*mediaBed)) func(*bed) {
	return func(b *bed) {
		if b.ImageURL == "" {
			b.Skip("this bench has no media")
		}
		test(&mediaBed{b.T, MediaBench{
			Media: b.Hypervisor, NewMachine: b.NewMachine, ImageURL: b.ImageURL, ImageURL2: b.ImageURL2,
			Timeout: b.Timeout, Quiet: b.Quiet,
			Volume: func(ref hypervisor.Ref, device string) string {
				for _, d := range b.get(ref).Devices {
					if d.Name == device {
						return d.Volume
					}
				}
				return ""
			},
		}})
	}
}

// tray returns a tray of a machine.
func (b *mediaBed) tray(ref hypervisor.Ref, device string) hypervisor.Tray {
	b.Helper()
	trays, err := b.Media.Trays(ref)
	b.ok("trays", err)
	for _, t := range trays {
		if t.Device == device {
			return t
		}
	}
	b.Fatalf("machine has no tray %s", device)
	return hypervisor.Tray{}
}

func (b *mediaBed) ok(what string, err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: %v", what, err)
	}
}

func (b *mediaBed) is(what string, err, want error) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Errorf("%s: got %v, want %v", what, err, want)
	}
}

func inserted(t hypervisor.Tray, url string) bool {
	return t.Medium != nil && t.Medium.Phase == hypervisor.MediumInserted && t.Medium.URL == url
}

// step is how often a tray is looked at.
const step = 10 * time.Millisecond

func (b *mediaBed) untilTray(ref hypervisor.Ref, device, what string, is func(hypervisor.Tray) bool) {
	b.Helper()
	for end := time.Now().Add(b.Timeout); !is(b.tray(ref, device)); time.Sleep(step) {
		if time.Now().After(end) {
			b.Fatalf("%s is not %s: %+v", device, what, b.tray(ref, device))
		}
	}
}

func media(b *mediaBed) {
	ref := b.NewMachine(b.T, Spec{RunStrategy: hypervisor.RunStrategyHalted, Devices: append(Devices(),
		hypervisor.BootDevice{Name: "cd", Kind: hypervisor.DeviceCDROM})})
	h, ctx := b.Media, b.Context()
	if t := b.tray(ref, "cd"); t.Medium != nil {
		b.Errorf("an empty tray has the medium %+v", *t.Medium)
	}
	b.is("insert into no tray", h.Insert(ctx, ref, "disk", hypervisor.Image{URL: b.ImageURL}), hypervisor.ErrNoTray)
	b.is("eject from no tray", h.Eject(ctx, ref, "disk"), hypervisor.ErrNoTray)
	nobody := hypervisor.Ref{Namespace: ref.Namespace, Name: "nobody"}
	b.is("insert into no machine", h.Insert(ctx, nobody, "cd", hypervisor.Image{URL: b.ImageURL}), hypervisor.ErrNotFound)
	b.is("eject from no machine", h.Eject(ctx, nobody, "cd"), hypervisor.ErrNotFound)
	b.ok("eject an empty tray", h.Eject(ctx, ref, "cd"))

	b.ok("insert", h.Insert(ctx, ref, "cd", hypervisor.Image{URL: b.ImageURL, Username: "user", Password: "password"}))
	if t := b.tray(ref, "cd"); t.Medium == nil || t.Medium.URL != b.ImageURL || t.Medium.Foreign {
		b.Errorf("the tray does not show the image after the write: %+v", t.Medium)
	}
	b.untilTray(ref, "cd", "inserted", func(t hypervisor.Tray) bool { return inserted(t, b.ImageURL) })
	first := b.Volume(ref, "cd")
	if first == "" {
		b.Errorf("the machine's device shows no volume")
	}
	b.ok("replace", h.Insert(ctx, ref, "cd", hypervisor.Image{URL: b.ImageURL2}))
	b.untilTray(ref, "cd", "replaced", func(t hypervisor.Tray) bool { return inserted(t, b.ImageURL2) })
	if got := b.Volume(ref, "cd"); got == "" || got == first {
		b.Errorf("the device shows the volume %q after %q was replaced", got, first)
	}
	b.ok("eject", h.Eject(ctx, ref, "cd"))
	b.untilTray(ref, "cd", "empty", func(t hypervisor.Tray) bool { return t.Medium == nil })
	if got := b.Volume(ref, "cd"); got != "" {
		b.Errorf("the device still shows the volume %q", got)
	}
	b.ok("insert", h.Insert(ctx, ref, "cd", hypervisor.Image{URL: b.ImageURL}))
	b.ok("eject during the import", h.Eject(ctx, ref, "cd"))
	for end := time.Now().Add(b.Quiet); time.Now().Before(end); time.Sleep(step) {
		if t := b.tray(ref, "cd"); t.Medium != nil {
			b.Fatalf("after the eject the tray has %+v", *t.Medium)
		}
	}
}

func foreignMedia(b *mediaBed) {
	ref := b.NewMachine(b.T, Spec{RunStrategy: hypervisor.RunStrategyHalted, Devices: append(Devices(),
		hypervisor.BootDevice{Name: "tools", Kind: hypervisor.DeviceCDROM, Volume: "tools"})})
	before := b.Volume(ref, "tools")
	if t := b.tray(ref, "tools"); t.Medium == nil || !t.Medium.Foreign || t.Medium.URL != "" {
		b.Errorf("the medium is not foreign: %+v", t.Medium)
	}
	b.is("insert", b.Media.Insert(b.Context(), ref, "tools", hypervisor.Image{URL: b.ImageURL}), hypervisor.ErrForeignMedium)
	b.is("eject", b.Media.Eject(b.Context(), ref, "tools"), hypervisor.ErrForeignMedium)
	if got := b.Volume(ref, "tools"); got != before || got == "" {
		b.Errorf("the foreign volume is now %q, was %q", got, before)
	}
}
