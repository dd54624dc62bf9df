// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedeventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/services/controller/internal/certificate"
)

// certificateOptions are the flags about certificates.
type certificateOptions struct {
	issuer    string
	caSecret  string
	bundle    string
	own       string
	services  services
	domain    string
	lifetimes certificate.Lifetimes
}

func addCertificateFlags(flags *flag.FlagSet, o *certificateOptions) {
	flags.StringVar(&o.issuer, "certificates", string(certificate.Internal), "`issuer` of the services' certificates: internal, a CA of the controller's own, or cert-manager, which makes the same Secrets")
	flags.StringVar(&o.caSecret, "ca-secret", "virtbmc-ca", "`name` of the Secret with the CA in the controller's namespace: the controller's own, or a Certificate of cert-manager's with isCA, from which the BMCs' certificates come")
	flags.StringVar(&o.bundle, "ca-bundle", "virtbmc-ca-bundle", "`name` of the ConfigMap in which the CA certificates are published, under ca.crt")
	flags.Var(&o.services, "service-certificate", "`SECRET=NAME,...` of a service's certificate and what clients call it: Services of the controller's namespace, other DNS names, IP addresses; once for each service")
	flags.StringVar(&o.own, "certificate-secret", "", "`name` of the Secret, of those of --service-certificate, with the controller's own certificate; --tls-cert-file takes its place")
	flags.StringVar(&o.domain, "cluster-domain", "cluster.local", "DNS `domain` of the cluster")
	o.lifetimes = certificate.DefaultLifetimes
	flags.DurationVar(&o.lifetimes.CA, "ca-lifetime", o.lifetimes.CA, "for how long a CA is valid; the next one is made after two thirds")
	flags.DurationVar(&o.lifetimes.Lead, "ca-lead-time", o.lifetimes.Lead, "for how long a CA is published before it signs")
	flags.DurationVar(&o.lifetimes.Leaf, "certificate-lifetime", o.lifetimes.Leaf, "for how long certificates are valid; they are renewed after two thirds")
}

// services is a flag that is given once for each service.
type services []certificate.Service

// String returns what Set reads, of all.
func (s *services) String() string {
	var list []string
	for _, service := range *s {
		list = append(list, service.Secret+"="+strings.Join(service.Names, ","))
	}
	return strings.Join(list, " ")
}

// Set reads one.
func (s *services) Set(text string) error {
	secret, names, _ := strings.Cut(text, "=")
	service := certificate.Service{Secret: secret, Names: split(names)}
	if secret == "" || len(service.Names) == 0 {
		return errors.New("it is not of the form SECRET=NAME,NAME")
	}
	*s = append(*s, service)
	return nil
}

// serviceNames are the names by which pods call a Service, the fullest of those
// that programs are set to first.
func serviceNames(name, namespace, domain string) []string {
	return []string{
		name + "." + namespace + ".svc", name + "." + namespace + ".svc." + domain,
		name + "." + namespace, name,
	}
}

// expand makes full names of those of Services.
func (o *certificateOptions) expand(namespace string) []certificate.Service {
	var list []certificate.Service
	for _, service := range o.services {
		full := certificate.Service{Secret: service.Secret}
		for _, name := range service.Names {
			if strings.Contains(name, ".") || net.ParseIP(name) != nil {
				full.Names = append(full.Names, name)
			} else {
				full.Names = append(full.Names, serviceNames(name, namespace, o.domain)...)
			}
		}
		list = append(list, full)
	}
	return list
}

// newKeeper makes what keeps the certificates, and what sends its events.
func (o *Options) newKeeper(p *process.Process, config *rest.Config, namespace string) (*certificate.Keeper, func(context.Context) error, error) {
	config = limited(config)
	core, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	sink, err := typedeventsv1.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, nil, err
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: sink})
	keeper, err := certificate.New(certificate.Config{
		Core: core, Metadata: objects, Namespace: namespace,
		Issuer: certificate.Issuer(o.certificates.issuer), CASecret: o.certificates.caSecret, Bundle: o.certificates.bundle,
		Services: o.certificates.expand(namespace), Own: o.certificates.own, Lifetimes: o.certificates.lifetimes,
		Log: p.Log, Metrics: p.Registry, Events: broadcaster.NewRecorder(scheme, "virtbmc-controller"),
	})
	if err != nil {
		return nil, nil, err
	}
	return keeper, func(ctx context.Context) error {
		defer broadcaster.Shutdown()
		if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
			return fmt.Errorf("send events: %w", err)
		}
		return keeper.Run(ctx)
	}, nil
}
