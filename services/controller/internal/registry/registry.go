// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/logkey"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
)

// Times that a Config without them has.
const (
	// DefaultSettleTime is more than the longest time between a frontend's
	// attempts to subscribe, 5 s (package registryclient).
	DefaultSettleTime = 6 * time.Second
	// DefaultHandOverTime is what the nodes of a cluster need to learn of a new
	// endpoint.
	DefaultHandOverTime = 3 * time.Second
	// DefaultAckTime is more than any frontend needs to open a port.
	DefaultAckTime = 30 * time.Second
	// DefaultRestTime is more than it takes a pod to follow another that was
	// replaced, and nodes to learn of the endpoints of those that moved by need.
	DefaultRestTime = 10 * time.Second
)

const (
	// retainTime is how long what a replica has is remembered after its stream
	// ended, so that it is told only what changed when it comes back.
	retainTime = 5 * time.Minute
	// maxReplicas and maxAgentReplicas bound the replicas of a shared frontend and
	// of an agent, those that are remembered included.
	maxReplicas      = 1024
	maxAgentReplicas = 8
	// sweepInterval is how often replicas are looked at that do not answer, or
	// are to be forgotten.
	sweepInterval = time.Second
	// epochShift is the place of the process's own number in a revision.
	epochShift = 40
	// balanceStep is how many BMCs of a frontend begin to move at a sweep for
	// balance alone, so that those that have to move are not behind them.
	balanceStep = 100
	// maxProblem bounds what a replica says of a BMC, in bytes.
	maxProblem = 1024
)

// Observer is told of what the reconcilers have to act on. Calls come one at a
// time and never while the registry is locked; a change that comes while one is
// being told of is told of once, however often it happens.
type Observer interface {
	// StatusChanged says that what Status answers about a BMC may have changed.
	StatusChanged(Ref)
	// ReplicasChanged says that a replica of a frontend came, went or is leaving.
	ReplicasChanged(registryv1.Protocol)
}

// Config of a registry. All but the times and Observer is needed.
type Config struct {
	Log     *slog.Logger
	Metrics prometheus.Registerer
	// Observer is told of changes; nil: nobody is.
	Observer Observer
	// SettleTime is how long after the start of Run the registry waits for
	// replicas before it tells the first what to serve.
	SettleTime time.Duration
	// HandOverTime is how long a replica goes on serving a BMC after another has
	// become its owner.
	HandOverTime time.Duration
	// AckTime is how long a replica may leave all messages unanswered before it
	// counts as dead.
	AckTime time.Duration
	// RestTime is how long after the last change of a frontend's replicas BMCs
	// begin to move that are served where they are, to the replicas that came.
	RestTime time.Duration
}

// ReplicaID names a replica of a frontend.
type ReplicaID struct {
	Protocol registryv1.Protocol
	// Agent is the identity of a frontend that serves one BMC alone; empty: it is
	// a shared one.
	Agent string
	// Name is what the replica calls itself, its pod's name.
	Name string
}

// Registry is the registry. Its methods may be called from several goroutines.
type Registry struct {
	config  Config
	metrics *metrics

	mu      sync.Mutex
	running bool
	opened  bool
	settled bool
	// expected are replicas without which the registry does not settle early.
	expected []ReplicaID
	// unknown are BMCs that there are and of which nothing has been put yet.
	unknown map[Ref]struct{}
	// settleBy is when it settles anyway.
	settleBy time.Time
	bmcs     map[Ref]*bmc
	groups   map[groupID]*group
	replicas map[ReplicaID]*replica
	// revision of the last message, of any session.
	revision uint64
	// version of the last content.
	version uint64

	// What the observer has not been told yet.
	changedBMCs     map[Ref]struct{}
	changedReplicas map[registryv1.Protocol]struct{}
	changed         chan struct{} // holds one token when there is something
	unsettled       chan struct{} // the same for what Run's settling waits for
}

// bmc is one BMC.
type bmc struct {
	ref      Ref
	key      string
	services [len(protocols)]*service
}

// groupID names replicas of which each can stand in for the other.
type groupID struct {
	protocol registryv1.Protocol
	agent    string
}

type group struct {
	services map[*service]struct{}
	replicas []*replica // those that are connected
	// changed is when a replica last came, went or began to end.
	changed time.Time
	// unbalanced: there are BMCs that stay where they are for the time being.
	unbalanced bool
}

// service is a BMC over one protocol.
type service struct {
	bmc      *bmc
	id       groupID
	content  *registryv1.BMC
	version  uint64
	owner    *replica
	holdings map[*replica]*holding // of replicas that are connected and are to serve it
	// former is what it was before it got other frontends, until those serve.
	former *service
}

