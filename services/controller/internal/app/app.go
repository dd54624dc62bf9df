// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package app turns the flags of the controller program into its parts.
package app

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/bmcresource"
	"kubevirtbmc.dev/pkg/grpcprocess"
	"kubevirtbmc.dev/pkg/kubeaccess"
	"kubevirtbmc.dev/pkg/process"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/controller/internal/agent"
	"kubevirtbmc.dev/services/controller/internal/port"
	"kubevirtbmc.dev/services/controller/internal/reconciler"
	"kubevirtbmc.dev/services/controller/internal/registry"
	registryservice "kubevirtbmc.dev/services/controller/internal/service/registry/v1"
	stateservice "kubevirtbmc.dev/services/controller/internal/service/state/v1"
)

const (
	// component is the cluster's name in the process's readiness.
	component = "kubernetes"
	// certificateComponent is the name of the controller's own certificate there.
	certificateComponent = "certificate"
	// definitionComponent is the name of the VirtualMachineBMC's definition there.
	definitionComponent = "definition"
	// readyInterval is how often the caches are asked whether they are filled.
	readyInterval = 100 * time.Millisecond
)

// Source finds the BMCs of a cluster.
type Source interface {
	registry.Observer
	// AccountsChanged says that what accounts answer about a BMC may have changed.
	AccountsChanged(bmc registry.Ref)
	// AgentOf returns the BMCs whose agent an identity is or is to become.
	AgentOf(ctx context.Context, identity string) []registry.Ref
	// Run keeps the registry as the cluster says until the context ends. It runs
	// the registry while it is this process's turn to serve it, and opens it once
	// it has all BMCs.
	Run(ctx context.Context, bmcs *registry.Registry, accounts reconciler.Accounts) error
}

// Options are the program's flags.
type Options struct {
	serve  *grpcprocess.Flags
	access grpcprocess.Access
	// Kubeconfig is a file; empty: the pod's service account.
	Kubeconfig string
	// Namespaces are the names of those to serve, separated by commas; empty: all.
	Namespaces string
	// Namespace is the controller's own; empty: the pod's.
	Namespace string
	// Ports that frontends serve BMCs at.
	Ports port.Range
	// Defaults are what BMCs get that do not say otherwise.
	Defaults reconciler.Defaults
	// Agents are what dedicated agents have in common.
	Agents agent.Options
	// Provision selects the machines that are given BMCs.
	Provision    reconciler.Provision
	certificates certificateOptions
	// DiscoveryInterval is how often KubeVirt's and CDI's APIs are looked for.
	DiscoveryInterval time.Duration

	webhooks webhookOptions
}

// New adds the program's flags and returns what runs it.
func New(flags *flag.FlagSet) process.Run { return newOptions(flags).Run }

func newOptions(flags *flag.FlagSet) *Options {
	o := &Options{
		serve: grpcprocess.AddFlags(flags, true), Ports: port.DefaultRange,
		Defaults: reconciler.Defaults{Mode: v1beta1.FrontendModeShared, BootOverride: v1beta1.BootOverrideStrategyTemplate},
	}
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig `file` of the cluster; empty: the pod's service account")
	o.access = kubeaccess.AddFlags(flags, &o.Kubeconfig)
	flags.StringVar(&o.Namespaces, "namespaces", "", "`names` of the namespaces to serve, separated by commas; empty: all")
	flags.StringVar(&o.Namespace, "namespace", "", "`name` of the controller's own namespace, which has its Lease and the pods of the shared frontends; empty: the pod's")
	flags.Var(&o.Ports, "ports", "`first-last` of the ports at which frontends serve BMCs")
	flags.BoolVar(&o.Defaults.IPMI, "default-ipmi", false, "serve IPMI where a VirtualMachineBMC leaves spec.ipmi.enabled out")
	flags.BoolVar(&o.Defaults.LAN, "default-ipmi-lan", false, "serve sessions of IPMI v1.5, which are never encrypted, where a VirtualMachineBMC leaves spec.ipmi.lan.enabled out")
	flags.BoolVar(&o.Defaults.HTTP, "default-http", false, "serve plain HTTP where a VirtualMachineBMC leaves spec.redfish.http.enabled out")
	flags.Var(choice[v1beta1.FrontendMode]{&o.Defaults.Mode, []v1beta1.FrontendMode{v1beta1.FrontendModeShared, v1beta1.FrontendModeDedicated}}, "default-mode", "`mode` of the frontends, Shared or Dedicated, where a VirtualMachineBMC leaves spec.frontend.mode out")
	flags.Var(choice[v1beta1.BootOverrideStrategy]{&o.Defaults.BootOverride, []v1beta1.BootOverrideStrategy{v1beta1.BootOverrideStrategyTemplate, v1beta1.BootOverrideStrategyAdmission}}, "boot-override-strategy", "how one-time boot overrides are carried out, `Template` or Admission, where a VirtualMachineBMC leaves spec.bootOverride.strategy out; the power service's flag of that name says the same")
	flags.Func("provision-machines", "label `selector` of VirtualMachines that are given a VirtualMachineBMC where they have none; empty: all, where --provision-namespaces is set, else none", selector(&o.Provision.Machines))
	flags.Func("provision-namespaces", "label `selector` of namespaces whose VirtualMachines are given a VirtualMachineBMC where they have none; empty: all, where --provision-machines is set, else none", selector(&o.Provision.Namespaces))
	flags.DurationVar(&o.DiscoveryInterval, "discovery-interval", reconciler.DefaultDiscoveryInterval, "how often KubeVirt's and CDI's APIs are looked for")
	addAgentFlags(flags, &o.Agents)
	o.webhooks.add(flags)
	addCertificateFlags(flags, &o.certificates)
	return o
}

