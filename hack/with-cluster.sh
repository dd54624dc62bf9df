#!/usr/bin/env bash
# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0
#
# Usage: hack/with-cluster.sh LEVEL COMMAND ARGUMENT...
#
# Runs a command with KUBECONFIG set: to the cluster that it already names, else
# to one of that level (test/cluster) that lives as long as the command.
set -euo pipefail
cd "$(dirname "$0")/.."
level=$1
shift
export GOWORK=off
if [ -n "${KUBECONFIG:-}" ]; then
	exec "$@"
fi
dir=$(mktemp -d)
cluster=$dir/cluster
go -C test/cluster build -o "$cluster" ./cmd/cluster
down() {
	"$cluster" down --dir "$dir/state" && rm -rf "$dir"
}
trap down EXIT
"$cluster" up --level "$level" --dir "$dir/state"
KUBECONFIG=$("$cluster" status --dir "$dir/state" | sed -n 's/^export KUBECONFIG=//p')
export KUBECONFIG
"$@"
