// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package grpcprocess runs a gRPC service as a process of its own: flags for
// its listener, TLS and token, health that follows the process's, REST beside
// it, and an end that lets calls under way finish.
package grpcprocess

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/gateway"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/logkey"
	"kubevirtbmc.dev/pkg/process"
)

// drainTime is how long calls under way may take after a signal.
const drainTime = 5 * time.Second

// component is the server's name in the process's readiness.
const component = "grpc"

// Flags say how to serve.
type Flags struct {
	listen, rest    string
	tlsCert, tlsKey string
	tokenFile       string
}

// AddFlags adds the flags of a service; rest says whether it serves REST too.
func AddFlags(flags *flag.FlagSet, rest bool) *Flags {
	f := &Flags{}
	flags.StringVar(&f.listen, "listen", ":9443", "`address` of gRPC over TLS")
	if rest {
		flags.StringVar(&f.rest, "rest-listen", "", "`address` of REST over TLS; empty: none")
	}
	flags.StringVar(&f.tlsCert, "tls-cert-file", "", "PEM `file` with the server's certificate chain; read again when it changes")
	flags.StringVar(&f.tlsKey, "tls-key-file", "", "PEM `file` with the key of --tls-cert-file")
	flags.StringVar(&f.tokenFile, "token-file", "", "`file` with the bearer tokens that callers may present, one a line, alone or after the caller's name and a space: each may do everything. Empty: Kubernetes knows the callers, where the program can ask it")
	return f
}

// Reviewer knows callers and their rights.
type Reviewer interface {
	grpcserver.Authenticator
	grpcserver.Authorizer
}

// Access opens what knows callers where no file of tokens does.
type Access func(*slog.Logger) (Reviewer, error)

// Service is what a process serves.
type Service struct {
	// Access is for processes without a file of tokens; nil: they need one.
	Access Access
	// Certificate is for processes without a file with their certificate, called
	// for each handshake; nil: they need one.
	Certificate func() (*tls.Certificate, error)
	// Register adds the service to the gRPC server.
	Register func(grpc.ServiceRegistrar)
	// RegisterGateway adds it to the REST gateway; nil where it has no REST.
	RegisterGateway func(context.Context, *runtime.ServeMux, grpc.ClientConnInterface) error
	// Run works in the background until its context ends; nil where nothing does.
	Run func(context.Context) error
}

