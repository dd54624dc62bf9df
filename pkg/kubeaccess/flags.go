// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubeaccess

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"kubevirtbmc.dev/pkg/access"
	"kubevirtbmc.dev/pkg/grpcprocess"
)

// DefaultAudience is the audience of tokens for the services.
const DefaultAudience = access.Group

// defaultTTL is how long answers are remembered; that of Kubernetes' own
// extension servers.
const defaultTTL = 10 * time.Second

// AddFlags adds the flags of a program whose callers Kubernetes knows, and
// returns what opens the reviewer. The kubeconfig is a file's name, read when the
// flags have been parsed; empty: the pod's service account.
func AddFlags(flags *flag.FlagSet, kubeconfig *string) grpcprocess.Access {
	audiences := flags.String("access-audience", DefaultAudience, "`audiences` of callers' Kubernetes tokens, of which a token must have one, separated by commas")
	config := Config{}
	flags.DurationVar(&config.TokenTTL, "access-token-ttl", defaultTTL, "how long it is remembered whose a token is; 0: not at all")
	flags.DurationVar(&config.AllowTTL, "access-allow-ttl", defaultTTL, "how long it is remembered that a caller may do something; 0: not at all")
	flags.DurationVar(&config.DenyTTL, "access-deny-ttl", defaultTTL, "how long it is remembered that a caller may not do something; 0: not at all")
	return func(log *slog.Logger) (grpcprocess.Reviewer, error) {
		var err error
		if config.REST, err = load(*kubeconfig); err != nil {
			return nil, err
		}
		if config.Audiences, err = split(*audiences); err != nil {
			return nil, err
		}
		klog.SetSlogLogger(log)
		return New(config)
	}
}

func split(audiences string) ([]string, error) {
	list := strings.Split(audiences, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
		if list[i] == "" {
			return nil, errors.New("--access-audience: an audience is empty")
		}
	}
	return list, nil
}

func load(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("load in-cluster configuration, to review callers (or give --token-file): %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("load kubeconfig: %w", err)
	}
	return config, nil
}
