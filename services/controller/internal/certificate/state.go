// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Lifetimes are how long certificates live.
type Lifetimes struct {
	// CA is for how long a CA is valid. Its successor is made after two thirds.
	CA time.Duration
	// Lead is how long a CA is published before it signs: what the slowest client
	// needs to learn of it.
	Lead time.Duration
	// Leaf is for how long leaves are valid. They are renewed after two thirds.
	Leaf time.Duration
}

// Propagation is what a pod needs to see a changed Secret or ConfigMap: kubelet
// looks every minute, and answers of its cache may be as old.
const Propagation = 5 * time.Minute

// DefaultLifetimes leave people a month to hand a new CA on to what does not
// follow the ConfigMap.
var DefaultLifetimes = Lifetimes{CA: 2 * 365 * 24 * time.Hour, Lead: 30 * 24 * time.Hour, Leaf: 90 * 24 * time.Hour}

// shortest is the least lifetime of leaves, whose times are in whole seconds.
const shortest = 3 * time.Second

// Validate says what is wrong.
func (l Lifetimes) Validate() error {
	switch {
	case l.Leaf < shortest:
		return fmt.Errorf("certificates that live for %v: %v is the least", l.Leaf, shortest)
	case l.Lead <= 0:
		return errors.New("a CA has to be published for some time before it signs")
	case l.CA/3 < l.Lead+l.Leaf:
		return fmt.Errorf("a CA that lives for %v: the last third is to be long enough for its successor to be published, %v, and for its last leaf, %v", l.CA, l.Lead, l.Leaf)
	}
	return nil
}

// hurried is the lead of a CA that is needed: its predecessor's key is lost, or
// has little time left since no controller ran when the successor was due.
func (l Lifetimes) hurried() time.Duration { return min(l.Lead, Propagation) }

// member is a CA in one part of its life.
type member struct {
	certificate *x509.Certificate
	// authority signs; nil: a former one.
	authority *Authority
	// published is since when clients can know it; zero: they can't.
	published time.Time
	// leaf is the longest life that its leaves may have.
	leaf time.Duration
	// retired is since when it signs no more.
	retired time.Time
}

// gone tells whether no leaf of a former CA is valid any more.
func (m *member) gone(now time.Time) bool {
	return now.After(m.goneAt())
}

// goneAt is when that is: a while after the last leaf has expired, since another
// controller may have signed one when the CA had already retired.
func (m *member) goneAt() time.Time {
	at := m.retired.Add(m.leaf + backdating(m.leaf))
	if at.After(m.certificate.NotAfter) {
		return m.certificate.NotAfter
	}
	return at
}

// state is the CAs that there are. It is not changed in place.
type state struct {
	// current signs; nil: its key is lost.
	current *member
	// next is to sign; nil: there is none yet.
	next   *member
	former []*member
}

// maker makes a CA.
type maker func(now time.Time, life time.Duration) (*Authority, error)

// advance returns what the CAs are to be at a time, given the certificates that
// are published; the same state when nothing is due.
func (s *state) advance(now time.Time, lives Lifetimes, published []*x509.Certificate, make maker) (*state, error) {
	var after state
	if s != nil {
		after = *s
	}
	fresh := func() (*member, error) {
		authority, err := make(now, lives.CA)
		if err != nil {
			return nil, err
		}
		return &member{certificate: authority.certificate, authority: authority, leaf: lives.Leaf}, nil
	}
	var err error
	// One that is not valid yet is none to discard: this clock is behind, or the one
	// by which it was made was ahead.
	if after.current != nil && expiredAt(after.current.certificate, now) {
		after.current = nil // Nothing that it has signed is valid either.
	}
	if next := after.next; next != nil && expiredAt(next.certificate, now) {
		after.next = nil
	}
	if after.current == nil && after.next == nil {
		made, err := fresh()
		if err != nil {
			return nil, err
		}
		// Where clients trust CAs whose keys are lost, their leaves serve on until
		// clients can know the new one.
		if lost := orphans(&after, published, now, lives.Leaf); len(lost) > 0 {
			after.former, after.next = append(slices.Clone(after.former), lost...), made
		} else {
			after.current = made
		}
	}
	if after.current != nil && after.next == nil && !now.Before(renewal(after.current.certificate.NotBefore, after.current.certificate.NotAfter)) {
		if after.next, err = fresh(); err != nil {
			return nil, err
		}
	}
	if next := after.next; next != nil && contains(published, next.certificate) {
		if at := after.signsAt(lives); !at.IsZero() && !now.Before(at) {
			if current := after.current; current != nil {
				former := &member{certificate: current.certificate, leaf: current.leaf, retired: now}
				after.former = append(slices.Clone(after.former), former)
			}
			after.current, after.next = next, nil
		}
	}
	for _, m := range []**member{&after.current, &after.next} {
		if *m != nil && (*m).leaf < lives.Leaf {
			longer := **m
			longer.leaf = lives.Leaf
			*m = &longer
		}
	}
	if slices.ContainsFunc(after.former, func(m *member) bool { return m.gone(now) }) {
		after.former = slices.DeleteFunc(slices.Clone(after.former), func(m *member) bool { return m.gone(now) })
	}
	if s != nil && after.current == s.current && after.next == s.next && slices.Equal(after.former, s.former) {
		return s, nil
	}
	return &after, nil
}

// signsAt is when the next CA begins to sign; zero: that is not known yet.
func (s *state) signsAt(lives Lifetimes) time.Time {
	if s.next == nil || s.next.published.IsZero() {
		return time.Time{}
	}
	at, least := s.next.published.Add(lives.Lead), s.next.published.Add(lives.hurried())
	if s.current == nil {
		return least
	}
	// Leaves are to live for as long as they should.
	if last := s.current.certificate.NotAfter.Add(-lives.Leaf); last.Before(at) {
		at = last
	}
	if at.Before(least) {
		return least
	}
	return at
}

