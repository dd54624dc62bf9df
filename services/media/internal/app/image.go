// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"kubevirtbmc.dev/pkg/urlpolicy"
	"kubevirtbmc.dev/services/media/internal/image"
	"kubevirtbmc.dev/services/media/internal/kubevirt"
	"kubevirtbmc.dev/services/media/internal/relay"
)

// shutdownTimeout is how long a running relay may take to end; CDI begins again
// with what it has not got.
const shutdownTimeout = 5 * time.Second

// imageOptions say where images may come from and how CDI gets them.
type imageOptions struct {
	schemes, allow, deny       string
	listen, reached, keys      string
	storageClass, volumeMode   string
	storageMargin              int64
	connect, answer, stallTime time.Duration
}

func addImageFlags(flags *flag.FlagSet) *imageOptions {
	o := &imageOptions{}
	entries := "host names (*.example is any below example), addresses, CIDRs and of " + strings.Join(urlpolicy.Groups(), ", ")
	flags.StringVar(&o.schemes, "image-schemes", strings.Join(urlpolicy.DefaultSchemes, ","), "`schemes` of image URLs that are served")
	flags.StringVar(&o.allow, "image-allow", "", "`list` of image servers that are open, separated by commas: "+entries+"; empty: all")
	flags.StringVar(&o.deny, "image-deny", strings.Join(urlpolicy.DefaultDeny, ","), "`list` of image servers that are closed, whatever --image-allow says; the Kubernetes API is closed besides")
	flags.DurationVar(&o.connect, "image-connect-timeout", 10*time.Second, "how long an image server may take to accept a connection")
	flags.DurationVar(&o.answer, "image-answer-timeout", 15*time.Second, "how long an image server may take to begin its answer")
	flags.DurationVar(&o.stallTime, "image-stall-timeout", time.Minute, "how long an image server may send nothing in between")
	flags.StringVar(&o.listen, "relay-listen", "", "`address` at which CDI fetches images, over HTTP; empty: CDI fetches them from their servers itself, and credentials can't be used")
	flags.StringVar(&o.reached, "relay-url", "", "`URL` at which CDI reaches --relay-listen, as http://virtbmc-media.kubevirtbmc-system.svc:8080")
	flags.StringVar(&o.keys, "relay-key-file", "", "`file` with the keys of relay URLs, 32 bytes in base64, one a line, the one for new URLs first; the same for all replicas. Empty: a key of this process, with which its imports end")
	flags.StringVar(&o.storageClass, "storage-class", "", "storage `class` of media; empty: CDI's default")
	flags.StringVar(&o.volumeMode, "volume-mode", "", "volume `mode` of media, Filesystem or Block; empty: what CDI knows of the class")
	flags.Int64Var(&o.storageMargin, "storage-margin", 0, "`bytes` that are added to the size of each medium")
	return o
}

// source makes what prepares images, and runs what CDI fetches them from. closed
// are the endpoints that no image may come from.
func (o *imageOptions) source(log *slog.Logger, closed []netip.AddrPort, roots relay.Roots) (source kubevirt.Source, run func(context.Context) error, err error) {
	urls, err := urlpolicy.New(urlpolicy.Config{
		Schemes: split(o.schemes), Allow: split(o.allow), Deny: split(o.deny),
		Endpoints: func() []netip.AddrPort { return closed },
	})
	if err != nil {
		return nil, nil, fmt.Errorf("policy for image URLs: %w", err)
	}
	client := image.NewClient(image.Config{Policy: urls, Connect: o.connect, Answer: o.answer, Stall: o.stallTime})
	if o.listen == "" {
		return &relay.Direct{Client: client, Roots: roots}, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}, nil
	}
	base, err := url.Parse(o.reached)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, nil, fmt.Errorf("--relay-url %q is no http or https URL", o.reached)
	}
	sealer, err := o.sealer(log)
	if err != nil {
		return nil, nil, err
	}
	r := relay.New(relay.Config{Client: client, Sealer: sealer, Roots: roots, Base: base, Log: log})
	return r, func(ctx context.Context) error { return serve(ctx, o.listen, r) }, nil
}

func (o *imageOptions) sealer(log *slog.Logger) (*relay.Sealer, error) {
	if o.keys != "" {
		return relay.LoadSealer(o.keys)
	}
	log.Warn("imports end with this process: --relay-key-file is not set")
	return relay.NewSealer(relay.NewKey())
}

func (o *imageOptions) storage() (kubevirt.Storage, error) {
	if o.volumeMode != "" && o.volumeMode != "Filesystem" && o.volumeMode != "Block" {
		return kubevirt.Storage{}, fmt.Errorf("--volume-mode %q is neither Filesystem nor Block", o.volumeMode)
	}
	if o.storageMargin < 0 {
		return kubevirt.Storage{}, errors.New("--storage-margin is less than 0")
	}
	return kubevirt.Storage{Class: o.storageClass, VolumeMode: o.volumeMode, MarginBytes: o.storageMargin}, nil
}

// serve serves over HTTP until the context ends.
func serve(ctx context.Context, address string, handler http.Handler) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen for CDI: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve images: %w", err)
	case <-ctx.Done():
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if server.Shutdown(within) != nil {
		_ = server.Close()
	}
	return nil
}

// split returns the entries of a list; never nil.
func split(list string) []string {
	entries := []string{}
	for entry := range strings.SplitSeq(list, ",") {
		if entry = strings.TrimSpace(entry); entry != "" {
			entries = append(entries, entry)
		}
	}
	return entries
}
