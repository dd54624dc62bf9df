// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Command compare prints the tables of two hypervisors side by side, and fails
// when a row differs.
//
//	compare DIRECTORY HYPERVISOR HYPERVISOR TABLE...
package main

import (
	"fmt"
	"io"
	"os"

	"kubevirtbmc.dev/pkg/hypervisor/contract/table"
)

func main() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "usage: compare DIRECTORY HYPERVISOR HYPERVISOR TABLE...")
		os.Exit(2)
	}
	differences, err := compare(os.Stdout, os.Args[1], os.Args[2], os.Args[3], os.Args[4:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if differences > 0 {
		fmt.Fprintf(os.Stderr, "%d rows differ\n", differences)
		os.Exit(1)
	}
}

func compare(out io.Writer, directory, a, b string, tables []string) (differences int, err error) {
	for _, name := range tables {
		rowsA, err := table.Load(directory, name, a)
		if err != nil {
			return 0, err
		}
		rowsB, err := table.Load(directory, name, b)
		if err != nil {
			return 0, err
		}
		text, differing := table.Compare("result on "+a, "result on "+b, rowsA, rowsB)
		differences += differing
		fmt.Fprintf(out, "Table of %s: %d rows, %d of them differ\n\n%s\n", name, len(rowsA), differing, text)
	}
	return differences, nil
}
