#!/usr/bin/env bash
# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0
#
# Usage: hack/test.sh NAME FOLDER ARGUMENT...
#
# Runs `go test` with arguments in a folder. The events go to
# out/tests/NAME.json, where the landing gate counts them.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD name=$1 folder=$2
shift 2
mkdir -p out/tests
# Debian keeps some clients where only root looks.
export PATH=$PATH:/usr/sbin
cd "$folder"
exec "$root/bin/gotestsum" --format "${FORMAT:-pkgname-and-test-fails}" --format-hide-empty-pkg \
	--jsonfile "$root/out/tests/$name.json" -- "$@"
