// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package certificate issues the certificates of the services and of the BMCs'
// Redfish endpoints.
//
// The CA is the controller's own. Its key and its past are in a Secret, its
// certificates in a ConfigMap that clients trust, both kept by all controllers
// with compare-and-swap. A CA's life:
//
//	published      its certificate is in the ConfigMap; it signs nothing yet
//	signs          a lead later, when all clients know it; the one before loses its key
//	former         its certificate stays until the last leaf of it has expired
//
// Services have a Secret each with a leaf of random key. The leaves of BMCs are
// functions of the CA's key, the BMC's UID and names, and the time (derive): they
// are stored nowhere, and still the same after a restart and from each controller.
//
// In place of all that, cert-manager may make the same Secrets, and a CA for the
// BMCs; the controller then publishes whom to trust.
package certificate
