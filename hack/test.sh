#!/usr/bin/env bash
# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0
#
# Usage: hack/test.sh NAME FOLDER ARGUMENT...
#
# Runs `go test` with arguments in a folder. The events go to
# out/tests/NAME.json, where the landing gate counts them.
#
# With RERUN=1, as the landing gate sets it, a top-level test that failed is run once
# more, and its name goes to out/tests/NAME.reruns: the programs of real clusters, and
# what else runs there, share the gate's machine. What fails twice has failed.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD name=$1 folder=$2
shift 2
mkdir -p out/tests
# Debian keeps some clients where only root looks.
export PATH=$PATH:/usr/sbin
cd "$folder"
options=()
if [ "${RERUN:-}" = 1 ]; then
	arguments=() packages=()
	for argument; do
		case $argument in
		. | ./* | work) packages+=("$argument") ;;
		*) arguments+=("$argument") ;;
		esac
	done
	options=(--rerun-fails=1 --rerun-fails-max-failures=8 --rerun-fails-run-root-test
		"--rerun-fails-report=$root/out/tests/$name.reruns" "--packages=${packages[*]}")
	set -- "${arguments[@]}"
fi
"$root/bin/gotestsum" --format "${FORMAT:-pkgname-and-test-fails}" --format-hide-empty-pkg \
	--jsonfile "$root/out/tests/$name.json" "${options[@]}" -- "$@"

# A package that fails without a failed test, as by its TestMain, has nothing that could
# be run once more: gotestsum would take that for a success.
if [ "${RERUN:-}" = 1 ] && [ ! -s "$root/out/tests/$name.reruns" ] &&
	grep '"Action":"fail"' "$root/out/tests/$name.json" | grep -qv '"Test":'; then
	echo "$name: a package failed without a failed test" >&2
	exit 1
fi