// addAgentFlags adds the flags about dedicated agents; those of image and requests
// have the names that they have in earlier lines.
func addAgentFlags(flags *flag.FlagSet, o *agent.Options) {
	flags.StringVar(&o.ImageName, "agent-image-name", "", "`image` of dedicated agents, without tag; empty: there are none")
	flags.StringVar(&o.ImageTag, "agent-image-tag", "", "`tag` or digest of that image; empty: the image's name has it")
	flags.StringVar(&o.PullPolicy, "agent-image-pull-policy", "", "`policy` by which that image is pulled: Always, IfNotPresent or Never; empty: Kubernetes' default")
	flags.Var(list{&o.PullSecrets}, "agent-image-pull-secrets", "`names` of Secrets, beside the agents, with which that image is pulled, separated by commas")
	flags.Var(list{&o.Networks}, "agent-networks", "`namespace/name` of network attachments that agents in any namespace may have, or namespace/* for all of one, separated by commas; empty: those of its own namespace alone")
	flags.StringVar(&o.PriorityClass, "agent-priority-class", "", "`name` of the agents' PriorityClass; empty: the cluster's default")
	flags.StringVar(&o.CPURequest, "agent-cpu-request", "10m", "processor `time` that an agent requests where its BMC does not say; empty: none")
	flags.StringVar(&o.MemoryRequest, "agent-memory-request", "32Mi", "`memory` that an agent requests where its BMC does not say; empty: none")
	flags.StringVar(&o.CPULimit, "agent-cpu-limit", "", "processor `time` to which an agent is limited where its BMC does not say; empty: none")
	flags.StringVar(&o.MemoryLimit, "agent-memory-limit", "", "`memory` to which an agent is limited where its BMC does not say; empty: none")
	flags.StringVar(&o.Registry, "agent-registry", "", "gRPC `target` of the controllers, as agents in any namespace reach it")
	flags.StringVar(&o.Power, "agent-power", "", "gRPC `target` of the power service, the same way")
	flags.StringVar(&o.Media, "agent-media", "", "gRPC `target` of the media service, the same way")
	flags.StringVar(&o.Audience, "agent-token-audience", kubeaccess.DefaultAudience, "`audience` of the agents' tokens, one of --access-audience's of the services")
	flags.StringVar(&o.CAFile, "agent-ca-file", "", "PEM `file` with the CA certificates that the services' certificates come from, of which agents get a copy; read again when it changes; empty: those of --ca-bundle")
	flags.IntVar(&o.MaxUnavailable, "agent-max-unavailable", agent.DefaultMaxUnavailable, "how many agents may be unavailable while others get a new version of image or flags")
	flags.StringVar(&o.LogLevel, "agent-log-level", "", "least severe log lines that agents write; empty: the agent's default")
}

// list is a flag with values separated by commas.
type list struct{ is *[]string }

// String returns what Set reads.
func (l list) String() string {
	if l.is == nil {
		return ""
	}
	return strings.Join(*l.is, ",")
}

