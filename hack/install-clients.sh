#!/usr/bin/env bash
# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0
#
# Installs the real clients that the interop tests run, from Debian packages.
# Without apt-get or root it names those that are missing: their tests are
# skipped by name.
set -euo pipefail

# What each package is there for.
declare -A packages=(
	[ipmitool]=ipmitool
	[ipmipower]=freeipmi-tools
	[ipmiutil]=ipmiutil
	[curl]=curl
	[redfishtool]=redfishtool
)
missing=()
for program in "${!packages[@]}"; do
	PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || missing+=("${packages[$program]}")
done
for module in sushy pyghmi; do
	/usr/bin/python3 -c "import $module" 2>/dev/null || missing+=("python3-$module")
done
if [ ${#missing[@]} -gt 0 ]; then
	if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
		apt-get update -qq
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
	else
		echo "Not installed, so their tests are skipped: ${missing[*]}" >&2
		echo "With root: apt-get install ${missing[*]}" >&2
	fi
fi

echo "Clients:"
version() { # NAME COMMAND...: prints the first line of the command's output
	local name=$1 line
	shift
	line=$("$@" 2>/dev/null | head -n 1) || true
	printf '  %-12s %s\n' "$name" "${line:-missing}"
}
version ipmitool ipmitool -V
version ipmipower /usr/sbin/ipmipower --version
version curl curl --version
version redfishtool redfishtool -V
for module in sushy pyghmi; do
	version "$module" /usr/bin/python3 -c "import importlib.metadata; print(importlib.metadata.version('$module'))"
done
version gofish sed -n 's/^\tgithub.com\/stmcginnis\/gofish \(.*\)/\1/p' "$(dirname "$0")/../test/go.mod"
version go go version
