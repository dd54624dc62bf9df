// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcclient

import (
	"time"

	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/dns"
)

// lookUpInterval is how often names are looked up again: so long may it take until
// a replica is found that was added.
const lookUpInterval = 5 * time.Second

// gRPC's own 30 s between two look-ups of a name would leave callers without any
// replica when all have been replaced in less, as a rollout does.
func init() { dns.SetMinResolutionInterval(time.Second) }

// names makes resolvers that look names up every lookUpInterval. Those of gRPC do so
// only when a connection is lost: who knows none but a controller that does not lead
// would never hear of the one that does.
type names struct{ resolver.Builder }

func newNames() names { return names{resolver.Get("dns")} }

// Build implements resolver.Builder.
func (n names) Build(target resolver.Target, cc resolver.ClientConn, options resolver.BuildOptions) (resolver.Resolver, error) {
	inner, err := n.Builder.Build(target, cc, options)
	if err != nil {
		return nil, err
	}
	r := &repeated{Resolver: inner, stop: make(chan struct{}), stopped: make(chan struct{})}
	go r.run()
	return r, nil
}

// repeated is a resolver that looks names up again and again.
type repeated struct {
	resolver.Resolver
	stop, stopped chan struct{}
}

func (r *repeated) run() {
	defer close(r.stopped)
	ticker := time.NewTicker(lookUpInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			r.ResolveNow(resolver.ResolveNowOptions{})
		case <-r.stop:
			return
		}
	}
}

// Close implements resolver.Resolver.
func (r *repeated) Close() {
	close(r.stop)
	<-r.stopped
	r.Resolver.Close()
}
