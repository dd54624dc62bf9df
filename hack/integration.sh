#!/usr/bin/env bash
# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0
#
# Runs the contract suite of pkg/hypervisor and the power service's acceptance
# suite against the simulator and against the KubeVirt of KUBECONFIG, and prints
# what each action and each of KubeVirt's verbs does on both. Fails where they
# differ.
set -euo pipefail
cd "$(dirname "$0")/.."
KUBEVIRTBMC_TABLES=$PWD/out/tables
export KUBEVIRTBMC_TABLES
rm -rf "$KUBEVIRTBMC_TABLES"

export GOWORK=off
failed=0
hack/test.sh contract-simulator pkg -count 1 -timeout 5m -run TestContract ./hypervisor/simulator || failed=1
hack/test.sh acceptance-simulator services/power -count 1 -timeout 5m ./internal/acceptance || failed=1
hack/test.sh contract services/power -tags integration -count 1 -timeout 30m ./internal/kubevirt/... || failed=1
go -C pkg run ./hypervisor/contract/table/cmd/compare "$KUBEVIRTBMC_TABLES" simulator KubeVirt verbs actions || failed=1
exit "$failed"
