#!/usr/bin/env bash
# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0
#
# Runs the contract suite of pkg/hypervisor against the KubeVirt of KUBECONFIG.
set -euo pipefail
cd "$(dirname "$0")/.."
exec hack/test.sh contract services/power -tags integration -count 1 -timeout 30m ./internal/kubevirt/...
