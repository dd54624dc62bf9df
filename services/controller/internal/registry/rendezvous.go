// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import "github.com/cespare/xxhash/v2"

// weigh is how much a replica is to be the owner of a BMC, the same in each
// process.
func weigh(replica, bmc string) uint64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(replica) // Never fails.
	_, _ = d.WriteString("\x00")
	_, _ = d.WriteString(bmc)
	return d.Sum64()
}

// best returns the replica that is to be the owner of a BMC; nil when there are
// none.
func best(replicas []*replica, bmc string) *replica {
	var first *replica
	var most uint64
	for _, r := range replicas {
		weight := weigh(r.Name, bmc)
		if first == nil || weight > most || weight == most && r.Name < first.Name {
			first, most = r, weight
		}
	}
	return first
}