// replica is a replica of a frontend, connected or remembered.
type replica struct {
	ReplicaID
	session  *Session // nil: not connected
	draining bool
	left     time.Time // when it was last connected
	holdings map[Ref]*holding
	// kept are BMCs that it was told to leave as they are, and that it may have of
	// an earlier controller.
	kept map[Ref]struct{}
}

func (r *replica) group() groupID { return groupID{r.Protocol, r.Agent} }

// holding is what a replica has of a BMC, or is to have.
type holding struct {
	ref     Ref
	replica *replica
	service *service // nil: the replica is not to serve it
	queued  bool
	// unsure: the last message may not have arrived.
	unsure bool
	// due: the last message is unanswered.
	due bool
	// revision of the last message; 0: there was none.
	revision uint64
	// version that the last message told to serve; 0: none.
	version uint64
	// What the replica answered, about which version; 0: nothing.
	answered uint64
	serving  bool
	problem  string
	// leaving: it was the owner and is to stop serving at a later time.
	leaving *time.Timer
	leaveAt time.Time
}

// New makes a registry without BMCs. It serves nobody before Run.
func New(config Config) (*Registry, error) {
	if config.Log == nil || config.Metrics == nil {
		return nil, errors.New("make registry: log and metrics are needed")
	}
	for _, d := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{{&config.SettleTime, DefaultSettleTime}, {&config.HandOverTime, DefaultHandOverTime}, {&config.AckTime, DefaultAckTime}, {&config.RestTime, DefaultRestTime}} {
		if *d.value <= 0 {
			*d.value = d.fallback
		}
	}
	r := &Registry{
		config:          config,
		bmcs:            map[Ref]*bmc{},
		groups:          map[groupID]*group{},
		replicas:        map[ReplicaID]*replica{},
		revision:        (1 + rand.Uint64N(1<<(64-epochShift)-1)) << epochShift, //nolint:gosec // It is no secret.
		changedBMCs:     map[Ref]struct{}{},
		changedReplicas: map[registryv1.Protocol]struct{}{},
		changed:         make(chan struct{}, 1),
		unsettled:       make(chan struct{}, 1),
	}
	var err error
	if r.metrics, err = newMetrics(config.Metrics, r); err != nil {
		return nil, err
	}
	return r, nil
}

// Open says that all BMCs have been put that there are, but for some of which
// nothing is known yet: replicas leave those as they are until they are put or
// removed. Expected are the replicas that clients are being sent to: the registry
// answers its first subscriber when they have all subscribed, or SettleTime after
// the start of Run, so that BMCs do not move to and fro because a replica was the
// first to find a new controller. It is called once.
func (r *Registry) Open(unknown []Ref, expected ...ReplicaID) {
	r.mu.Lock()
	r.opened, r.expected, r.unknown = true, expected, map[Ref]struct{}{}
	for _, ref := range unknown {
		if r.bmcs[ref] == nil {
			r.unknown[ref] = struct{}{}
		}
	}
	r.mu.Unlock()
	signal(r.unsettled)
}

// learn takes note that a BMC is known now. Replicas that were told to leave it as
// it is, and do not serve it, are to stop.
func (r *Registry) learn(ref Ref) {
	if _, ok := r.unknown[ref]; !ok {
		return
	}
	delete(r.unknown, ref)
	for _, replica := range r.replicas {
		if _, ok := replica.kept[ref]; !ok {
			continue
		}
		delete(replica.kept, ref)
		if replica.holdings[ref] != nil {
			continue
		}
		h := &holding{ref: ref, replica: replica, unsure: true}
		replica.holdings[ref] = h
		if replica.connected() {
			replica.session.enqueue(h)
		}
	}
}

// Run serves subscribers until the context ends; then it ends their streams. It
// may be called once.
func (r *Registry) Run(ctx context.Context) error {
	r.mu.Lock()
	r.running, r.settleBy = true, time.Now().Add(r.config.SettleTime)
	r.mu.Unlock()
	defer r.stop()
	settle := time.NewTimer(r.config.SettleTime)
	defer settle.Stop()
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.unsettled:
			r.settle(ctx)
		case <-settle.C:
			r.settle(ctx)
		case <-sweep.C:
			r.sweep(ctx)
		case <-r.changed:
			r.tell()
		}
	}
}

// settle begins to answer if it is time to.
func (r *Registry) settle(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.settled || !r.opened {
		return
	}
	missing := slices.ContainsFunc(r.expected, func(id ReplicaID) bool { return !r.replicas[id].connected() })
	if missing && time.Now().Before(r.settleBy) {
		return
	}
	r.settled, r.expected = true, nil
	for id := range r.groups {
		r.assignGroup(id)
	}
	connected := 0
	for _, replica := range r.replicas {
		if replica.connected() {
			replica.session.begin()
			connected++
		}
	}
	r.config.Log.InfoContext(ctx, "registry serves", "bmcs", len(r.bmcs), "replicas", connected)
}

