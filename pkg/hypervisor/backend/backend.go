// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package backend is what the programs of the services on a hypervisor have in
// common: flags, TLS listener for gRPC and REST, tokens, the connection to the
// hypervisor, readiness and the order of the shutdown.
package backend

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/gateway"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/hypervisor/remote"
	"kubevirtbmc.dev/pkg/logkey"
	"kubevirtbmc.dev/pkg/process"
)

const (
	// drainTime is how long calls under way may take after a signal.
	drainTime = 5 * time.Second

	// memorySize is the buffer between the REST gateway and the gRPC server.
	memorySize = 256 << 10

	// tokenIdentity is the caller of a token that comes without a name.
	tokenIdentity = "token-file"
)

// Source is a kind of hypervisor that --hypervisor can name.
type Source[H any] struct {
	// AddFlags adds the flags that it needs.
	AddFlags func(*flag.FlagSet)
	// Open connects to it.
	Open func(*slog.Logger) (*Machines[H], error)
}

// Machines are a hypervisor's.
type Machines[H any] struct {
	Hypervisor H
	// Run keeps the cache until the context ends.
	Run func(context.Context) error
	// WaitSynced waits until the cache has been filled.
	WaitSynced func(context.Context) error
}

// Simulator is the source of simulated machines in a process of their own.
func Simulator[H any](use func(*remote.Client) H) Source[H] {
	var options remote.Options
	return Source[H]{
		AddFlags: options.AddFlags,
		Open: func(log *slog.Logger) (*Machines[H], error) {
			client, closeConnection, err := options.Dial(log)
			if err != nil {
				return nil, err
			}
			return &Machines[H]{
				Hypervisor: use(client),
				Run: func(ctx context.Context) error {
					return errors.Join(client.Run(ctx), closeConnection())
				},
				WaitSynced: client.WaitSynced,
			}, nil
		},
	}
}

// Memory opens a hypervisor in this process.
func Memory[H any](make func() (H, error)) func(*slog.Logger) (*Machines[H], error) {
	return func(*slog.Logger) (*Machines[H], error) {
		h, err := make()
		if err != nil {
			return nil, err
		}
		return &Machines[H]{
			Hypervisor: h,
			Run:        func(ctx context.Context) error { <-ctx.Done(); return nil },
			WaitSynced: func(context.Context) error { return nil },
		}, nil
	}
}

// Service is what runs on the hypervisor.
type Service interface {
	// Register adds its gRPC services to a server.
	Register(grpc.ServiceRegistrar)
	// RegisterGateway adds their REST form.
	RegisterGateway(context.Context, *runtime.ServeMux, grpc.ClientConnInterface) error
	// Run works until the context ends.
	Run(context.Context) error
}

// Parts are what a service is made from.
type Parts[H any] struct {
	Hypervisor H
	Log        *slog.Logger
	Metrics    prometheus.Registerer
	// Holder names this process among its replicas.
	Holder string
}

// options are the flags.
type options struct {
	listen    string
	certFile  string
	keyFile   string
	tokenFile string
	source    string
	holder    string
}

// Configure adds a service's flags and returns what runs it.
func Configure[H any](flags *flag.FlagSet, sources map[string]Source[H], newService func(Parts[H]) (Service, error)) process.Run {
	o := &options{}
	names := slices.Sorted(maps.Keys(sources))
	o.addFlags(flags)
	flags.StringVar(&o.source, "hypervisor", names[0], "where the machines are: "+strings.Join(names, ", "))
	for _, name := range names {
		sources[name].AddFlags(flags)
	}
	return func(ctx context.Context, p *process.Process) error {
		source, ok := sources[o.source]
		if !ok {
			return fmt.Errorf("--hypervisor %q is none of %s", o.source, strings.Join(names, ", "))
		}
		if err := o.validate(); err != nil {
			return err
		}
		machines, err := source.Open(p.Log)
		if err != nil {
			return err
		}
		holder, err := o.replica()
		if err != nil {
			return err
		}
		service, err := newService(Parts[H]{Hypervisor: machines.Hypervisor, Log: p.Log, Metrics: p.Registry, Holder: holder})
		if err != nil {
			return err
		}
		return o.run(ctx, p, service, machines.Run, machines.WaitSynced)
	}
}

func (o *options) addFlags(flags *flag.FlagSet) {
	flags.StringVar(&o.listen, "listen", ":7443", "`address` of gRPC and REST over TLS")
	flags.StringVar(&o.certFile, "tls-cert-file", "", "PEM `file` of the certificate chain; it is read again when it changes")
	flags.StringVar(&o.keyFile, "tls-key-file", "", "PEM `file` of its private key")
	flags.StringVar(&o.tokenFile, "token-file", "", "`file` of the bearer tokens that callers may present, one a line, each with the caller's name and a space before it or alone")
	flags.StringVar(&o.holder, "replica", "", "`name` of this process among its replicas, best one that survives a restart; empty: the host name")
}

