// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	crwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/services/controller/internal/webhook/bmc"
	"kubevirtbmc.dev/services/controller/internal/webhook/instance"
)

// ServerConfig is all needed.
type ServerConfig struct {
	// Listen is the address to serve at, host:port.
	Listen string
	// Certificate returns the server's at each handshake.
	Certificate func() (*tls.Certificate, error)
	// Scheme knows VirtualMachineBMCs.
	Scheme   *runtime.Scheme
	Instance admission.Handler
	BMC      admission.Validator[*v1beta1.VirtualMachineBMC]
	Log      *slog.Logger
}

// Server serves the webhooks.
type Server struct{ server crwebhook.Server }

// NewServer makes a server.
func NewServer(config ServerConfig) (*Server, error) {
	host, portText, err := net.SplitHostPort(config.Listen)
	if err != nil {
		return nil, fmt.Errorf("address of webhooks: %w", err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || port == 0 {
		return nil, fmt.Errorf("address of webhooks: port %q is none", portText)
	}
	server := crwebhook.NewServer(crwebhook.Options{
		Host: host, Port: int(port),
		TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			c.MinVersion = tls.VersionTLS12
			c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return config.Certificate() }
		}},
	})
	log := logr.FromSlogHandler(config.Log.Handler())
	for path, hook := range map[string]*admission.Webhook{
		instance.Path:    {Handler: config.Instance},
		probePath:        {Handler: admission.HandlerFunc(answerProbe)},
		bmc.ValidatePath: admission.WithValidator(config.Scheme, config.BMC),
		// For configurations that an earlier line has left behind.
		bmc.MutatePath: {Handler: admission.HandlerFunc(func(context.Context, admission.Request) admission.Response { return admission.Allowed("") })},
	} {
		hook.LogConstructor = func(logr.Logger, *admission.Request) logr.Logger { return log }
		server.Register(path, hook)
	}
	return &Server{server}, nil
}

// Serving tells whether the server answers handshakes, which takes a certificate.
func (s *Server) Serving() bool { return s.server.StartedChecker()(nil) == nil }

// Run serves until the context ends, and requests that have begun to their end.
func (s *Server) Run(ctx context.Context) error {
	if err := s.server.Start(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("serve webhooks: %w", err)
	}
	return nil
}
