#!/usr/bin/env bash
# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0
#
# Lints .proto files, Go code module by module, shell scripts and licence
# headers.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0

bin/buf lint || failed=1
bin/buf format -d --exit-code proto || failed=1
# The API must stay compatible with what the main branch has published.
if git rev-parse --verify -q origin/main >/dev/null; then
	bin/buf breaking --against '.git#ref=refs/remotes/origin/main' || failed=1
fi

read -ra modules < <(sed -n 's/^\(BED_\)\?MODULES := //p' Makefile | paste -sd ' ')
for module in "${modules[@]}"; do
	echo "golangci-lint $module"
	(cd "$module" && GOWORK=off "$OLDPWD/bin/golangci-lint" run --allow-parallel-runners --build-tags integration ./...) || failed=1
done

if command -v shellcheck >/dev/null; then
	git ls-files '*.sh' .ci/run | xargs -r shellcheck || failed=1
fi

unmarked=$(git ls-files '*.go' '*.sh' '*.proto' ':!proto/gen' ':!third_party' |
	xargs grep -L 'SPDX-License-Identifier: Apache-2.0' || true)
if [ -n "$unmarked" ]; then
	printf 'No licence header:\n%s\n' "$unmarked" >&2
	failed=1
fi
exit $failed
