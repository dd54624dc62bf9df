// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package sol

import (
	"bytes"
	"time"
)

// Bounds of what one Link keeps, whatever its console and its guest do.
const (
	maxOutput = 32 << 10
	maxInput  = 16 << 10
)

const (
	// settle is how long output waits after the activation. ipmitool takes SOL
	// data that comes before the answer to a command for that answer
	// (github.com/ipmitool/ipmitool/issues/254), and `sol looptest` sends the
	// next command at once.
	settle = 100 * time.Millisecond
	// hold is how long a packet that does not fit waits for room before it is
	// accepted in part. The first time-out of consoles is 500 ms (pyghmi,
	// FreeIPMI) or 1 s (ipmitool).
	hold = 400 * time.Millisecond
	// probe is how often a console that can't take output is asked whether it
	// can again: the packet that says so may get lost.
	probe = 5 * time.Second
	// minRetry is what an interval of 0 means, "back to back".
	minRetry = 10 * time.Millisecond
)

// Link is the state of one SOL payload instance. Use NewLink.
type Link struct {
	timing   Timing
	readOnly bool
	began    time.Time

	// From the console to the guest.
	input       []byte
	breakDue    bool   // A break comes after input.
	inSequence  byte   // Of the latest packet that was answered; 0: none.
	inAccepted  byte   // Characters of it that were accepted.
	inAt        uint32 // The session sequence number that it came with.
	ackDue      bool   // It is to be acknowledged.
	held        *Packet
	heldAt      uint32
	heldSince   time.Time
	unavailable bool

	// From the guest to the console.
	output      []byte
	outputSince time.Time
	pending     []byte // Sent and not acknowledged; nil: nothing.
	outSequence byte   // Of pending.
	outAt       uint32 // The session sequence number of the latest acknowledgement.
	sentAt      time.Time
	retries     int
	suspended   bool
	overrun     bool
}

// NewLink returns a link that begins now. One that is read-only accepts what its
// console types, and drops it.
func NewLink(now time.Time, timing Timing, readOnly bool) *Link {
	timing.RetryInterval = max(timing.RetryInterval, minRetry)
	return &Link{timing: timing, readOnly: readOnly, began: now, unavailable: true}
}

// SetAvailable says whether the guest's serial port is there. Input is dropped
// while it is not, as on a line that leads nowhere.
func (l *Link) SetAvailable(available bool) {
	l.unavailable = !available
	l.unhold()
}

// Output takes what the guest said. Without room the oldest goes, and the
// console is told.
func (l *Link) Output(now time.Time, b []byte) {
	if len(b) == 0 {
		return
	}
	if len(l.output) == 0 {
		l.outputSince = now
	}
	if over := len(l.output) + len(b) - maxOutput; over > 0 {
		l.overrun = true
		if over >= len(l.output) {
			l.output, b = nil, b[max(len(b)-maxOutput, 0):]
		} else {
			l.output = l.output[over:]
		}
	}
	l.output = append(l.output, b...)
}

// HasInput tells that Input returns something.
func (l *Link) HasInput() bool { return len(l.input) > 0 || l.breakDue }

// Input takes what the console typed: characters and, after them, whether a
// break.
func (l *Link) Input() (characters []byte, generateBreak bool) {
	characters, generateBreak = l.input, l.breakDue
	l.input, l.breakDue = nil, false
	l.unhold()
	return characters, generateBreak
}

// Receive takes a packet of the console, which came with a sequence number of
// its session. Acknowledgements and retries may come late and out of order; the
// session's number tells, which never repeats.
func (l *Link) Receive(now time.Time, at uint32, p Packet) {
	if p.Ack != 0 && p.Ack == l.outSequence && l.pending != nil && newer(at, l.outAt) {
		l.outAt = at
		l.acknowledged(p)
	}
	if p.Flags&FlushOutbound != 0 {
		l.output, l.pending, l.suspended = nil, nil, false
	}
	if p.Flags&FlushInbound != 0 {
		l.input, l.breakDue, l.held = nil, false, nil
	}
	if p.Sequence == 0 {
		return
	}
	switch {
	case l.held != nil && p.Sequence == l.held.Sequence:
		return // Answered when there is room.
	case l.inSequence != 0 && p.Sequence == l.inSequence:
		l.ackDue = true // The acknowledgement was lost.
		return
	case l.inSequence != 0 && !newer(at, l.inAt), l.held != nil && !newer(at, l.heldAt):
		return // Late: the console has gone on.
	}
	// A packet that is held gives way: its console has given it up.
	p.Characters = p.Characters[:min(len(p.Characters), maxCharacters)]
	l.held, l.heldAt, l.heldSince = &p, at, now
	l.unhold()
	if l.held != nil {
		l.held.Characters = bytes.Clone(p.Characters)
	}
}

