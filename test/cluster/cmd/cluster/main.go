// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

// Command cluster brings test clusters up and down.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"kubevirtbmc.dev/test/cluster"
)

const usage = `usage: cluster COMMAND [flags]

commands:
  up          build what is missing and bring a cluster up
  down        remove the cluster and whatever a crash left of one
  build       build what "up" needs
  status      say whether a cluster is up
  load FILE   load an OCI archive into all nodes

run "cluster COMMAND -h" for the flags
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "cluster:", err)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return flag.ErrHelp
	}
	flags := flag.NewFlagSet("cluster "+args[0], flag.ContinueOnError)
	dir := flags.String("dir", cluster.DefaultDir(), "directory for all state of the cluster")
	level := string(cluster.LevelKubeVirt)
	version, gates, nodes := "", "", 0
	if args[0] == "up" || args[0] == "build" {
		flags.StringVar(&level, "level", level, "how much is real: "+fmt.Sprint(cluster.Levels()))
		flags.StringVar(&version, "kubevirt-version", cluster.KubeVirtVersions()[0], "one of "+fmt.Sprint(cluster.KubeVirtVersions()))
		flags.StringVar(&gates, "feature-gates", "", "KubeVirt's feature gates to switch on, separated by commas")
		flags.IntVar(&nodes, "nodes", 0, "how many nodes there are, 1 or 2; 0: 2 at level kubevirt, 1 at level real")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	o := cluster.Options{Level: cluster.Level(level), KubeVirtVersion: version, Nodes: nodes, Dir: *dir}
	if gates != "" {
		o.FeatureGates = strings.Split(gates, ",")
	}
	switch args[0] {
	case "up":
		_, err := cluster.Up(ctx, o)
		return err
	case "build":
		return cluster.Build(ctx, o)
	case "down":
		return cluster.Down(ctx, *dir)
	case "status":
		c, err := cluster.Attach(ctx, *dir)
		if err != nil {
			return err
		}
		fmt.Printf("level %s, KubeVirt %s\nexport KUBECONFIG=%s\n", c.Level, c.KubeVirtVersion, c.Kubeconfig)
		return nil
	case "load":
		if flags.NArg() != 1 {
			return errors.New("load: want the name of one file")
		}
		c, err := cluster.Attach(ctx, *dir)
		if err != nil {
			return err
		}
		f, err := os.Open(flags.Arg(0))
		if err != nil {
			return err
		}
		defer f.Close()
		return c.LoadImage(ctx, f)
	default:
		fmt.Fprint(os.Stderr, usage)
		return fmt.Errorf("unknown command %q", args[0])
	}
}
