// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package hypervisor

import "errors"

// ErrNoBMC says that a reference names no BMC.
var ErrNoBMC = errors.New("BMC not found")

// Resolver finds the machine of a BMC.
type Resolver interface {
	// Resolve returns the machine behind the BMC of that namespace and name;
	// ErrNoBMC when there is no such BMC. The machine need not exist.
	Resolve(namespace, name string) (Ref, error)
}

// ResolverFunc is a function that is a Resolver.
type ResolverFunc func(namespace, name string) (Ref, error)

// Resolve calls f.
func (f ResolverFunc) Resolve(namespace, name string) (Ref, error) { return f(namespace, name) }

// SameName gives each machine a BMC of the machine's own name.
func SameName(machines Machines) Resolver {
	return ResolverFunc(func(namespace, name string) (Ref, error) {
		ref := Ref{Namespace: namespace, Name: name}
		if _, err := machines.Get(ref); errors.Is(err, ErrNotFound) {
			return Ref{}, ErrNoBMC
		}
		return ref, nil
	})
}

// FixedNames is a Resolver for a set of BMCs that does not change; the keys
// name BMCs, the values machines.
type FixedNames map[Ref]Ref

// Resolve looks the BMC up.
func (f FixedNames) Resolve(namespace, name string) (Ref, error) {
	ref, ok := f[Ref{Namespace: namespace, Name: name}]
	if !ok {
		return Ref{}, ErrNoBMC
	}
	return ref, nil
}