// Set reads a list.
func (l list) Set(text string) error {
	*l.is = split(text)
	return nil
}

// split returns the parts of a list with commas.
func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// Run serves until the context ends.
func (o *Options) Run(ctx context.Context, p *process.Process) error {
	if err := o.Agents.Validate(); err != nil {
		return err
	}
	config, err := loadConfig(o.Kubeconfig)
	if err != nil {
		return err
	}
	namespace, err := o.ownNamespace()
	if err != nil {
		return err
	}
	keeper, keep, err := o.newKeeper(p, config, namespace)
	if err != nil {
		return err
	}
	o.Agents.Bundle = keeper.Bundle
	webhooks, err := o.newWebhooks(p, config, namespace, keeper)
	if err != nil {
		return err
	}
	source, err := o.newSource(p, config, namespace, keeper, webhooks)
	if err != nil {
		return err
	}
	return o.run(ctx, p, config, source, keeper.Certificate, keep, webhooks.Run)
}

// run serves BMCs of a source, over TLS with the certificate that own returns
// where no file has one, with what works beside it.
func (o *Options) run(ctx context.Context, p *process.Process, config *rest.Config, source Source, own func() (*tls.Certificate, error), beside ...func(context.Context) error) error {
	bmcs, err := registry.New(registry.Config{Log: p.Log, Metrics: p.Registry, Observer: source})
	if err != nil {
		return err
	}
	store, err := o.newStore(p.Log, config, source)
	if err != nil {
		return err
	}
	events, err := bmcresource.NewEvents(config, reconciler.EventSource, store.UID)
	if err != nil {
		return err
	}
	p.Health.Set(component, false)
	p.Health.Set(certificateComponent, false)
	var get func() (*tls.Certificate, error)
	if o.certificates.own != "" {
		get = own
	}
	return o.serve.Serve(ctx, p, grpcprocess.Service{
		Access:      o.access,
		Certificate: get,
		Register: func(registrar grpc.ServiceRegistrar) {
			registryservice.Register(registrar, registryservice.New(registryservice.Config{Registry: bmcs, AgentOf: source.AgentOf}))
			stateservice.Register(registrar, stateservice.New(store, audit.New(p.Log, events)))
		},
		RegisterGateway: func(ctx context.Context, mux *runtime.ServeMux, connection grpc.ClientConnInterface) error {
			return statev1.RegisterStateServiceHandlerClient(ctx, mux, statev1.NewStateServiceClient(connection))
		},
		Run: func(ctx context.Context) error {
			group, ctx := errgroup.WithContext(ctx)
			group.Go(func() error { return store.Run(ctx) })
			group.Go(func() error { return events.Run(ctx) })
			group.Go(func() error { return source.Run(ctx, bmcs, store) })
			for _, run := range beside {
				group.Go(func() error { return run(ctx) })
			}
			group.Go(func() error {
				if waitReady(ctx, store.Ready) {
					p.Health.Set(component, true)
				}
				return nil
			})
			group.Go(func() error {
				if waitReady(ctx, func() bool { return get == nil || has(get) }) {
					p.Health.Set(certificateComponent, true)
				}
				return nil
			})
			return group.Wait()
		},
	})
}

// waitReady waits until the caches are filled; false when the context ends
// before.
func waitReady(ctx context.Context, ready func() bool) bool {
	ticker := time.NewTicker(readyInterval)
	defer ticker.Stop()
	for !ready() {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
	return true
}

// has tells whether there is a certificate.
func has(get func() (*tls.Certificate, error)) bool {
	_, err := get()
	return err == nil
}

// choice is a flag that is one of some values.
type choice[T ~string] struct {
	is     *T
	values []T
}

// String returns what Set reads.
func (c choice[T]) String() string {
	if c.is == nil {
		return ""
	}
	return string(*c.is)
}

// Set implements flag.Value.
func (c choice[T]) Set(text string) error {
	if !slices.Contains(c.values, T(text)) {
		return fmt.Errorf("it is none of %q", c.values)
	}
	*c.is = T(text)
	return nil
}

// selector makes a flag of a label selector.
func selector(to *labels.Selector) func(string) error {
	return func(text string) error {
		*to = nil
		if strings.TrimSpace(text) == "" {
			return nil
		}
		is, err := labels.Parse(text)
		*to = is
		return err
	}
}
