// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

// Command node is the ancestor of all processes of a test cluster; package
// cluster starts it.
package main

import (
	"fmt"
	"os"

	"kubevirtbmc.dev/test/cluster/internal/node"
)

func main() {
	if err := node.Main(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
}
