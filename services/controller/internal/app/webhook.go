// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	kvv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/bmcresource"
	"kubevirtbmc.dev/pkg/logkey"
	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/services/controller/internal/webhook"
	"kubevirtbmc.dev/services/controller/internal/webhook/bmc"
	"kubevirtbmc.dev/services/controller/internal/webhook/instance"
)

const (
	// webhooksComponent is the webhooks' name in the process's readiness.
	webhooksComponent = "webhooks"
	// policyInterval is how often KubeVirt's reboot policy is looked for.
	policyInterval = time.Minute
	// deregisterTime bounds the attempt to delete what earlier controllers have
	// registered.
	deregisterTime = 15 * time.Second
)

// webhookOptions say how the webhooks are served, and registered.
type webhookOptions struct {
	// listen is the address to serve at; empty: there are no webhooks.
	listen string
	// certFile, keyFile and caFile are the server's certificate, its key, and who
	// has issued it.
	certFile, keyFile, caFile string
	// target is where the API server finds them. Its port is a flag of its own.
	target webhook.Target
	port   uint
	// owner is a ClusterRole.
	owner string
}

func (o *webhookOptions) add(flags *flag.FlagSet) {
	flags.StringVar(&o.listen, "webhook-listen", "", "`address` of the admission webhooks over TLS; empty: there are none, and those that were registered by earlier controllers are taken back")
	flags.StringVar(&o.certFile, "webhook-tls-cert-file", "", "PEM `file` with the webhooks' certificate chain; read again when it changes; empty: that of --certificate-secret")
	flags.StringVar(&o.keyFile, "webhook-tls-key-file", "", "PEM `file` with the key of --webhook-tls-cert-file")
	flags.StringVar(&o.caFile, "webhook-ca-file", "", "PEM `file` with the CA certificates by which the API server verifies the webhooks' certificate; read again when it changes")
	flags.StringVar(&o.target.Service, "webhook-service", "virtbmc-controller-webhook", "`name` of the webhooks' Service, in the controller's namespace")
	flags.UintVar(&o.port, "webhook-service-port", 443, "`port` of the webhooks' Service")
	flags.StringVar(&o.target.URL, "webhook-url", "", "`URL` at which the API server finds the webhooks of a controller outside of the cluster, as https://host:port; empty: the Service")
	flags.StringVar(&o.target.Name, "webhook-configuration", "", "`name` of the webhook configurations, which is to sort behind KubeVirt's virt-api-mutator; empty: virtbmc-controller. and the controller's namespace")
	flags.StringVar(&o.owner, "webhook-owner", "", "`name` of the ClusterRole with which the webhook configurations are deleted; empty: they stay")
}

// webhooks are the admission webhooks of a process.
type webhooks struct {
	options *webhookOptions
	client  client.Client
	log     *slog.Logger
	health  *process.Health
	// The rest is nil where there are none.
	server       *webhook.Server
	identity     webhook.Identity
	follow       func(context.Context) error // nil: somebody else follows the identity
	bmcs         *bmcresource.Store
	policies     *instance.RebootPolicies
	registration *webhook.Registration
}

// newWebhooks makes the webhooks of the controllers in a namespace.
func (o *Options) newWebhooks(p *process.Process, config *rest.Config, namespace string, own webhook.Identity) (*webhooks, error) {
	w := &webhooks{options: &o.webhooks, log: p.Log, health: p.Health}
	target := &o.webhooks.target
	target.Namespace, target.Namespaces = namespace, split(o.Namespaces)
	target.Port = int32(min(o.webhooks.port, 1<<16))
	if target.Name == "" {
		target.Name = webhook.DefaultName(namespace)
	}
	config = limited(config)
	config.WarningHandlerWithContext = rest.NoWarnings{}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1beta1.AddToScheme, corev1.AddToScheme, kvv1.AddToScheme, admissionv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("make webhooks: %w", err)
		}
	}
	var err error
	if w.client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return nil, fmt.Errorf("make webhooks: %w", err)
	}
	if o.webhooks.listen == "" {
		return w, nil
	}
	switch files := [...]string{o.webhooks.certFile, o.webhooks.keyFile, o.webhooks.caFile}; {
	case !slices.Contains(files[:], ""):
		given, err := webhook.LoadFiles(files[0], files[1], files[2], p.Log)
		if err != nil {
			return nil, err
		}
		w.identity, w.follow = given, given.Run
	case files != [...]string{"", "", ""}:
		return nil, errors.New("--webhook-tls-cert-file, --webhook-tls-key-file and --webhook-ca-file go together")
	case o.certificates.own == "":
		return nil, errors.New("--webhook-listen needs --certificate-secret, or --webhook-tls-cert-file, --webhook-tls-key-file and --webhook-ca-file")
	default:
		w.identity = own
	}
	if w.bmcs, err = bmcresource.New(bmcresource.Config{REST: config, Namespaces: target.Namespaces, Log: p.Log}); err != nil {
		return nil, err
	}
	schemas, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make webhooks: %w", err)
	}
	w.policies = &instance.RebootPolicies{Client: w.client, Discovery: schemas, Interval: policyInterval, Log: p.Log}
	instances, err := instance.New(instance.Config{
		BMCs: w.bmcs, Live: w.client, RebootPolicy: w.policies.Have, Log: p.Log, Metrics: p.Registry,
	})
	if err != nil {
		return nil, err
	}
	if w.server, err = webhook.NewServer(webhook.ServerConfig{
		Listen: o.webhooks.listen, Certificate: w.identity.Certificate, Scheme: scheme, Log: p.Log,
		Instance: instances, BMC: &bmc.Validator{Live: w.client, IPMI: o.Defaults.IPMI, HTTP: o.Defaults.HTTP, Mode: o.Defaults.Mode, Networks: o.Agents.Networks},
	}); err != nil {
		return nil, err
	}
	w.registration, err = webhook.NewRegistration(webhook.RegistrationConfig{
		Client: w.client, Target: *target, Identity: w.identity, Owner: o.webhooks.owner, Log: p.Log, Metrics: p.Registry,
	})
	return w, err
}

// Run serves until the context ends.
func (w *webhooks) Run(ctx context.Context) error {
	if w.server == nil {
		return nil
	}
	w.health.Set(webhooksComponent, false)
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{w.follow, w.bmcs.Run, w.policies.Run, w.server.Run} {
		if run == nil {
			continue
		}
		group.Go(func() error { return run(ctx) })
	}
	group.Go(func() error {
		if waitReady(ctx, w.server.Serving) {
			w.health.Set(webhooksComponent, true)
		}
		return nil
	})
	return group.Wait()
}

// Problem implements reconciler.Webhooks.
func (w *webhooks) Problem() (problem string, known bool) {
	if w.registration == nil {
		return "the controller has no admission webhooks (--webhook-listen)", true
	}
	return w.registration.Problem()
}

// Lead implements reconciler.Webhooks: it keeps the webhooks registered, or takes
// back what is registered where there are none.
func (w *webhooks) Lead(ctx context.Context, changed func()) error {
	if w.registration != nil {
		return w.registration.Run(ctx, changed)
	}
	ctx, cancel := context.WithTimeout(ctx, deregisterTime)
	defer cancel()
	if err := webhook.Deregister(ctx, w.client, w.options.target); err != nil && ctx.Err() == nil {
		// Without webhooks a controller may have no right to look.
		w.log.InfoContext(ctx, "can't take webhooks back that may be registered", logkey.Error, err.Error())
	}
	return nil
}
