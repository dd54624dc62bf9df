// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"slices"
	"time"
)

// assignGroup decides anew about all BMCs of a group. The registry is locked, as
// in all of this file.
func (r *Registry) assignGroup(id groupID) {
	g := r.groups[id]
	if g == nil || !r.settled {
		return
	}
	candidates := g.candidates()
	for s := range g.services {
		r.assignTo(s, g.target(candidates, s))
	}
}

// assign decides anew about one BMC.
func (r *Registry) assign(s *service) {
	g := r.groups[s.id]
	if g == nil || !r.settled {
		return
	}
	// One that is being handed over is nobody's any more.
	if _, ok := g.services[s]; ok {
		r.assignTo(s, g.target(g.candidates(), s))
	}
}

// target is the replica that a BMC is to get now. A BMC whose owner stays and
// does not fail keeps it while replicas come and go: a move ends its sessions,
// and those that have to move would wait for it. balance moves it later.
func (g *group) target(candidates []*replica, s *service) *replica {
	target := best(candidates, s.bmc.key)
	if target == s.owner || s.holdings[target] != nil || !slices.Contains(candidates, s.owner) {
		return target
	}
	if h := s.holdings[s.owner]; h == nil || h.answered == s.version && !h.serving {
		return target
	}
	g.unbalanced = true
	return s.owner
}

// balance begins to move some of a group's BMCs to the replicas that they belong
// to.
func (r *Registry) balance(g *group) {
	g.unbalanced = false
	candidates := g.candidates()
	begun := 0
	for s := range g.services {
		target := best(candidates, s.bmc.key)
		if target == nil || target == s.owner || s.holdings[target] != nil {
			continue
		}
		if begun == balanceStep {
			g.unbalanced = true
			return
		}
		begun++
		r.assignTo(s, target)
	}
}

// candidates are the replicas that can be owners: those that stay, if there are
// any.
func (g *group) candidates() []*replica {
	stay := make([]*replica, 0, len(g.replicas))
	for _, replica := range g.replicas {
		if !replica.draining {
			stay = append(stay, replica)
		}
	}
	if len(stay) == 0 {
		return g.replicas
	}
	return stay
}

// assignTo brings a BMC one step nearer to a replica, which is nil when there is
// none.
func (r *Registry) assignTo(s *service, target *replica) {
	if target != nil {
		s.hold(target)
	}
	owner := s.owner
	switch {
	case target == nil, owner == target:
		// Without replicas the last owner may come back.
	case s.servedBy(target):
		s.owner = target
	case owner.connected():
		// It goes on until the target serves.
	default:
		s.owner = target
		for replica := range s.holdings {
			if s.servedBy(replica) {
				s.owner = replica
			}
		}
	}
	if s.owner != owner {
		r.metrics.moved(s.id.protocol)
		r.statusChanged(s.bmc.ref)
		if h := s.holdings[owner]; h != nil {
			r.leaveLater(h)
		}
	}
	for replica, h := range s.holdings {
		switch {
		case replica == s.owner, replica == target:
			h.stay()
		case h.leaving == nil:
			h.release()
		}
	}
}

// handOver takes a BMC from its group. The replicas that serve it go on for
// HandOverTime, while those of another group begin. It returns what goes on.
func (r *Registry) handOver(s *service) *service {
	former := s
	if s.ownStatus().State != Serving {
		former = s.former
	}
	for replica, h := range s.holdings {
		switch {
		case h.leaving != nil:
		case s.servedBy(replica):
			r.leaveLater(h)
		default:
			h.release()
		}
	}
	r.dropService(s)
	return former
}

// leaveLater makes a former owner stop serving a BMC at a later time.
func (r *Registry) leaveLater(h *holding) {
	h.leaveAt = time.Now().Add(r.config.HandOverTime)
	h.leaving = time.AfterFunc(r.config.HandOverTime, func() { r.leave(h) })
}

// leave makes a former owner stop serving a BMC, if it was not chosen again.
func (r *Registry) leave(h *holding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.leaving != nil && !time.Now().Before(h.leaveAt) {
		h.release()
		r.statusChanged(h.ref)
	}
}

// servedBy tells whether a replica serves what the registry says now.
func (s *service) servedBy(r *replica) bool {
	h := s.holdings[r]
	return h != nil && r.connected() && h.serving && h.answered == s.version
}

// hold makes a replica serve the BMC.
func (s *service) hold(r *replica) {
	if s.holdings[r] != nil {
		return
	}
	h := r.holdings[s.bmc.ref]
	if h == nil {
		h = &holding{ref: s.bmc.ref, replica: r}
		r.holdings[s.bmc.ref] = h
	}
	h.service = s
	s.holdings[r] = h
	r.session.enqueue(h)
}

// release makes the replica stop serving the BMC.
func (h *holding) release() {
	h.stay()
	delete(h.service.holdings, h.replica)
	h.service = nil
	if h.replica.connected() {
		h.replica.session.enqueue(h)
	}
}

// stay stops the time after which the replica is to stop serving.
func (h *holding) stay() {
	if h.leaving != nil {
		h.leaving.Stop()
		h.leaving = nil
	}
}

// stale tells whether the replica has to be told something.
func (h *holding) stale() bool {
	if h.service == nil {
		return h.unsure || h.version != 0
	}
	return h.unsure || h.version != h.service.version
}

func (r *replica) connected() bool { return r != nil && r.session != nil }
