#!/usr/bin/env bash
# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0
#
# Runs each fuzz target for FUZZTIME, one after the other. Making interesting inputs
# smaller is bounded: by default it may use all of that time.
set -euo pipefail
cd "$(dirname "$0")/.."
git grep -lE '^func Fuzz[A-Za-z0-9_]+\(' -- '*_test.go' | while read -r file; do
	dir=$(dirname "$file")
	grep -oE '^func Fuzz[A-Za-z0-9_]+' "$file" | sed 's/^func //' | while read -r target; do
		echo "== $dir $target"
		go test "./$dir" -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-10s}" -fuzzminimizetime 100x
	done
done