// Serve serves until the context ends. The process is ready from the moment
// that it listens.
func (f *Flags) Serve(ctx context.Context, p *process.Process, service Service) error {
	// The rest of the process may be ready before anybody listens.
	p.Health.Set(component, false)
	certificate, err := f.certificate(service)
	if err != nil {
		return err
	}
	config := grpcserver.Config{Log: p.Log}
	if config.Authenticator, config.Authorizer, err = f.access(p.Log, service.Access); err != nil {
		return err
	}
	serverConfig := config
	serverConfig.TLS, serverConfig.Metrics = certs.ServerTLS(certificate), p.Registry
	server, err := grpcserver.New(serverConfig)
	if err != nil {
		return err
	}
	service.Register(server)
	p.Health.OnChange(server.SetReady)

	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", f.listen)
	if err != nil {
		return fmt.Errorf("listen for gRPC: %w", err)
	}
	// The background work outlives the listener, so that calls under way end
	// well.
	workCtx, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	group, groupCtx := errgroup.WithContext(ctx)
	if service.Run != nil {
		group.Go(func() error { return service.Run(workCtx) })
	}
	stopREST := func(context.Context) {}
	if f.rest != "" && service.RegisterGateway != nil {
		restServer, err := f.newREST(ctx, p, config, service, certificate)
		if err != nil {
			return err
		}
		stopREST = restServer.stop
		group.Go(restServer.serve)
	}
	group.Go(func() error { return ignoreStopped(server.Serve(listener)) })
	group.Go(func() error {
		<-groupCtx.Done()
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
		defer cancel()
		server.StopStreams()
		stopREST(drain)
		server.Shutdown(drain)
		stopWork()
		return nil
	})
	p.Log.InfoContext(ctx, "serving gRPC", logkey.Address, listener.Addr().String())
	p.Health.Set(component, true)
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// ignoreStopped: a server that was told to stop before it began to serve has
// nothing to serve any more, which is no fault.
func ignoreStopped(err error) error {
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// certificate returns the server's certificate for each handshake: that of the
// files, or what the service has.
func (f *Flags) certificate(service Service) (func() (*tls.Certificate, error), error) {
	switch {
	case f.tlsCert != "" && f.tlsKey != "":
		files, err := certs.LoadFiles(f.tlsCert, f.tlsKey)
		if err != nil {
			return nil, err
		}
		return files.Certificate, nil
	case f.tlsCert != "" || f.tlsKey != "":
		return nil, errors.New("--tls-cert-file and --tls-key-file go together")
	case service.Certificate == nil:
		return nil, errors.New("--tls-cert-file and --tls-key-file are needed")
	default:
		return service.Certificate, nil
	}
}

// access is who knows callers and their rights: the file of tokens, with which
// everybody may do everything, or whom the service names.
func (f *Flags) access(log *slog.Logger, open Access) (grpcserver.Authenticator, grpcserver.Authorizer, error) {
	switch {
	case f.tokenFile != "":
		tokens, err := readTokens(f.tokenFile)
		return tokens, nil, err
	case open == nil:
		return nil, nil, errors.New("--token-file is needed")
	default:
		reviewer, err := open(log)
		return reviewer, reviewer, err
	}
}

// readTokens reads a file of tokens: one a line, alone or after the caller's
// name and a space.
func readTokens(path string) (grpcserver.StaticTokens, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	var tokens grpcserver.StaticTokens
	for line := range strings.Lines(string(text)) {
		switch words := strings.Fields(line); len(words) {
		case 0:
		case 1:
			tokens.Add(words[0], "token-file")
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

// restServer is the REST gateway of a process. It passes calls on to a gRPC
// server of its own in memory, which authenticates and authorizes each caller.
type restServer struct {
	http     *http.Server
	listener net.Listener
	grpc     *grpcserver.Server
	memory   *bufconn.Listener
	conn     *grpc.ClientConn
}

func (f *Flags) newREST(ctx context.Context, p *process.Process, config grpcserver.Config, service Service, certificate func() (*tls.Certificate, error)) (*restServer, error) {
	// Its metrics would have the same names as those of the TLS server.
	config.Metrics = process.NewRegistry()
	inner, err := grpcserver.New(config)
	if err != nil {
		return nil, err
	}
	service.Register(inner)
	memory := bufconn.Listen(256 << 10)
	conn, err := grpcclient.Dial("passthrough:memory", grpcclient.Config{Options: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return memory.DialContext(ctx) }),
	}})
	if err != nil {
		return nil, err
	}
	mux := gateway.NewMux()
	if err := service.RegisterGateway(ctx, mux, conn); err != nil {
		return nil, fmt.Errorf("make REST gateway: %w", err)
	}
	server := gateway.NewServer(gateway.Handler(inner, mux))
	server.TLSConfig = certs.ServerTLS(certificate)
	server.ErrorLog = slog.NewLogLogger(p.Log.Handler(), slog.LevelDebug)
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", f.rest)
	if err != nil {
		return nil, fmt.Errorf("listen for REST: %w", err)
	}
	p.Log.InfoContext(ctx, "serving REST", logkey.Address, listener.Addr().String())
	return &restServer{server, listener, inner, memory, conn}, nil
}

func (r *restServer) serve() error {
	var group errgroup.Group
	group.Go(func() error { return ignoreStopped(r.grpc.Serve(r.memory)) })
	group.Go(func() error {
		if err := r.http.ServeTLS(r.listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve REST: %w", err)
		}
		return nil
	})
	return group.Wait()
}

func (r *restServer) stop(ctx context.Context) {
	r.grpc.StopStreams() // The HTTP server waits for those that it passed on.
	if err := r.http.Shutdown(ctx); err != nil {
		_ = r.http.Close()
	}
	r.grpc.Shutdown(ctx)
	_ = r.conn.Close()
}