func (o *options) validate() error {
	if o.certFile == "" || o.keyFile == "" || o.tokenFile == "" {
		return errors.New("--tls-cert-file, --tls-key-file and --token-file are needed")
	}
	return nil
}

func (o *options) replica() (string, error) {
	if o.holder != "" {
		return o.holder, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name this replica: %w", err)
	}
	return name, nil
}

// run serves until the context ends. What was accepted outlives the listener,
// and the hypervisor's cache outlives both.
func (o *options) run(ctx context.Context, p *process.Process, service Service, runMachines, waitSynced func(context.Context) error) error {
	const component = "hypervisor"
	p.Health.Set(component, false)
	server, err := o.newServer(p)
	if err != nil {
		return err
	}
	service.Register(server)
	listener, stopServing, err := o.serve(ctx, p, server, service)
	if err != nil {
		return err
	}
	p.Log.Info("serving gRPC and REST", slog.String(logkey.Address, listener.address))

	lasting := context.WithoutCancel(ctx)
	machinesCtx, stopMachines := context.WithCancel(lasting)
	defer stopMachines()
	serviceCtx, stopService := context.WithCancel(lasting)
	defer stopService()

	var work errgroup.Group
	failed := make(chan struct{})
	run := func(f func() error) {
		work.Go(func() error {
			err := f()
			if err != nil {
				select {
				case failed <- struct{}{}:
				case <-serviceCtx.Done():
				}
			}
			return err
		})
	}
	run(func() error { return runMachines(machinesCtx) })
	run(listener.wait)
	run(func() error {
		if err := waitSynced(serviceCtx); err != nil {
			return nil //nolint:nilerr // Asked to end before there was anything to do.
		}
		p.Health.Set(component, true)
		server.SetReady(true)
		return service.Run(serviceCtx)
	})

	select {
	case <-ctx.Done():
	case <-failed:
	}
	stopServing()
	stopService()
	stopMachines()
	return work.Wait()
}

func (o *options) newServer(p *process.Process) (*grpcserver.Server, error) {
	tokens, err := readTokens(o.tokenFile)
	if err != nil {
		return nil, err
	}
	return grpcserver.New(grpcserver.Config{Log: p.Log, Authenticator: tokens, Metrics: p.Registry})
}

// listening is an open port.
type listening struct {
	address string
	// wait returns when the port is closed.
	wait func() error
}

// serve opens the port for gRPC and REST.
func (o *options) serve(ctx context.Context, p *process.Process, server *grpcserver.Server, service Service) (*listening, func(), error) {
	files, err := certs.LoadFiles(o.certFile, o.keyFile)
	if err != nil {
		return nil, nil, err
	}
	memory := bufconn.Listen(memorySize)
	// No token: each REST call brings its own.
	connection, err := grpc.NewClient("passthrough:memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return memory.DialContext(ctx) }))
	if err != nil {
		return nil, nil, err
	}
	rest := gateway.NewMux()
	if err := service.RegisterGateway(ctx, rest, connection); err != nil {
		return nil, nil, err
	}
	var config net.ListenConfig
	port, err := config.Listen(ctx, "tcp", o.listen)
	if err != nil {
		return nil, nil, err
	}
	public := gateway.NewServer(gateway.Handler(server, rest))
	public.TLSConfig = certs.ServerTLS(files.Certificate)
	public.ErrorLog = slog.NewLogLogger(p.Log.Handler(), slog.LevelDebug)

	var serving errgroup.Group
	serving.Go(func() error { return server.Serve(memory) })
	serving.Go(func() error {
		if err := public.ServeTLS(port, "", ""); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve gRPC and REST: %w", err)
		}
		return nil
	})
	stop := func() {
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
		defer cancel()
		server.SetReady(false)
		if err := public.Shutdown(drain); err != nil {
			p.Log.Warn("calls were cut off", slog.String(logkey.Error, err.Error()))
			_ = public.Close()
		}
		server.Shutdown(drain)
		_ = connection.Close()
	}
	return &listening{address: port.Addr().String(), wait: serving.Wait}, stop, nil
}

// readTokens reads a file of tokens.
func readTokens(path string) (grpcserver.StaticTokens, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	defer f.Close() //nolint:errcheck // It was only read.
	var tokens grpcserver.StaticTokens
	for lines := bufio.NewScanner(f); ; {
		if !lines.Scan() {
			if err := lines.Err(); err != nil {
				return nil, fmt.Errorf("read tokens: %w", err)
			}
			break
		}
		switch words := strings.Fields(lines.Text()); len(words) {
		case 0:
		case 1:
			tokens.Add(words[0], tokenIdentity)
		case 2:
			tokens.Add(words[1], words[0])
		default:
			return nil, fmt.Errorf("read tokens: a line of %s has more than a name and a token", path)
		}
	}
	if len(tokens) == 0 {
		return nil, fmt.Errorf("read tokens: %s has none", path)
	}
	return tokens, nil
}
