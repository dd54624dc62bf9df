// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package slot maps a machine's CD-ROM trays to the virtual media slots of its
// BMC, and puts images into them. The slots are CD1, CD2 and so on, in the order
// of the trays.
//
// What is in a tray, how far its import is and whose it is are the hypervisor's
// to tell: this package keeps nothing, so it goes on after a restart as if
// nothing had been.
package slot

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/follow"
)

const prefix = "CD"

var (
	// ErrNoSlot says that the machine has no such slot.
	ErrNoSlot = errors.New("machine has no such virtual media slot")
	// ErrURL says that the image's URL can't be used.
	ErrURL = errors.New("image URL is not valid")
)

// Hypervisor is what the drive bay needs of one.
type Hypervisor interface {
	hypervisor.Media
	// Subscribe is that of hypervisor.Machines.
	Subscribe(changed func(hypervisor.Ref)) (cancel func())
}

// Slot is a virtual media slot.
type Slot struct {
	ID   string
	Tray hypervisor.Tray
}

// Bay has the slots of all machines.
type Bay struct {
	hypervisor  Hypervisor
	followers   *follow.Hub
	unsubscribe func()

	mu sync.Mutex
	// busy has the machines with a change under way, and who waits for it.
	busy map[hypervisor.Ref]chan struct{}
}

// NewBay makes a bay, which follows the hypervisor until Run has ended.
func NewBay(h Hypervisor) *Bay {
	b := &Bay{hypervisor: h, followers: follow.NewHub(), busy: map[hypervisor.Ref]chan struct{}{}}
	b.unsubscribe = h.Subscribe(b.followers.Changed)
	return b
}

// Run waits for the context's end.
func (b *Bay) Run(ctx context.Context) error {
	defer b.unsubscribe()
	<-ctx.Done()
	return nil
}

// Follow returns a channel that has a value after each change of a machine.
func (b *Bay) Follow(ref hypervisor.Ref) (changes <-chan struct{}, cancel func()) {
	return b.followers.Follow(ref)
}

// List returns a machine's slots.
func (b *Bay) List(ref hypervisor.Ref) ([]Slot, error) {
	trays, err := b.hypervisor.Trays(ref)
	if err != nil {
		return nil, err
	}
	slots := make([]Slot, len(trays))
	for n, tray := range trays {
		slots[n] = Slot{ID: prefix + strconv.Itoa(n+1), Tray: tray}
	}
	return slots, nil
}

// find returns one slot.
func (b *Bay) find(ref hypervisor.Ref, id string) (Slot, error) {
	slots, err := b.List(ref)
	if err != nil {
		return Slot{}, err
	}
	for _, s := range slots {
		if s.ID == id {
			return s, nil
		}
	}
	return Slot{}, fmt.Errorf("%s: %w", id, ErrNoSlot)
}

// Insert has an image put into a slot. The same URL again changes nothing,
// unless its import has failed; another one replaces the medium.
func (b *Bay) Insert(ctx context.Context, ref hypervisor.Ref, id string, image hypervisor.Image) (Slot, error) {
	image, err := withoutUserinfo(image)
	if err != nil {
		return Slot{}, err
	}
	unlock, err := b.lock(ctx, ref)
	if err != nil {
		return Slot{}, err
	}
	defer unlock()
	s, err := b.find(ref, id)
	if err != nil {
		return Slot{}, err
	}
	if has(s.Tray.Medium, image.URL) {
		return s, nil
	}
	if err := b.hypervisor.Insert(ctx, ref, s.Tray.Device, image); err != nil {
		return Slot{}, fmt.Errorf("insert into %s: %w", id, err)
	}
	return b.find(ref, id)
}

// has tells whether a tray has the image of a URL, or will.
func has(medium *hypervisor.Medium, url string) bool {
	return medium != nil && !medium.Foreign && medium.URL == url && medium.Phase != hypervisor.MediumFailed
}

// Eject has a slot emptied.
func (b *Bay) Eject(ctx context.Context, ref hypervisor.Ref, id string) (Slot, error) {
	unlock, err := b.lock(ctx, ref)
	if err != nil {
		return Slot{}, err
	}
	defer unlock()
	s, err := b.find(ref, id)
	if err != nil {
		return Slot{}, err
	}
	if s.Tray.Medium == nil {
		return s, nil
	}
	if err := b.hypervisor.Eject(ctx, ref, s.Tray.Device); err != nil {
		return Slot{}, fmt.Errorf("eject from %s: %w", id, err)
	}
	return b.find(ref, id)
}

// lock waits for its turn to change a machine's slots.
func (b *Bay) lock(ctx context.Context, ref hypervisor.Ref) (unlock func(), err error) {
	for {
		b.mu.Lock()
		other, taken := b.busy[ref]
		if !taken {
			done := make(chan struct{})
			b.busy[ref] = done
			b.mu.Unlock()
			return func() {
				b.mu.Lock()
				delete(b.busy, ref)
				b.mu.Unlock()
				close(done)
			}, nil
		}
		b.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// withoutUserinfo moves user name and password from the URL to their own place,
// where nobody prints them.
func withoutUserinfo(image hypervisor.Image) (hypervisor.Image, error) {
	u, err := url.Parse(image.URL)
	if err != nil || u.Hostname() == "" || !validPort(u.Port()) {
		// The parser's error would repeat the URL, password included.
		return image, ErrURL
	}
	if u.User != nil {
		if image.Username == "" && image.Password == "" {
			image.Username = u.User.Username()
			image.Password, _ = u.User.Password()
		}
		u.User = nil
		image.URL = u.String()
	}
	return image, nil
}

// validPort tells whether a URL's port is none or one that TCP has.
func validPort(port string) bool {
	if port == "" {
		return true
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n != 0
}
