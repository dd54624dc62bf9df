// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/logkey"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
)

// Acknowledgements that tell nothing new, as of BMCs that the replica had from
// an earlier controller, are passed over up to this rate per second, after a
// burst.
const (
	strayRate  = 10
	strayBurst = 20000
)

// Session is the stream of a replica. What it has to be told is not stored as
// messages but as the set of BMCs that it has to be told about: so a replica
// that is slow gets the newest of each, and costs no more than one that is not.
type Session struct {
	registry *Registry
	replica  *replica
	strays   *rate.Limiter
	// hello's revision.
	revision uint64

	// Below the registry's lock.
	queue []*holding
	// first is how many of the queue belong to the first part of the stream.
	first  int
	begun  bool // the queue is filled
	full   bool
	synced bool
	due    int       // messages without answer
	heard  time.Time // when one was last answered, or became due after none was
	err    error     // why it ended

	wake chan struct{}
	done chan struct{}
}

// Connect begins a session of a replica, of the shared frontends when agent is
// empty, else of the identity that serves the BMCs alone whose agent it is. It
// takes the place of an earlier one of the same replica.
func (r *Registry) Connect(ctx context.Context, agent string, hello *registryv1.Hello) (*Session, error) {
	if !slices.Contains(protocols[:], hello.GetProtocol()) || hello.GetReplica() == "" {
		return nil, grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "the hello names no protocol or no replica")
	}
	id := ReplicaID{Protocol: hello.GetProtocol(), Agent: agent, Name: hello.GetReplica()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.running {
		return nil, errNotServing()
	}
	known := r.replicas[id]
	if known == nil {
		if !r.makeRoom(groupID{id.Protocol, id.Agent}) {
			return nil, grpcstatus.New(errorsv1.Reason_REASON_LIMIT_REACHED, "the frontend has too many replicas")
		}
		known = &replica{ReplicaID: id, holdings: map[Ref]*holding{}}
		r.replicas[id] = known
	}
	if known.connected() {
		r.config.Log.WarnContext(ctx, "frontend subscribes again; its earlier stream is ended",
			logkey.Protocol, id.Protocol.String(), "replica", id.Name)
		known.session.end(grpcstatus.New(errorsv1.Reason_REASON_OPERATION_UNDER_WAY, "another stream of replica %s took over", id.Name))
	} else {
		g := r.groupOf(known.group())
		g.replicas = append(g.replicas, known)
		g.changed = time.Now()
		r.replicasChanged(id.Protocol)
		r.config.Log.InfoContext(ctx, "frontend subscribed", logkey.Protocol, id.Protocol.String(), "replica", id.Name)
	}
	s := &Session{
		registry: r, replica: known, revision: hello.GetRevision(),
		strays: rate.NewLimiter(strayRate, strayBurst),
		wake:   make(chan struct{}, 1), done: make(chan struct{}),
	}
	known.session = s
	s.resume()
	if r.settled {
		r.assignGroup(known.group())
		s.begin()
	} else {
		signal(r.unsettled)
	}
	return s, nil
}

// resume finds out what the replica has.
func (s *Session) resume() {
	oldest := s.registry.revision >> epochShift << epochShift
	known := s.revision >= oldest && s.revision <= s.registry.revision
	// A replica of which nothing is remembered may have had BMCs nevertheless.
	s.full = !known || len(s.replica.holdings) == 0
	for ref, h := range s.replica.holdings {
		h.queued, h.due = false, false
		if h.service != nil {
			s.registry.statusChanged(ref)
		}
		if s.full {
			// A new process, or one whose past is unknown.
			h.revision, h.version, h.answered, h.unsure = 0, 0, 0, false
			h.serving, h.problem = false, ""
			if h.service == nil {
				delete(s.replica.holdings, ref)
			}
		} else if h.revision > s.revision {
			h.answered, h.serving, h.problem, h.unsure = 0, false, "", true
		}
	}
}

// begin fills the queue with the first part.
func (s *Session) begin() {
	s.begun = true
	for _, h := range s.replica.holdings {
		s.enqueue(h)
	}
	s.first = len(s.queue)
	signal(s.wake)
}

// enqueue makes the replica be told of a BMC, if there is anything to tell.
func (s *Session) enqueue(h *holding) {
	if !s.begun || h.queued || !h.stale() {
		return
	}
	h.queued = true
	s.queue = append(s.queue, h)
	signal(s.wake)
}

// end makes Next and Acknowledge return an error.
func (s *Session) end(err error) {
	if s.err == nil {
		s.err = err
		close(s.done)
	}
}

// Done returns a channel that is closed when the session has ended; Err says
// why.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err returns why the session has ended, as an error of package grpcstatus; nil
// when it has not.
func (s *Session) Err() error {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	return s.err
}

// BMCs returns those that the replica was told to serve.
func (s *Session) BMCs() []Ref {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	var refs []Ref
	if s.err == nil {
		for ref, h := range s.replica.holdings {
			if h.version != 0 {
				refs = append(refs, ref)
			}
		}
	}
	return refs
}

