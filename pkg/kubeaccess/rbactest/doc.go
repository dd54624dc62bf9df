// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package rbactest runs services under ServiceAccounts that may do what the
// manifests of deploy/rbac/services say and nothing else, in tests against a real
// API server: a request that is refused fails the test and names the rule that
// lacks, and a rule that no test uses fails the run.
package rbactest
