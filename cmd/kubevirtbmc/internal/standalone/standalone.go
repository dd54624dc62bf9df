// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package standalone runs all services in one process: the backends on one
// gRPC server, which the frontends reach through a listener in memory and other
// clients through a TLS port that also serves REST.
package standalone

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"kubevirtbmc.dev/cmd/kubevirtbmc/internal/config"
	"kubevirtbmc.dev/cmd/kubevirtbmc/internal/eventlog"
	"kubevirtbmc.dev/cmd/kubevirtbmc/internal/machines"
	"kubevirtbmc.dev/cmd/kubevirtbmc/internal/registry"
	"kubevirtbmc.dev/pkg/access"
	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/gateway"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/logkey"
	"kubevirtbmc.dev/pkg/process"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/ipmifrontend"
	"kubevirtbmc.dev/services/frontend-redfish/redfishfrontend"
	"kubevirtbmc.dev/services/media/mediaservice"
	"kubevirtbmc.dev/services/power/powerservice"
)

const (
	// certificateValidity of the certificates made at each start.
	certificateValidity = 365 * 24 * time.Hour
	// drainTime is how long calls under way may take after a signal.
	drainTime = 5 * time.Second
	// replica names the frontends to the registry.
	replica = "standalone"
	// apiIdentity is who shows the token of gRPC and REST.
	apiIdentity = "standalone:api"
)

// Options are the command's flags.
type Options struct {
	ConfigFile      string
	Machines        machines.Source
	Listen          string
	Ports           config.Ports
	APIPort         int
	Token           string
	TLSCert, TLSKey string
	CAOut           string
	// Version is no flag.
	Version string
}

// Configure adds the command's flags and returns what to run with them. The
// banner, which says how to reach the BMCs, goes to stdout. The version is what
// the BMCs give as their firmware's.
func Configure(stdout io.Writer, version string) func(*flag.FlagSet) process.Run {
	return func(flags *flag.FlagSet) process.Run {
		process.SetDefault(flags, "health-listen", "")
		process.SetDefault(flags, "log-format", "text")
		o := Options{Version: version}
		flags.StringVar(&o.ConfigFile, "config", "", "YAML `file` that names the BMCs; default: one for each simulated machine. Credentials that it does not name come from BMC_USERNAME and BMC_PASSWORD, else they are made and printed")
		o.Machines.AddFlags(flags)
		flags.StringVar(&o.Listen, "listen", "127.0.0.1", "`address` that all ports are opened on")
		flags.IntVar(&o.Ports.IPMI, "ipmi-port", 6230, "UDP `port` of the first BMC; the others follow")
		flags.IntVar(&o.Ports.Redfish, "redfish-port", 8443, "TCP `port` of the first BMC's Redfish over HTTPS; the others follow")
		flags.IntVar(&o.APIPort, "api-port", 7443, "TCP `port` of gRPC and REST over TLS")
		flags.StringVar(&o.Token, "token", "", "bearer `token` of gRPC and REST; better given as KUBEVIRTBMC_TOKEN; default: generated and printed")
		flags.StringVar(&o.TLSCert, "tls-cert-file", "", "PEM `file` with the certificate chain of all TLS ports; default: one of a CA made at the start")
		flags.StringVar(&o.TLSKey, "tls-key-file", "", "PEM `file` with the key of --tls-cert-file")
		flags.StringVar(&o.CAOut, "ca-out", "", "`file` to write the CA certificate to that is made at the start")
		return func(ctx context.Context, p *process.Process) error { return run(ctx, p, o, stdout) }
	}
}

