// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package registry

// BalanceStep is how many BMCs begin to move at a time for balance alone.
const BalanceStep = balanceStep

// BestOf returns which of some replicas is to be the owner of a BMC.
func BestOf(names []string, bmc string) string {
	var replicas []*replica
	for _, name := range names {
		replicas = append(replicas, &replica{ReplicaID: ReplicaID{Name: name}})
	}
	if chosen := best(replicas, bmc); chosen != nil {
		return chosen.Name
	}
	return ""
}

// Weigh is how much a replica is to be the owner of a BMC.
func Weigh(replica, bmc string) uint64 { return weigh(replica, bmc) }
