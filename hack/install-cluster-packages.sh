#!/usr/bin/env bash
# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0
#
# Usage: hack/install-cluster-packages.sh LEVEL
#
# Installs the Debian packages that a test cluster of a level needs.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -z "${KUBECONFIG:-}" ] || exit 0 # The cluster is there already.
case $1 in
api) levels='api' ;;
kubevirt) levels='api kubevirt' ;;
real) levels='api kubevirt real' ;;
*)
	echo "level $1 is none of api, kubevirt, real" >&2
	exit 2
	;;
esac
missing=()
while read -r level package; do
	case " $levels " in
	*" $level "*) dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package") ;;
	esac
done < <(grep -v '^#' test/cluster/packages.txt)
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
	echo "A test cluster of level $1 needs these Debian packages: ${missing[*]}" >&2
	exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