// orphans are the CAs that are published, and have not expired, but have no key.
func orphans(s *state, published []*x509.Certificate, now time.Time, leaf time.Duration) []*member {
	var list []*member
	for _, certificate := range published {
		if !expiredAt(certificate, now) && !contains(s.certificates(), certificate) {
			list = append(list, &member{certificate: certificate, leaf: leaf, retired: now})
		}
	}
	return list
}

// publish returns the state after certificates have been published that were
// missing; the same state when that changes nothing.
func (s *state) publish(now time.Time, missing []*x509.Certificate) *state {
	after := *s
	for _, m := range []**member{&after.current, &after.next} {
		if *m != nil && ((*m).published.IsZero() || contains(missing, (*m).certificate)) {
			known := **m
			known.published = now
			*m = &known
		}
	}
	if after.current == s.current && after.next == s.next {
		return s
	}
	return &after
}

// certificates are those to trust.
func (s *state) certificates() []*x509.Certificate {
	var list []*x509.Certificate
	for _, m := range append([]*member{s.current, s.next}, s.former...) {
		if m != nil {
			list = append(list, m.certificate)
		}
	}
	return list
}

// due is when advance has something to do next.
func (s *state) due(lives Lifetimes) time.Time {
	var first time.Time
	at := func(t time.Time) {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	if s.current != nil {
		at(s.current.certificate.NotAfter)
	}
	if s.current != nil && s.next == nil {
		at(renewal(s.current.certificate.NotBefore, s.current.certificate.NotAfter))
	}
	at(s.signsAt(lives))
	for _, m := range s.former {
		at(m.goneAt())
	}
	return first
}

func contains(list []*x509.Certificate, one *x509.Certificate) bool {
	return slices.ContainsFunc(list, func(other *x509.Certificate) bool { return bytes.Equal(other.Raw, one.Raw) })
}

// bundle writes certificates in PEM.
func bundle(certificates []*x509.Certificate) []byte {
	var text []byte
	for _, certificate := range certificates {
		text = append(text, encode(certificate)...)
	}
	return text
}

// parseBundle reads the CA certificates of a PEM text, and passes over all else.
func parseBundle(text []byte) []*x509.Certificate {
	var list []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return list
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err == nil && block.Type == "CERTIFICATE" && certificate.IsCA && !contains(list, certificate) {
			list = append(list, certificate)
		}
	}
}

// stateRecord is a state in the Secret.
type stateRecord struct {
	Current *memberRecord  `json:"current,omitempty"`
	Next    *memberRecord  `json:"next,omitempty"`
	Former  []memberRecord `json:"former,omitempty"`
}

type memberRecord struct {
	Certificate  string     `json:"certificate"`
	Key          string     `json:"key,omitempty"`
	Published    *time.Time `json:"published,omitempty"`
	Retired      *time.Time `json:"retired,omitempty"`
	LeafLifetime string     `json:"leafLifetime"`
}

// MarshalJSON implements json.Marshaler. The text has keys and is never logged.
func (s *state) MarshalJSON() ([]byte, error) {
	record := func(m *member) *memberRecord {
		if m == nil {
			return nil
		}
		r := &memberRecord{Certificate: string(encode(m.certificate)), LeafLifetime: m.leaf.String()}
		if m.authority != nil {
			r.Key = string(m.authority.keyPEM())
		}
		for to, from := range map[**time.Time]time.Time{&r.Published: m.published, &r.Retired: m.retired} {
			if !from.IsZero() {
				utc := from.UTC()
				*to = &utc
			}
		}
		return r
	}
	content := stateRecord{Current: record(s.current), Next: record(s.next)}
	for _, m := range s.former {
		content.Former = append(content.Former, *record(m))
	}
	return json.Marshal(content)
}

// UnmarshalJSON implements json.Unmarshaler. Errors hold nothing of the keys.
func (s *state) UnmarshalJSON(text []byte) error {
	var content stateRecord
	if err := json.Unmarshal(text, &content); err != nil {
		return errors.New("it is not JSON as the controller writes it")
	}
	var err error
	read := state{}
	if content.Current != nil {
		if read.current, err = content.Current.signer(); err != nil {
			return fmt.Errorf("CA that signs: %w", err)
		}
	}
	if content.Next != nil {
		if read.next, err = content.Next.signer(); err != nil {
			return fmt.Errorf("next CA: %w", err)
		}
	}
	for i := range content.Former {
		m, err := content.Former[i].member()
		if err != nil {
			return fmt.Errorf("former CA: %w", err)
		}
		read.former = append(read.former, m)
	}
	*s = read
	return nil
}

func (r *memberRecord) member() (*member, error) {
	certificates := parseBundle([]byte(r.Certificate))
	leaf, err := time.ParseDuration(r.LeafLifetime)
	if len(certificates) != 1 || err != nil {
		return nil, errors.New("there is no certificate, or no lifetime")
	}
	m := &member{certificate: certificates[0], leaf: leaf}
	for to, from := range map[*time.Time]*time.Time{&m.published: r.Published, &m.retired: r.Retired} {
		if from != nil {
			*to = *from
		}
	}
	return m, nil
}

func (r *memberRecord) signer() (*member, error) {
	m, err := r.member()
	if err != nil {
		return nil, err
	}
	if m.authority, err = parseAuthority([]byte(r.Certificate), []byte(r.Key)); err != nil {
		return nil, err
	}
	return m, nil
}
