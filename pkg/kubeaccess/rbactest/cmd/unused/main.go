// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Command unused fails when the packages that test parts of a service have
// together not used all of the service's rights.
//
//	unused FOLDER SERVICE...
package main

import (
	"fmt"
	"os"

	"kubevirtbmc.dev/pkg/kubeaccess/rbactest"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: unused FOLDER SERVICE...")
		os.Exit(2)
	}
	code := 0
	for _, service := range os.Args[2:] {
		if err := rbactest.CheckParts(os.Args[1], service); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