// Close ends the session: the replica counts as dead.
func (s *Session) Close() {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	s.registry.disconnect(s, errNotServing())
}

// disconnect ends a session and gives its BMCs to other replicas.
func (r *Registry) disconnect(s *Session, err error) {
	s.end(err)
	gone := s.replica
	if gone.session != s {
		return // Another took over.
	}
	gone.session, gone.left = nil, time.Now()
	for _, h := range gone.holdings {
		h.stay()
		if h.service != nil {
			delete(h.service.holdings, gone)
			h.service = nil
		}
	}
	if g := r.groups[gone.group()]; g != nil {
		g.replicas = slices.DeleteFunc(g.replicas, func(other *replica) bool { return other == gone })
		g.changed = time.Now()
		for s := range g.services {
			if s.owner == gone {
				r.statusChanged(s.bmc.ref)
			}
		}
		r.dropGroup(gone.group())
	}
	r.replicasChanged(gone.Protocol)
	r.config.Log.Info("frontend is gone", logkey.Protocol, gone.Protocol.String(), "replica", gone.Name)
	if r.running {
		r.assignGroup(gone.group())
	}
}

// Next waits for a message to the replica.
func (s *Session) Next(ctx context.Context) (*registryv1.SubscribeResponse, error) {
	for {
		response, err := s.next()
		if response != nil || err != nil {
			return response, err
		}
		select {
		case <-s.wake:
		case <-s.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// next returns the next message; nil when there is none yet.
func (s *Session) next() (*registryv1.SubscribeResponse, error) {
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.err != nil || !s.begun {
		return nil, s.err
	}
	for {
		if s.first == 0 && !s.synced {
			s.synced = true
			return &registryv1.SubscribeResponse{
				Revision: r.revision,
				Payload:  &registryv1.SubscribeResponse_Synced{Synced: &registryv1.Synced{Full: s.full, Unknown: s.keep()}},
			}, nil
		}
		if len(s.queue) == 0 {
			s.queue = nil // Let go of what it was an end of.
			return nil, nil
		}
		h := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		s.first = max(s.first-1, 0)
		h.queued = false
		if h.stale() {
			return s.tell(h), nil
		}
		if h.service == nil {
			delete(s.replica.holdings, h.ref) // It was never told.
		}
	}
}

// keep returns the BMCs that the replica is to leave as they are. One that was told
// so before, by this registry, does.
func (s *Session) keep() []*referencev1.BMCReference {
	if !s.full {
		return nil
	}
	s.replica.kept = maps.Clone(s.registry.unknown)
	var refs []*referencev1.BMCReference
	for ref := range s.replica.kept {
		refs = append(refs, ref.Message())
	}
	return refs
}

// tell makes the message about a BMC.
func (s *Session) tell(h *holding) *registryv1.SubscribeResponse {
	s.registry.revision++
	h.revision, h.unsure, h.version = s.registry.revision, false, 0
	if !h.due {
		h.due = true
		if s.due++; s.due == 1 {
			s.heard = time.Now()
		}
	}
	response := &registryv1.SubscribeResponse{Revision: h.revision}
	if h.service == nil {
		response.Payload = &registryv1.SubscribeResponse_Removal{Removal: h.ref.Message()}
		return response
	}
	h.version = h.service.version
	response.Payload = &registryv1.SubscribeResponse_Upsert{Upsert: h.service.content}
	return response
}

// Acknowledge takes what the replica says of a BMC.
func (s *Session) Acknowledge(ack *registryv1.Acknowledgement) error {
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	h := s.replica.holdings[RefOf(ack.GetBmc())]
	if h == nil || h.revision == 0 || h.unsure || ack.GetRevision() != h.revision {
		return s.stray()
	}
	if h.due {
		h.due = false
		s.due--
		s.heard = time.Now()
	}
	if h.version == 0 { // It was told to stop.
		if h.service == nil {
			delete(s.replica.holdings, h.ref)
		}
		return nil
	}
	serving, problem := ack.GetServing(), clean(ack.GetMessage())
	if h.answered == h.version && h.serving == serving && h.problem == problem {
		return s.stray()
	}
	h.answered, h.serving, h.problem = h.version, serving, problem
	if h.service != nil {
		if serving && h.replica == h.service.owner {
			h.service.former = nil
		}
		r.statusChanged(h.ref)
		r.assign(h.service)
	}
	return nil
}

// stray passes over an acknowledgement that tells nothing new.
func (s *Session) stray() error {
	s.registry.metrics.strays.Inc()
	if s.strays.Allow() {
		return nil
	}
	return grpcstatus.New(errorsv1.Reason_REASON_LIMIT_REACHED, "too many acknowledgements of what was not sent")
}

// clean makes a replica's text fit for conditions and logs.
func clean(text string) string {
	if len(text) > maxProblem {
		text = text[:maxProblem]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}
