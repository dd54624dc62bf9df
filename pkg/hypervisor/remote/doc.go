// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package remote puts a hypervisor.Hypervisor into another process: Register
// serves one over gRPC, and a Client is one that reaches it. It exists so that
// the simulated machines outlive the services that act on them.
//
// Both ends are of one build, so the protocol is no public API and has no .proto
// file: the messages are JSON of the Go types of this package, carried as
// google.protobuf.BytesValue.
package remote
