// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Command kubevirtbmc runs KubeVirtBMC without a controller.
package main

import (
	"fmt"
	"os"

	"kubevirtbmc.dev/cmd/kubevirtbmc/internal/machines"
	"kubevirtbmc.dev/cmd/kubevirtbmc/internal/registry"
	"kubevirtbmc.dev/cmd/kubevirtbmc/internal/standalone"
	"kubevirtbmc.dev/pkg/process"
)

// version is set when a release is built (-ldflags "-X main.version=...").
var version = "development build"

const usage = `Usage: kubevirtbmc COMMAND [FLAGS]

Commands:
  standalone  run all services in one process
  simulator   serve simulated machines to services of other processes
  registry    serve the BMCs of a configuration file to frontends of other processes
  version     print the version

kubevirtbmc COMMAND --help lists a command's flags.
`

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	name, args := os.Args[1], os.Args[2:]
	switch name {
	case "standalone":
		os.Exit(process.Exec(name, args, standalone.Configure(os.Stdout, version)))
	case "simulator":
		os.Exit(process.Exec(name, args, machines.ConfigureSimulator))
	case "registry":
		os.Exit(process.Exec(name, args, registry.Configure))
	case "version", "--version":
		fmt.Println("kubevirtbmc", version)
	case "help", "-h", "--help":
		fmt.Print(usage)
	default:
		fmt.Fprintf(os.Stderr, "kubevirtbmc: unknown command %q\n\n%s", name, usage)
		os.Exit(2)
	}
}