func (r *Registry) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = false
	for _, replica := range r.replicas {
		if replica.connected() {
			replica.session.end(errNotServing())
		}
	}
}

// sweep ends the streams of replicas that do not answer, forgets those that have
// been gone for long, and balances.
func (r *Registry) sweep(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for id, replica := range r.replicas {
		switch {
		case !replica.connected():
			if now.Sub(replica.left) > retainTime {
				r.forget(id)
			}
		case replica.session.due > 0 && now.Sub(replica.session.heard) > r.config.AckTime:
			r.config.Log.WarnContext(ctx, "frontend does not answer; its stream is ended",
				logkey.Protocol, id.Protocol.String(), "replica", id.Name, "unanswered", replica.session.due)
			r.disconnect(replica.session, grpcstatus.New(errorsv1.Reason_REASON_LIMIT_REACHED,
				"%d messages have not been acknowledged for %v", replica.session.due, r.config.AckTime))
		}
	}
	for _, g := range r.groups {
		if g.unbalanced && r.settled && now.Sub(g.changed) >= r.config.RestTime {
			r.balance(g)
		}
	}
}

// makeRoom tells whether a group may have one more replica. It forgets the one
// that has been gone for longest if that is needed.
func (r *Registry) makeRoom(id groupID) bool {
	most := maxReplicas
	if id.agent != "" {
		most = maxAgentReplicas
	}
	n := 0
	var oldest *replica
	for _, replica := range r.replicas {
		if replica.group() != id {
			continue
		}
		n++
		if !replica.connected() && (oldest == nil || replica.left.Before(oldest.left)) {
			oldest = replica
		}
	}
	if n < most {
		return true
	}
	if oldest == nil {
		return false
	}
	r.forget(oldest.ReplicaID)
	return true
}

// forget drops what is remembered of a replica that is not connected.
func (r *Registry) forget(id ReplicaID) {
	gone := r.replicas[id]
	delete(r.replicas, id)
	if g := r.groups[gone.group()]; g != nil {
		for s := range g.services {
			if s.owner == gone {
				s.owner = nil
				r.statusChanged(s.bmc.ref)
			}
		}
	}
	r.dropGroup(gone.group())
}

// tell passes on what has changed.
func (r *Registry) tell() {
	r.mu.Lock()
	bmcs, replicas := r.changedBMCs, r.changedReplicas
	r.changedBMCs, r.changedReplicas = map[Ref]struct{}{}, map[registryv1.Protocol]struct{}{}
	r.mu.Unlock()
	if r.config.Observer == nil {
		return
	}
	for protocol := range replicas {
		r.config.Observer.ReplicasChanged(protocol)
	}
	for ref := range bmcs {
		r.config.Observer.StatusChanged(ref)
	}
}

func (r *Registry) statusChanged(ref Ref) {
	r.changedBMCs[ref] = struct{}{}
	signal(r.changed)
}

func (r *Registry) replicasChanged(protocol registryv1.Protocol) {
	r.changedReplicas[protocol] = struct{}{}
	signal(r.changed)
}

// signal puts a token into a channel that holds one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Put adds a BMC or changes it. A frontend is told when what it gets has
// changed, and no other. One that gets other frontends (its Agent) is served by
// the former ones, as it was, for HandOverTime; they are its owners for as long as
// the others do not serve.
func (r *Registry) Put(entry Entry) {
	ref := RefOf(entry.BMC.GetBmc())
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.bmcs[ref]
	if b == nil {
		b = &bmc{ref: ref, key: ref.String()}
		r.bmcs[ref] = b
	}
	for i, protocol := range protocols {
		content, id := contentFor(entry.BMC, protocol), groupID{protocol, entry.Agent}
		s := b.services[i]
		var former *service
		if s != nil && (content == nil || s.id != id) {
			if content == nil {
				r.removeService(s)
			} else {
				former = r.handOver(s)
			}
			s, b.services[i] = nil, nil
		}
		if content == nil || s != nil && same(s.content, content) {
			continue
		}
		r.version++
		if s == nil {
			s = &service{bmc: b, id: id, content: content, version: r.version, holdings: map[*replica]*holding{}, former: former}
			b.services[i] = s
			r.groupOf(id).services[s] = struct{}{}
		} else {
			s.content, s.version = content, r.version
			for _, h := range s.holdings {
				h.replica.session.enqueue(h)
			}
		}
		r.statusChanged(ref)
		r.assign(s)
	}
	r.learn(ref)
}

// Remove removes a BMC; one that is not there is no error.
func (r *Registry) Remove(ref Ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.learn(ref)
	b := r.bmcs[ref]
	if b == nil {
		return
	}
	delete(r.bmcs, ref)
	for _, s := range b.services {
		if s != nil {
			r.removeService(s)
		}
	}
	for _, replica := range r.replicas {
		if h := replica.holdings[ref]; h != nil && h.service != nil {
			h.release() // It was being handed over to another group.
		}
	}
}

