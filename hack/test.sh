#!/usr/bin/env bash
# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0
#
# Runs all tests that need no cluster, over all modules of the workspace.
set -euo pipefail
cd "$(dirname "$0")/.."
# Debian keeps some clients where only root looks.
export PATH=$PATH:/usr/sbin
exec bin/gotestsum --format pkgname-and-test-fails --format-hide-empty-pkg -- ${GOTESTFLAGS:-} work
