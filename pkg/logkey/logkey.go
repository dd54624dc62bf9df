// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package logkey has the attribute keys of log lines, so that the same thing
// has the same name in every service.
package logkey

// Attribute keys. Values never hold passwords, tokens or key material.
const (
	// Request is the id that follows a call from the protocol to the backend.
	Request = "request"
	// Namespace is the Kubernetes namespace of a BMC.
	Namespace = "namespace"
	// BMC is the name of a BMC.
	BMC = "bmc"
	// VM is the name of a VirtualMachine.
	VM = "vm"
	// Protocol is what a client speaks: ipmi, redfish, grpc.
	Protocol = "protocol"
	// User is the name that a client logged in with.
	User = "user"
	// Identity is the authenticated caller of a gRPC call.
	Identity = "identity"
	// Source is a client's address.
	Source = "source"
	// Session is a client's session id, in a form that can't be used to take
	// the session over.
	Session = "session"
	// RPC is a gRPC method's full name.
	RPC = "rpc"
	// Code is a gRPC code or protocol status.
	Code = "code"
	// Reason is a bmc.errors.v1.Reason.
	Reason = "reason"
	// Action is what a mutating call asks for.
	Action = "action"
	// Duration is how long something took.
	Duration = "duration"
	// Error is an error's text.
	Error = "error"
	// Address is an address that is listened on or connected to.
	Address = "address"
	// Operation is the id of a power operation.
	Operation = "operation"
	// State is a state that something is in.
	State = "state"
	// Revision is a revision of the registry.
	Revision = "revision"
)
