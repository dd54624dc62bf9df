#!/usr/bin/env bash
# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0
#
# Generates and tidies again, in a copy, and fails if anything differs from what
# is committed or staged in the working tree.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | xargs -0 cp --parents -t "$copy"
mkdir -p "$copy/bin"
make -s tools-gen bin/buf
cp bin/protoc-gen-* bin/controller-gen bin/buf "$copy/bin/"
cd "$copy"
git init -q
git add -A
git -c user.name=verify -c user.email=verify@localhost commit -qm before
hack/vendor-protos.sh
make -s generate tidy >/dev/null
if ! git diff --exit-code --stat; then
	echo "Out of step: run 'make generate tidy' in $root and commit" >&2
	exit 1
fi
