// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package registry knows which BMCs there are, which replica of each frontend
// owns each, and what the replicas say of them.
//
// Of the frontends that are connected each BMC has one owner per protocol, by
// rendezvous hashing: when a replica comes or goes only its own BMCs move. A
// planned move has three steps: the new owner is told to serve the BMC, clients
// are sent to it once it says that it does, and HandOverTime later the old owner
// is told to stop. A replica that is gone has no say: its successor is the owner
// at once, and serves as soon as it says so. BMCs that are served where they are
// move to a replica that came only when replicas have neither come nor gone for
// RestTime, some at a time: a move ends the sessions of clients, and costs the
// cluster what BMCs without an owner need first.
//
// One process serves the registry, the leader of the controllers; the others
// refuse subscribers, which then try the next. What a leader knows begins with
// its BMCs, which its reconcilers read anew, and with the replicas that subscribe
// to it. So it answers nobody before both are there (Open, SettleTime): until
// then frontends serve what they know.
//
// Revisions count the messages to all replicas, above a random number that is
// the process's own. A revision of another process is so told from an own one,
// and answered with all BMCs.
package registry
