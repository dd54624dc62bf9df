// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"slices"
	"time"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// A console that gets no answer sends its request again, with the same request
// sequence number but as a new packet. Answers to requests that change something
// are kept for that. How long is bounded from both sides: ipmitool repeats for
// 10 s, FreeIPMI for up to 20 s; and a console whose sequence numbers have come
// round, or that uses one number for all, must be able to mean the same command
// anew: so an answer also goes when its number comes with another request, and
// after keepRequests further ones.
const (
	keepAnswer    = 10 * time.Second
	keepRequests  = 16
	maxRemembered = 8
)

// sequenceAt is where a message has its sequence number (package ipmi).
const sequenceAt = 4

// Requests are the latest requests of a session that must not be carried out
// twice, and those that are being carried out.
type Requests struct {
	entries []*Request
	count   uint
}

// Request that is or was carried out.
type Request struct {
	message  []byte
	number   uint
	done     bool
	answered time.Time
	code     ipmi.CompletionCode
	data     []byte
	keep     bool
}

// Verdict on a request.
type Verdict int

// A request is New, Underway when the same one is being carried out, or Answered
// before.
const (
	New Verdict = iota
	Underway
	Answered
)

// Begin looks a request's whole message (as ipmi.ParseMessage takes it) up and,
// when it is new, notes that it is being carried out. It returns nil for a new
// request beyond maxRemembered that are under way. keep says that the answer is
// wanted after Done.
func (r *Requests) Begin(now time.Time, message []byte, keep bool) (*Request, Verdict) {
	for _, e := range r.entries {
		if bytes.Equal(e.message, message) && !r.stale(now, e) {
			if e.done {
				return e, Answered
			}
			return e, Underway
		}
	}
	r.count++
	r.entries = slices.DeleteFunc(r.entries, func(e *Request) bool {
		return e.done && (r.stale(now, e) || e.message[sequenceAt] == message[sequenceAt])
	})
	if len(r.entries) >= maxRemembered && !r.dropOldestAnswer() {
		return nil, New
	}
	e := &Request{message: bytes.Clone(message), number: r.count, keep: keep}
	r.entries = append(r.entries, e)
	return e, New
}

func (r *Requests) stale(now time.Time, e *Request) bool {
	return e.done && (!e.keep || now.Sub(e.answered) >= keepAnswer || r.count-e.number >= keepRequests)
}

func (r *Requests) dropOldestAnswer() bool {
	i := slices.IndexFunc(r.entries, func(e *Request) bool { return e.done })
	if i < 0 {
		return false
	}
	r.entries = slices.Delete(r.entries, i, i+1)
	return true
}

// Done ends a request with its answer.
func (r *Requests) Done(now time.Time, e *Request, code ipmi.CompletionCode, data []byte) {
	e.done, e.answered, e.code, e.data = true, now, code, data
}

// Forget drops a request that was not carried out after all.
func (r *Requests) Forget(e *Request) {
	if i := slices.Index(r.entries, e); i >= 0 {
		r.entries = slices.Delete(r.entries, i, i+1)
	}
}

// Answer returns the answer of a request that is done.
func (e *Request) Answer() (ipmi.CompletionCode, []byte) { return e.code, e.data }
