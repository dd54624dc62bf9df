// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package watchdog is the watchdog timer of a BMC (IPMI v2.0 section 27): a
// countdown that somebody has to start again and again, and what is to be done when
// nobody does.
//
// As the specification wants it, the timer is lost when the BMC restarts, stops
// when the machine goes off, and goes on through a reset; its expiration flags stay
// through all of that but the BMC's restart.
package watchdog

import (
	"encoding/binary"
	"errors"
	"sync"
	"time"
)

// Count is the unit of countdown values.
const Count = 100 * time.Millisecond

// Action is what to do to the machine when the countdown is over.
type Action byte

// The actions.
const (
	ActionNone       Action = 0
	ActionHardReset  Action = 1
	ActionPowerDown  Action = 2
	ActionPowerCycle Action = 3
)

// Interrupts before the time-out. SMI and NMI do not exist for virtual machines.
const (
	interruptNone      = 0
	interruptMessaging = 3
)

// Bits of the first byte: do not log, the use, and in requests and answers
// something else each.
const (
	dontLog  = 0x80
	dontStop = 0x40 // Set.
	running  = 0x40 // Get.
	useMask  = 0x07
	useFirst = 1
	useLast  = 5
)

// Errors.
var (
	// ErrUninitialized says that the timer was never set.
	ErrUninitialized = errors.New("watchdog timer was never set")
	// ErrInvalid says that a setting does not exist.
	ErrInvalid = errors.New("invalid watchdog timer setting")
	// ErrTooLate says that the interrupt before the time-out has come: from then on
	// Set alone stops the countdown.
	ErrTooLate = errors.New("the watchdog timer's pre-timeout has passed")
	// ErrOff says that the machine is off.
	ErrOff = errors.New("the machine is off")
)

// Machine is what the timer has to know of the machine.
type Machine struct {
	On bool
	// Instance is another one after each time that the machine was off.
	Instance string
	// Reset is when it was last reset or started; zero when unknown.
	Reset time.Time
}

// Setting is what Set has set.
type Setting struct {
	Use        byte // 1 to 5.
	DontLog    bool
	Interrupt  byte // 0 or 3.
	Action     Action
	PreTimeout byte   // Seconds.
	Countdown  uint16 // In Counts.
}

// Expiry is a time that has come: that of the interrupt, or the time-out.
type Expiry struct {
	Setting
	// PreTimeout says that it is the interrupt's.
	PreTimeout bool
	generation uint64
}

// Timer is a watchdog timer. Its zero value was never set.
type Timer struct {
	mu      sync.Mutex
	set     bool
	setting Setting
	flags   byte
	running bool
	// warned says that the interrupt has come.
	warned bool
	// deadline is the time-out's while it runs; left is the countdown when it does
	// not.
	deadline time.Time
	left     uint16
	started  time.Time
	instance string
	timer    *time.Timer
	// generation changes with each start and stop: what an earlier one has set off
	// counts no more.
	generation uint64
	closed     bool
	// Due is called when a time has come; it must return at once. It is set before
	// the timer is used.
	Due func(Expiry)
}

// Set changes the timer as the data of Set Watchdog Timer say (section 27.6).
func (t *Timer) Set(data []byte, now time.Time, m Machine) error {
	if len(data) != 6 {
		return ErrInvalid
	}
	s := Setting{
		Use: data[0] & useMask, DontLog: data[0]&dontLog != 0, Interrupt: data[1] >> 4 & 7, Action: Action(data[1] & 7),
		PreTimeout: data[2], Countdown: binary.LittleEndian.Uint16(data[4:]),
	}
	if s.Use < useFirst || s.Use > useLast || s.Action > ActionPowerCycle || (s.Interrupt != interruptNone && s.Interrupt != interruptMessaging) {
		return ErrInvalid
	}
	if s.Interrupt != interruptNone && time.Duration(s.PreTimeout)*time.Second > time.Duration(s.Countdown)*Count {
		return ErrInvalid
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.observe(now, m)
	t.setting, t.set = s, true
	t.flags &^= data[3]
	if goesOn := data[0]&dontStop != 0 && t.running; goesOn {
		t.start(now, m)
		return nil
	}
	t.stop(s.Countdown)
	return nil
}

// Reset starts the countdown, or starts it again (section 27.5).
func (t *Timer) Reset(now time.Time, m Machine) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.observe(now, m)
	switch {
	case !t.set:
		return ErrUninitialized
	case !m.On:
		return ErrOff
	case t.running && t.warned:
		return ErrTooLate
	}
	t.start(now, m)
	return nil
}

// Get returns the data that Get Watchdog Timer answers with (section 27.7).
func (t *Timer) Get(now time.Time, m Machine) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.observe(now, m)
	s, left := t.setting, t.left
	first := s.Use
	if s.DontLog {
		first |= dontLog
	}
	if t.running {
		first |= running
		left = t.remaining(now)
	}
	data := []byte{first, s.Interrupt<<4 | byte(s.Action), s.PreTimeout, t.flags}
	data = binary.LittleEndian.AppendUint16(data, s.Countdown)
	return binary.LittleEndian.AppendUint16(data, left)
}

// Running tells whether the countdown goes on.
func (t *Timer) Running() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running
}

// Expire tells whether what Due was called for counts, now that the machine is
// known, and takes note of it. It does not when the timer was set, started or
// stopped since, or has stopped because the machine went off.
func (t *Timer) Expire(e Expiry, now time.Time, m Machine) (Expiry, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.generation != t.generation || !t.running {
		return e, false
	}
	t.observe(now, m)
	if !t.running {
		return e, false
	}
	e.Setting = t.setting
	if e.PreTimeout {
		t.schedule(now, e.generation)
		return e, true
	}
	t.flags |= 1 << t.setting.Use
	t.setting.DontLog = false // Until it is set again.
	t.stop(0)
	return e, true
}

// Close ends the timer for good: Due is called no more.
func (t *Timer) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stop(0)
	t.closed = true
}

// observe stops a countdown that the machine has outlived.
func (t *Timer) observe(now time.Time, m Machine) {
	if !t.running {
		return
	}
	if !m.On || m.Instance != t.instance {
		t.stop(t.remaining(now))
		return
	}
	if m.Reset.After(t.started) {
		t.setting.DontLog = false
	}
}

func (t *Timer) remaining(now time.Time) uint16 {
	left := (t.deadline.Sub(now) + Count - 1) / Count
	return uint16(min(max(left, 0), 0xFFFF))
}

func (t *Timer) start(now time.Time, m Machine) {
	t.stop(0)
	t.running, t.warned = true, false
	t.instance, t.started = m.Instance, now
	t.deadline = now.Add(time.Duration(t.setting.Countdown) * Count)
	t.schedule(now, t.generation)
}

// schedule waits for the next time that is to come.
func (t *Timer) schedule(now time.Time, generation uint64) {
	e, at := Expiry{generation: generation}, t.deadline
	if t.setting.Interrupt != interruptNone && !t.warned {
		e.PreTimeout, at = true, at.Add(-time.Duration(t.setting.PreTimeout)*time.Second)
	}
	t.timer = time.AfterFunc(at.Sub(now), func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.closed || t.generation != generation {
			return
		}
		t.warned = t.warned || e.PreTimeout
		t.Due(e)
	})
}

func (t *Timer) stop(left uint16) {
	t.generation++
	t.running, t.left = false, left
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}