func run(ctx context.Context, p *process.Process, o Options, stdout io.Writer) error {
	o.Listen = strings.Trim(o.Listen, "[]") // As an IPv6 address is written before a port.
	file, err := o.file()
	if err != nil {
		return err
	}
	if last := o.Ports.Redfish + len(file.BMCs) - 1; o.Ports.Redfish <= o.APIPort && o.APIPort <= last {
		return fmt.Errorf("--api-port %d is among the Redfish ports, %d to %d", o.APIPort, o.Ports.Redfish, last)
	}
	credentials, err := file.NewCredentials(os.Getenv)
	if err != nil {
		return err
	}
	bmcs, err := file.Registry(credentials, o.Ports)
	if err != nil {
		return err
	}
	certificate, ca, err := o.certificate()
	if err != nil {
		return err
	}
	vms, err := o.Machines.Open(p.Log, file.Namespaces())
	if err != nil {
		return err
	}
	names, bmcsOf := hypervisor.FixedNames{}, map[hypervisor.Ref][]hypervisor.Ref{}
	for _, bmc := range file.BMCs {
		vm := hypervisor.Ref{Namespace: bmc.Namespace, Name: bmc.VM}
		if _, err := vms.Get(vm); err != nil && o.Machines.Simulate > 0 {
			return fmt.Errorf("VM %s is not one of the %d simulated ones", vm, o.Machines.Simulate)
		}
		ref := hypervisor.Ref{Namespace: bmc.Namespace, Name: bmc.Name}
		names[ref] = vm
		bmcsOf[vm] = append(bmcsOf[vm], ref)
	}
	reg := registry.New(bmcs)

	token, inner := o.Token, rand.Text()
	if token == "" {
		token = rand.Text()
	}
	var tokens grpcserver.StaticTokens
	tokens.Add(token, apiIdentity)
	tokens.Add(inner, "standalone:frontend")
	server, err := grpcserver.New(grpcserver.Config{Log: p.Log, Authenticator: tokens, Authorizer: authorizer{}, Metrics: p.Registry})
	if err != nil {
		return err
	}
	memory := bufconn.Listen(256 << 10)
	inMemory := []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return memory.DialContext(ctx)
	})}
	conn, err := grpcclient.Dial("passthrough:frontends", grpcclient.Config{
		Token: func() (string, error) { return inner, nil }, Options: inMemory,
	})
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // In memory: there is nothing to lose.
	// REST clients show tokens of their own: the gateway must have none.
	restConn, err := grpcclient.Dial("passthrough:rest", grpcclient.Config{Options: inMemory})
	if err != nil {
		return err
	}
	defer restConn.Close() //nolint:errcheck // In memory: there is nothing to lose.

	power, err := powerservice.New(powerservice.Config{
		Hypervisor: vms, Resolver: names, Log: p.Log, Metrics: p.Registry,
		State: conn, BMCsOf: func(vm hypervisor.Ref) []hypervisor.Ref { return bmcsOf[vm] },
	})
	if err != nil {
		return err
	}
	media, err := mediaservice.New(mediaservice.Config{Hypervisor: vms, Resolver: names, Log: p.Log, Metrics: p.Registry})
	if err != nil {
		return err
	}
	power.Register(server)
	media.Register(server)
	reg.Register(server)
	eventlog.New(reg).Register(server)
	rest := gateway.NewMux()
	if err := errors.Join(power.RegisterGateway(ctx, rest, restConn), media.RegisterGateway(ctx, rest, restConn)); err != nil {
		return err
	}
	ipmi, err := ipmifrontend.New(ipmifrontend.Config{
		Listen: o.Listen, Registry: conn, Power: conn, Boot: conn, Inventory: conn, Console: conn, State: conn,
		Replica: replica, Log: p.Log, Metrics: p.Registry,
	})
	if err != nil {
		return err
	}
	redfish, err := redfishfrontend.New(redfishfrontend.Config{
		Listen: o.Listen, Registry: conn, Power: conn, Boot: conn, Media: conn, Inventory: conn, State: conn,
		Replica: replica, Version: o.Version, Certificate: certificate, Log: p.Log, Metrics: p.Registry,
	})
	if err != nil {
		return err
	}
	var listen net.ListenConfig
	api, err := listen.Listen(ctx, "tcp", net.JoinHostPort(o.Listen, fmt.Sprint(o.APIPort)))
	if err != nil {
		return fmt.Errorf("listen for gRPC and REST (--api-port): %w", err)
	}
	apiServer := gateway.NewServer(gateway.Handler(server, rest))
	apiServer.TLSConfig = certs.ServerTLS(certificate)
	apiServer.ErrorLog = slog.NewLogLogger(p.Log.Handler(), slog.LevelDebug)

	// The backends outlive the frontends, so that requests under way end well.
	backendCtx, stopBackends := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackends()
	var backends errgroup.Group
	backends.Go(func() error { return server.Serve(memory) })
	backends.Go(func() error {
		if err := apiServer.ServeTLS(api, "", ""); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve gRPC and REST: %w", err)
		}
		return nil
	})
	backends.Go(func() error { return vms.Run(backendCtx) })
	backends.Go(func() error { return power.Run(backendCtx) })
	backends.Go(func() error { return media.Run(backendCtx) })
	server.SetReady(true)

	frontends, frontendCtx := errgroup.WithContext(ctx)
	frontends.Go(func() error { return ipmi.Run(frontendCtx) })
	frontends.Go(func() error { return redfish.Run(frontendCtx) })
	frontends.Go(func() error {
		select {
		case <-reg.Settled():
		case <-frontendCtx.Done():
			return nil
		}
		if problems := reg.Problems(); len(problems) > 0 {
			return unserved(problems)
		}
		// Not before all ports are this process's: another one may have written
		// the file that clients are using.
		if o.CAOut != "" {
			if err := os.WriteFile(o.CAOut, ca, 0o644); err != nil { //nolint:gosec // A CA certificate is public.
				return fmt.Errorf("write CA certificate: %w", err)
			}
		}
		p.Health.Set("frontends", true)
		_, err := fmt.Fprint(stdout, o.banner(file, credentials, token))
		return err
	})
	// A backend that fails ends the frontends by ending the process's group.
	backendFailed := make(chan error, 1)
	go func() { backendFailed <- backends.Wait() }()
	frontendsDone := make(chan error, 1)
	go func() { frontendsDone <- frontends.Wait() }()
	select {
	case err = <-frontendsDone:
	case err = <-backendFailed:
		return fmt.Errorf("backend: %w", err)
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	server.StopStreams()
	if closeErr := apiServer.Shutdown(drain); closeErr != nil {
		p.Log.Warn("gRPC and REST calls were cut off", logkey.Error, closeErr.Error())
		_ = apiServer.Close()
	}
	server.Shutdown(drain)
	stopBackends()
	return errors.Join(ignoreCanceled(err), ignoreCanceled(<-backendFailed))
}