// acknowledged takes an acknowledgement of the packet under way (table 15-3).
func (l *Link) acknowledged(p Packet) {
	switch n := int(p.Accepted); {
	case n >= len(l.pending):
		l.pending, l.suspended = nil, false
	case n > 0:
		l.pending, l.suspended = l.pending[n:], false
		l.begin()
	case p.Flags&NACK != 0:
		l.suspended = true
	default: // To be sent again, when it is time.
		l.suspended = false
	}
}

// begin makes the pending characters a new packet.
func (l *Link) begin() {
	l.outSequence = l.outSequence%sequenceMask + 1
	l.sentAt, l.retries = time.Time{}, 0
}

// unhold answers the packet that is held when all of it can be accepted.
func (l *Link) unhold() {
	p := l.held
	switch {
	case p == nil:
	case l.unavailable, l.readOnly:
		l.answer(len(p.Characters))
	case !l.breakDue && len(l.input)+len(p.Characters) <= maxInput:
		l.take(len(p.Characters))
		l.breakDue = p.Flags&GenerateBreak != 0
	}
}

// take accepts some characters of the packet that is held.
func (l *Link) take(n int) {
	l.input = append(l.input, l.held.Characters[:n]...)
	l.answer(n)
}

func (l *Link) answer(accepted int) {
	l.inSequence, l.inAccepted, l.inAt = l.held.Sequence, byte(accepted), l.heldAt // #nosec G115 -- at most maxCharacters.
	l.held, l.ackDue = nil, true
}

// Next returns the payload that is to be sent now; nil when there is none until
// Wake or until something else happens.
func (l *Link) Next(now time.Time) []byte {
	if l.held != nil && now.Sub(l.heldSince) >= hold {
		// Less than all without NACK: consoles send the rest again. ipmitool
		// would drop it after a NACK.
		n := 0
		if !l.breakDue {
			n = min(max(maxInput-len(l.input), 0), len(l.held.Characters))
		}
		l.take(n)
	}
	p := Packet{}
	if l.wantsToSend(now) {
		l.sentAt = now
		p.Sequence, p.Characters = l.outSequence, l.pending
	}
	if p.Sequence == 0 && !l.ackDue {
		return nil
	}
	if l.ackDue {
		p.Ack, p.Accepted, l.ackDue = l.inSequence, l.inAccepted, false
	}
	if l.unavailable {
		p.Flags |= Unavailable
	}
	if l.overrun {
		p.Flags |= TransmitOverrun
		l.overrun = false
	}
	return p.AppendTo(make([]byte, 0, headerSize+len(p.Characters)))
}

// wantsToSend tells whether output is to be sent now, and makes it pending.
func (l *Link) wantsToSend(now time.Time) bool {
	if l.pending != nil {
		switch waited := now.Sub(l.sentAt); {
		case l.sentAt.IsZero():
			return true
		case l.suspended:
			return waited >= probe
		case waited < l.timing.RetryInterval:
			return false
		case l.retries < l.timing.RetryCount:
			l.retries++
			return true
		}
		l.pending, l.overrun = nil, true // Section 15.11: it is lost.
	}
	if due, any := l.outputDue(); !any || now.Before(due) {
		return false
	}
	n := min(len(l.output), PayloadSize-headerSize)
	l.pending = bytes.Clone(l.output[:n])
	l.output = l.output[n:]
	if len(l.output) == 0 {
		l.output = nil
	}
	l.begin()
	return true
}

// outputDue returns when output that is not pending is to be sent.
func (l *Link) outputDue() (time.Time, bool) {
	if len(l.output) == 0 {
		return time.Time{}, false
	}
	due := l.outputSince
	if len(l.output) < max(l.timing.Threshold, 1) {
		due = due.Add(l.timing.Accumulate)
	}
	if start := l.began.Add(settle); due.Before(start) {
		due = start
	}
	return due, true
}

// Wake returns when Next has something, if nothing else happens; false: never.
func (l *Link) Wake() (time.Time, bool) {
	var wake time.Time
	at := func(t time.Time) {
		if wake.IsZero() || t.Before(wake) {
			wake = t
		}
	}
	if l.held != nil {
		at(l.heldSince.Add(hold))
	}
	switch {
	case l.pending == nil:
		if due, any := l.outputDue(); any {
			at(due)
		}
	case l.suspended:
		at(l.sentAt.Add(probe))
	default:
		at(l.sentAt.Add(l.timing.RetryInterval))
	}
	return wake, !wake.IsZero()
}

// Farewell returns the payload that tells the console that somebody else has
// ended it. pyghmi believes it only with a NACK of its latest packet.
func (l *Link) Farewell() []byte {
	return Packet{Ack: l.inSequence, Accepted: l.inAccepted, Flags: NACK | Deactivating}.AppendTo(nil)
}

// newer tells whether a session sequence number comes after another.
func newer(a, b uint32) bool { return int32(a-b) > 0 } // #nosec G115 -- wraps around as sequence numbers do.
