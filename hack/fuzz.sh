#!/usr/bin/env bash
# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0
#
# Usage: hack/fuzz.sh [FOLDER]...
#
# Runs each fuzz target below the folders (all) for FUZZTIME (10s), JOBS (the number of
# CPUs) targets at a time with one worker each. Ends with a table of how often each ran
# and how many interesting inputs it added to the cache, which the next run begins with.
# Inputs that fail are left in the package's testdata, logs in out/fuzz.
#
# Making interesting inputs smaller is bounded: by default it may use all of the time.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
export root time=${FUZZTIME:-10s}
out=$root/out/fuzz
cache=$(go env GOCACHE)/fuzz
export out cache
rm -rf "$out"
mkdir -p "$out" "$cache"

# One binary for each package, instead of a link for each target.
mapfile -t files < <(git grep -lE '^func Fuzz[A-Za-z0-9_]+\(' -- "${@:-.}" | grep '_test\.go$')
targets=()
for file in "${files[@]}"; do
	folder=$(dirname "$file")
	binary=$out/${folder//\//_}.test
	if [ ! -e "$binary" ]; then
		(cd "$folder" && GOWORK=off go test -c -fuzz . -o "$binary" .)
	fi
	while read -r target; do
		targets+=("$folder $target")
	done < <(grep -oE '^func Fuzz[A-Za-z0-9_]+' "$file" | sed 's/^func //')
done

fuzz() { # FOLDER TARGET
	local name=${1//\//_} status=0
	cd "$root/$1"
	"$out/$name.test" -test.run '^$' -test.fuzz "^$2\$" -test.fuzztime "$time" \
		-test.fuzzminimizetime 100x -test.parallel 1 \
		-test.fuzzcachedir "$cache/kubevirtbmc.dev/$1" >"$out/$name.$2.log" 2>&1 || status=$?
	if [ $status != 0 ]; then
		echo "== $1 $2" >&2
		cat "$out/$name.$2.log" >&2
	fi
	sed -nE 's/.*elapsed: ([^,]+), execs: ([0-9]+).*new interesting: ([0-9]+) \(total: ([0-9]+)\).*/\1 \2 \3 \4/p' \
		"$out/$name.$2.log" | tail -1 | {
		read -r elapsed execs new total || true
		printf '%-45s %-30s %10s %12s %6s %6s\n' "$1" "$2" "${elapsed:--}" "${execs:--}" "${new:--}" "${total:--}"
	}
	return $status
}
export -f fuzz

printf '%-45s %-30s %10s %12s %6s %6s\n' folder target time executions new inputs
# shellcheck disable=SC2016 # The inner shell expands it.
printf '%s\n' "${targets[@]}" | xargs -n 2 -P "${JOBS:-$(nproc)}" bash -c 'fuzz "$@"' _ | tee "$out/table"