// authorizer keeps what tells passwords, the registry, to the frontends. They
// alone vouch for users.
type authorizer struct{}

// Authorize implements grpcserver.Authorizer.
func (authorizer) Authorize(_ context.Context, caller grpcserver.Identity, request access.Request) error {
	if caller.Name == apiIdentity && request.Subresource == access.Credentials && request.Verb == access.Get {
		return grpcstatus.New(errorsv1.Reason_REASON_PERMISSION_DENIED, "credentials are for frontends alone")
	}
	return nil
}

func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// unserved makes the frontends' problems an error that names the first few.
func unserved(problems []registry.Problem) error {
	const most = 3
	var errs []error
	for i, problem := range problems {
		if i == most {
			errs = append(errs, fmt.Errorf("and %d more", len(problems)-most))
			break
		}
		errs = append(errs, fmt.Errorf("BMC %s/%s can't be served: %s", problem.BMC.GetNamespace(), problem.BMC.GetName(), problem.Message))
	}
	return errors.Join(errs...)
}

// file returns the configuration: that of --config, else one BMC for each
// simulated machine.
func (o Options) file() (*config.File, error) {
	if err := o.Machines.Validate(); err != nil {
		return nil, err
	}
	if o.ConfigFile != "" {
		return config.Load(o.ConfigFile)
	}
	if o.Machines.Simulate == 0 {
		return nil, errors.New("no BMC: --config is needed where the machines are not simulated in this process")
	}
	return config.Simulated(o.Machines.Simulate), nil
}

// certificate returns what the TLS ports show: that of --tls-cert-file, else one
// of a new authority, whose certificate it returns too, for the addresses that
// clients may use.
func (o Options) certificate() (get func() (*tls.Certificate, error), ca []byte, err error) {
	if (o.TLSCert == "") != (o.TLSKey == "") {
		return nil, nil, errors.New("--tls-cert-file and --tls-key-file go together")
	}
	if o.TLSCert != "" {
		if o.CAOut != "" {
			return nil, nil, errors.New("--ca-out has no meaning with --tls-cert-file")
		}
		files, err := certs.LoadFiles(o.TLSCert, o.TLSKey)
		if err != nil {
			return nil, nil, err
		}
		return files.Certificate, nil, nil
	}
	authority, err := certs.NewAuthority("KubeVirtBMC standalone CA", certificateValidity)
	if err != nil {
		return nil, nil, err
	}
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	if o.Listen != "" {
		hosts = append(hosts, o.Listen)
	}
	if name, err := os.Hostname(); err == nil {
		hosts = append(hosts, name)
	}
	leaf, err := authority.Issue(hosts, certificateValidity)
	if err != nil {
		return nil, nil, err
	}
	return func() (*tls.Certificate, error) { return leaf, nil }, authority.PEM(), nil
}
