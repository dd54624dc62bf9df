// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"maps"
	"slices"
	"sync"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// Subscribers are told of the changes of all machines. The zero value has none.
type Subscribers struct {
	mu   sync.RWMutex
	list map[*subscriber]struct{}
}

type subscriber struct{ changed func(hypervisor.Ref) }

// Subscribe calls changed after each change, until it is cancelled. The function
// must return at once.
func (s *Subscribers) Subscribe(changed func(hypervisor.Ref)) (cancel func()) {
	added := &subscriber{changed: changed}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil {
		s.list = map[*subscriber]struct{}{}
	}
	s.list[added] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.list, added)
	}
}

// Changed tells all subscribers that a machine has changed. They may subscribe and
// cancel meanwhile.
func (s *Subscribers) Changed(ref hypervisor.Ref) {
	s.mu.RLock()
	list := slices.Collect(maps.Keys(s.list))
	s.mu.RUnlock()
	for _, one := range list {
		one.changed(ref)
	}
}
