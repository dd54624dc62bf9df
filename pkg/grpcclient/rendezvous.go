// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcclient

import (
	"context"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
)

// rendezvous is the name of the balancer: each BMC has its replica, by highest
// random weight, and the next in rank while that one is not connected. So all
// callers ask the same replica about a BMC, and read there what they have
// written. grpc-go's own ring_hash connects to a replica when it is first wanted
// and waits for one that does not answer, for seconds. Replicas that are not
// ready are not in the name of a headless Service.
const rendezvous = "rendezvous"

func init() {
	balancer.Register(base.NewBalancerBuilder(rendezvous, pickers{}, base.Config{}))
}

type pickers struct{}

// Build makes a picker of the replicas that are connected.
func (pickers) Build(info base.PickerBuildInfo) balancer.Picker {
	if len(info.ReadySCs) == 0 {
		return base.NewErrPicker(balancer.ErrNoSubConnAvailable)
	}
	p := &picker{}
	for conn, about := range info.ReadySCs {
		p.replicas = append(p.replicas, replica{address: about.Address.Addr, conn: conn})
	}
	return p
}

type replica struct {
	address string
	conn    balancer.SubConn
}

type picker struct {
	replicas []replica
	turn     atomic.Uint32
}

// Pick picks the replica of the call's BMC; calls without one take turns.
func (p *picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	bmc, ok := info.Ctx.Value(bmcKey{}).(string)
	if !ok {
		n := int(p.turn.Add(1)) % len(p.replicas)
		return balancer.PickResult{SubConn: p.replicas[n].conn}, nil
	}
	best, most := p.replicas[0], uint64(0)
	for _, r := range p.replicas {
		weight := weigh(r.address, bmc)
		if weight > most || weight == most && r.address < best.address {
			best, most = r, weight
		}
	}
	return balancer.PickResult{SubConn: best.conn}, nil
}

// weigh is how much a replica is to be the one of a BMC, the same in each
// process.
func weigh(address, bmc string) uint64 {
	return xxhash.Sum64String(address + "\x00" + bmc)
}

// bmcKey is the context key of a call's BMC, as namespace/name.
type bmcKey struct{}

// withBMC returns the context of a call with the BMC that its message names.
func withBMC(ctx context.Context, message any) context.Context {
	bmc := named(message)
	if bmc == nil {
		return ctx
	}
	return context.WithValue(ctx, bmcKey{}, bmc.GetNamespace()+"/"+bmc.GetName())
}