func (r *Registry) removeService(s *service) {
	for _, h := range s.holdings {
		h.release()
	}
	r.dropService(s)
}

// dropService takes a service from its group.
func (r *Registry) dropService(s *service) {
	if g := r.groups[s.id]; g != nil {
		delete(g.services, s)
		r.dropGroup(s.id)
	}
	r.statusChanged(s.bmc.ref)
}

// Connected tells whether a replica of each frontend of an agent is connected and
// stays, of the shared frontends when agent is empty.
func (r *Registry) Connected(agent string, protocols ...registryv1.Protocol) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !slices.ContainsFunc(protocols, func(protocol registryv1.Protocol) bool {
		g := r.groups[groupID{protocol, agent}]
		return g == nil || !slices.ContainsFunc(g.replicas, func(replica *replica) bool { return !replica.draining })
	})
}

func (r *Registry) groupOf(id groupID) *group {
	g := r.groups[id]
	if g == nil {
		g = &group{services: map[*service]struct{}{}}
		r.groups[id] = g
	}
	return g
}

// dropGroup drops a group that nobody needs.
func (r *Registry) dropGroup(id groupID) {
	if g := r.groups[id]; g != nil && len(g.services) == 0 && len(g.replicas) == 0 {
		delete(r.groups, id)
	}
}

// SetDraining says that a replica is going to end, or not after all: its BMCs
// are handed over while it still serves them.
func (r *Registry) SetDraining(id ReplicaID, draining bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	replica := r.replicas[id]
	if replica == nil || replica.draining == draining {
		return
	}
	replica.draining = draining
	if g := r.groups[replica.group()]; g != nil {
		g.changed = time.Now()
	}
	r.replicasChanged(id.Protocol)
	r.assignGroup(replica.group())
}

// State is how far the owner of a BMC is.
type State int

// States of a BMC over a protocol.
const (
	// Pending: the owner has not answered yet, or there is none.
	Pending State = iota
	// Serving: clients can log in, with what the registry says now.
	Serving
	// Failed: the owner can't serve the BMC.
	Failed
)

// Status is how a BMC is served over a protocol.
type Status struct {
	// Agent is the identity of the frontends that serve the BMC alone; empty: the
	// shared ones do.
	Agent string
	// Replica is the owner's name, to which clients are to be sent; empty: none.
	Replica string
	// Connected tells whether the owner is.
	Connected bool
	State     State
	// Problem is why it is not served, for people.
	Problem string
}

// Status returns how a BMC is served over a protocol; false when it is not to
// be.
func (r *Registry) Status(ref Ref, protocol registryv1.Protocol) (Status, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.bmcs[ref]
	if b == nil {
		return Status{}, false
	}
	i := slices.Index(protocols[:], protocol)
	if i < 0 || b.services[i] == nil {
		return Status{}, false
	}
	return b.services[i].status(), true
}

func (s *service) status() Status {
	status := s.ownStatus()
	if status.State == Pending && s.former != nil {
		if former := s.former.status(); former.State == Serving {
			return former
		}
	}
	return status
}

func (s *service) ownStatus() Status {
	if s.owner == nil {
		return Status{Agent: s.id.agent, Problem: "no frontend is connected"}
	}
	status := Status{Agent: s.id.agent, Replica: s.owner.Name, Connected: s.owner.connected()}
	h := s.holdings[s.owner]
	switch {
	case !status.Connected:
		status.Problem = "the frontend is not connected"
	case h == nil || h.answered != s.version:
		status.Problem = "the frontend has not answered yet"
	case h.serving:
		status.State = Serving
	default:
		status.State, status.Problem = Failed, h.problem
	}
	return status
}

// Replica is a replica as the reconcilers see it.
type Replica struct {
	ReplicaID
	Connected, Draining bool
	// BMCs is how many it is the owner of.
	BMCs int
}

// Replicas returns the replicas that speak a protocol, those that were connected
// a while ago too, by agent and name.
func (r *Registry) Replicas(protocol registryv1.Protocol) []Replica {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []Replica
	for id, replica := range r.replicas {
		if id.Protocol != protocol {
			continue
		}
		one := Replica{ReplicaID: id, Connected: replica.connected(), Draining: replica.draining}
		if g := r.groups[replica.group()]; g != nil {
			for s := range g.services {
				if s.owner == replica {
					one.BMCs++
				}
			}
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b Replica) int {
		if c := strings.Compare(a.Agent, b.Agent); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return list
}

// Serving returns nil while Run does, else what subscribers are told.
func (r *Registry) Serving() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.running {
		return errNotServing()
	}
	return nil
}

func errNotServing() error {
	return grpcstatus.New(errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE, "this controller does not serve the registry")
}
