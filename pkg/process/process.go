// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package process is the skeleton of every service's main function: flags with
// environment fallback, structured logs, health and metrics over HTTP, and a
// context that ends with SIGINT or SIGTERM.
package process

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"kubevirtbmc.dev/pkg/logkey"
)

// EnvPrefix starts the names of environment variables that stand in for flags:
// the variable of --health-listen is KUBEVIRTBMC_HEALTH_LISTEN. A flag wins.
const EnvPrefix = "KUBEVIRTBMC_"

// Process is what a service's run function gets.
type Process struct {
	// Log writes to standard error.
	Log *slog.Logger
	// Registry has the process's metrics.
	Registry *prometheus.Registry
	// Health holds what /readyz answers.
	Health *Health
}

// Run does a service's work until its context ends or it fails.
type Run func(ctx context.Context, p *Process) error

// Main runs a service and ends the program: configure adds the service's flags
// and returns what to run once they are parsed. Exit status 0 after a signal, 1
// after a failure, 2 for wrong flags.
func Main(name string, configure func(flags *flag.FlagSet) Run) {
	os.Exit(Exec(name, os.Args[1:], configure))
}

// Exec is Main for a program with several commands: it runs one with its
// arguments and returns the exit status.
func Exec(name string, args []string, configure func(flags *flag.FlagSet) Run) int {
	return run(name, args, os.LookupEnv, os.Stderr, configure)
}

func run(name string, args []string, env func(string) (string, bool), stderr io.Writer, configure func(*flag.FlagSet) Run) int {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	health := flags.String("health-listen", ":8081", "address of /healthz, /readyz and /metrics over HTTP; empty: none")
	level := flags.String("log-level", "info", "least severe log lines to write: debug, info, warn or error")
	format := flags.String("log-format", "json", "form of log lines: json or text")
	work := configure(flags) // May give the flags above other defaults, by SetDefault.
	if err := parse(flags, args, env); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 2
	}
	log, err := NewLogger(stderr, *level, *format)
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // A second signal ends the program at once.
	p := &Process{Log: log, Registry: NewRegistry(), Health: NewHealth()}
	log.InfoContext(ctx, "starting "+name)
	group, groupCtx := errgroup.WithContext(ctx)
	done := make(chan struct{})
	if *health != "" {
		// Health outlives the work, so that /readyz says no while it drains.
		group.Go(func() error { return p.Health.Serve(groupCtx, *health, p.Registry, done) })
	}
	group.Go(func() error {
		defer close(done)
		return work(groupCtx, p)
	})
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		log.ErrorContext(ctx, name+" failed", logkey.Error, err.Error())
		return 1
	}
	log.InfoContext(ctx, name+" stopped")
	return 0
}

// SetDefault changes the default of a flag, as of one that Main defines.
func SetDefault(flags *flag.FlagSet, name, value string) {
	f := flags.Lookup(name)
	if err := f.Value.Set(value); err != nil {
		panic(fmt.Sprintf("default of flag %s: %v", name, err))
	}
	f.DefValue = value
}

// NewLogger returns a logger that writes lines of the named least level (debug,
// info, warn, error) in the named form (json, text).
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q is none of debug, info, warn, error", level)
	}
	options := &slog.HandlerOptions{Level: least}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	}
	return nil, fmt.Errorf("log format %q is neither json nor text", format)
}

// NewRegistry returns a metrics registry with those of the Go runtime and the
// process.
func NewRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// parse sets flags from args, and those that args leave out from the
// environment.
func parse(flags *flag.FlagSet, args []string, env func(string) (string, bool)) error {
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var errs []error
	flags.VisitAll(func(f *flag.Flag) {
		key := EnvPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := env(key)
		if !ok || given[f.Name] {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s: %w", key, err))
		}
	})
	return errors.Join(errs...)
}
