// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	kvclient "kubevirt.io/client-go/kubevirt/typed/core/v1"
	"kubevirt.io/client-go/subresources"

	"kubevirtbmc.dev/pkg/hypervisor"
)

const (
	// dialTimeout bounds the way to a serial port.
	dialTimeout = 15 * time.Second
	// probeTimeout bounds the question whether the API server still answers.
	probeTimeout = 3 * time.Second
)

// textNoConsole is in virt-api's 400 for a machine without a serial port.
const textNoConsole = "No serial consoles"

// OpenConsole is the console subresource of the instance.
func (h *Hypervisor) OpenConsole(ctx context.Context, ref hypervisor.Ref) (io.ReadWriteCloser, error) {
	m, err := h.Get(ref)
	switch {
	case err != nil:
		return nil, err
	case !m.Hardware.SerialConsole:
		return nil, hypervisor.ErrUnsupported
	case m.Instance == nil || m.Instance.Phase != hypervisor.PhaseRunning:
		return nil, hypervisor.ErrNoInstance
	}
	over, err := h.dials.begin(ctx, ref)
	if err != nil {
		return nil, err
	}
	type outcome struct {
		conn *consoleConn
		err  error
	}
	dialed := make(chan outcome)
	// A dial goes on when nobody waits for it any more: it may have reached
	// virt-handler.
	lasting := context.WithoutCancel(ctx)
	go func() {
		defer over()
		var o outcome
		ws, err := h.dialConsole(lasting, ref)
		if err == nil {
			o.conn = newConsoleConn(ws, maxSilence, func(err error) error { return h.consoleEnd(lasting, ref, err) })
		}
		o.err = err
		select {
		case dialed <- o:
		case <-ctx.Done():
			if o.conn != nil {
				_ = o.conn.Close()
			}
		}
	}()
	select {
	case o := <-dialed:
		if o.err != nil {
			return nil, o.err
		}
		return o.conn, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// dials has one dial at a time to the console of each machine: one that was given
// up and came through after a later one would end that one's connection.
type dials struct {
	mu       sync.Mutex
	underWay map[hypervisor.Ref]chan struct{}
}

// begin waits until no other dial to the machine's console is under way; the
// caller's is until it calls over.
func (d *dials) begin(ctx context.Context, ref hypervisor.Ref) (over func(), err error) {
	mine := make(chan struct{})
	for {
		d.mu.Lock()
		other := d.underWay[ref]
		if other == nil {
			if d.underWay == nil {
				d.underWay = map[hypervisor.Ref]chan struct{}{}
			}
			d.underWay[ref] = mine
		}
		d.mu.Unlock()
		if other == nil {
			return func() {
				d.mu.Lock()
				delete(d.underWay, ref)
				d.mu.Unlock()
				close(mine)
			}, nil
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// dialConsole opens the websocket of the console subresource. KubeVirt's client
// has a helper for that, which knows no context and ends a connection as soon as
// one direction has ended, whatever is unread in the other.
func (h *Hypervisor) dialConsole(ctx context.Context, ref hypervisor.Ref) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	tlsConfig, err := rest.TLSConfigFor(h.config)
	if err != nil {
		return nil, fmt.Errorf("open console: %w", err)
	}
	proxy := h.config.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	upgrade := &upgrade{dialer: websocket.Dialer{
		Proxy:           proxy,
		NetDialContext:  h.config.Dial,
		TLSClientConfig: tlsConfig,
		Subprotocols:    []string{subresources.PlainStreamProtocolName},
	}}
	// The headers of the configuration, credentials among them.
	transport, err := rest.HTTPWrappersForConfig(h.config, upgrade)
	if err != nil {
		return nil, fmt.Errorf("open console: %w", err)
	}
	request, err := kvclient.RequestFromConfig(h.config, resourceVMIs, ref.Name, ref.Namespace, "console", url.Values{})
	if err != nil {
		return nil, fmt.Errorf("open console: %w", err)
	}
	response, err := transport.RoundTrip(request.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("%w: open console: %w", hypervisor.ErrUnavailable, err)
	}
	defer func() { _ = response.Body.Close() }()
	if upgrade.conn == nil {
		return nil, consoleRefused(response)
	}
	return upgrade.conn, nil
}

// upgrade is a transport whose answer to a request is a websocket, if the server
// does not refuse it.
type upgrade struct {
	dialer websocket.Dialer
	conn   *websocket.Conn
}

// RoundTrip implements http.RoundTripper.
func (u *upgrade) RoundTrip(request *http.Request) (*http.Response, error) {
	conn, response, err := u.dialer.DialContext(request.Context(), request.URL.String(), request.Header)
	if errors.Is(err, websocket.ErrBadHandshake) && response != nil {
		return response, nil
	}
	u.conn = conn
	return response, err
}

// consoleRefused translates the answer to a request that was refused.
func consoleRefused(response *http.Response) error {
	body, _ := io.ReadAll(response.Body) // At most 1 KiB: the websocket's library keeps no more.
	text := string(body)
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Message != "" {
		text = status.Message
	}
	switch {
	case strings.Contains(text, textNoConsole):
		return hypervisor.ErrUnsupported
	case response.StatusCode == http.StatusNotFound, response.StatusCode == http.StatusBadRequest, response.StatusCode == http.StatusConflict:
		return hypervisor.ErrNoInstance
	default:
		return fmt.Errorf("%w: open console: %s: %s", hypervisor.ErrUnavailable, response.Status, text)
	}
}

// consoleEnd is what the reader of a console gets when it ends: io.EOF unless
// the connection is certain to have broken.
//
// virt-handler and virt-api hang up without a close frame, whether another
// client has come, the guest has ended or moved, or one of them is restarted. An
// API server that goes down looks the same; but then it does not answer.
func (h *Hypervisor) consoleEnd(ctx context.Context, ref hypervisor.Ref, err error) error {
	if !hungUp(err) {
		return fmt.Errorf("%w: console: %w", hypervisor.ErrUnavailable, err)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if _, err := h.read(ctx, ref); errors.Is(err, hypervisor.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: console: hung up, and %w", hypervisor.ErrUnavailable, err)
	}
	return io.EOF
}

// hungUp tells whether the other side has ended a connection in its way.
func hungUp(err error) bool {
	return err == nil || errors.Is(err, io.EOF) ||
		websocket.IsCloseError(err, websocket.CloseNormalClosure, websocket.CloseNoStatusReceived, websocket.CloseAbnormalClosure)
}
