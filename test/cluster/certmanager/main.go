// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

// Command certmanager runs the controllers of cert-manager that issue
// certificates: of Issuers that are self-signed or have a CA. cert-manager's own
// program is a module that only its repository has; what it is made of is to be
// had. ACME, Vault, CyberArk, ClusterIssuers, leader election and the webhooks are
// left out.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cert-manager/cert-manager/pkg/controller"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

// workers of each controller, as in cert-manager's own program.
const workers = 5

// Times between attempts after a request that failed, as there.
const firstBackoff, lastBackoff = time.Hour, 32 * time.Hour

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig `file` of the cluster")
	namespace := flag.String("namespace", "", "`name` of the namespace to serve; empty: all")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	if err := run(ctx, *kubeconfig, *namespace); err != nil {
		fmt.Fprintln(os.Stderr, "certmanager:", err)
		os.Exit(1)
	}
}

// run runs the controllers until the context ends.
func run(ctx context.Context, kubeconfig, namespace string) error {
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig: kubeconfig, Namespace: namespace,
		CertificateOptions: controller.CertificateOptions{
			CertificateRequestMinimumBackoffDuration: firstBackoff, CertificateRequestMaximumBackoffDuration: lastBackoff,
		},
	})
	if err != nil {
		return err
	}
	// Each controller has clients of its own; the caches are all of theirs.
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	controllers := map[string]controller.Interface{}
	for name, make := range controller.Known() {
		if controllers[name], err = make(factory); err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	var running sync.WaitGroup
	for name, one := range controllers {
		running.Go(func() {
			if err := one.Run(workers, ctx); err != nil && ctx.Err() == nil {
				fmt.Fprintf(os.Stderr, "certmanager: %s: %v\n", name, err)
			}
		})
	}
	running.Wait()
	return nil
}
