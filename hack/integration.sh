#!/usr/bin/env bash
# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0
#
# Runs, against the cluster of KUBECONFIG, the tests of our custom resource
# definition, of who may call what and of the controller, and the contract suite
# of pkg/hypervisor and the power service's acceptance suite, those against the
# simulator too; the services as processes: one-time boot, and certificates that the
# controller renews under load; then the product as pods, which die while clients
# watch.
# Prints what each action and each of KubeVirt's verbs does on both, and fails
# where they differ, and where there are rights of the controller that no test uses.
set -euo pipefail
cd "$(dirname "$0")/.."
KUBEVIRTBMC_TABLES=$PWD/out/tables
KUBEVIRTBMC_RIGHTS=$PWD/out/rights
export KUBEVIRTBMC_TABLES KUBEVIRTBMC_RIGHTS
rm -rf "$KUBEVIRTBMC_TABLES" "$KUBEVIRTBMC_RIGHTS"

export GOWORK=off
failed=0
hack/test.sh crd test -tags integration -count 1 -timeout 5m ./crd || failed=1
hack/test.sh access pkg/kubeaccess -tags integration -count 1 -timeout 10m . ./rbactest || failed=1
# One package at a time: there are tests that take KubeVirt's definitions away.
hack/test.sh controller services/controller -tags integration -count 1 -p 1 -timeout 15m ./internal/app ./internal/certificate ./internal/reconciler ./internal/state ./internal/webhook || failed=1
hack/test.sh access-processes test -tags integration -count 1 -timeout 20m -run 'OfKubernetes$' -skip TestCertManager ./processes || failed=1
hack/test.sh boot-override test -tags integration -count 1 -timeout 20m -parallel 4 -run 'OnKubeVirt$' ./processes || failed=1
hack/test.sh bmcresource pkg/bmcresource -tags integration -count 1 -timeout 5m ./... || failed=1
hack/test.sh contract-simulator pkg -count 1 -timeout 5m -run TestContract ./hypervisor/simulator || failed=1
hack/test.sh acceptance-simulator services/power -count 1 -timeout 5m ./internal/acceptance || failed=1
hack/test.sh contract services/power -tags integration -count 1 -timeout 30m ./internal/kubevirt/... || failed=1
# Makes KubeVirt find CDI, for good.
hack/test.sh media services/media -tags integration -count 1 -timeout 15m -p 1 ./internal/app ./internal/kubevirt || failed=1
FORMAT=standard-verbose hack/test.sh pods test -tags integration -count 1 -timeout 30m -v ./pods || failed=1
go -C pkg run ./hypervisor/contract/table/cmd/compare "$KUBEVIRTBMC_TABLES" simulator KubeVirt verbs actions || failed=1
go -C pkg/kubeaccess run ./rbactest/cmd/unused "$KUBEVIRTBMC_RIGHTS" controller || failed=1
exit "$failed"
