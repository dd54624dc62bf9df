// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kvclient "kubevirt.io/client-go/kubevirt/typed/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// probeTimeout bounds the question whether the API server still answers.
const probeTimeout = 3 * time.Second

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
	type outcome struct {
		stream kvclient.StreamInterface
		err    error
	}
	dialed := make(chan outcome, 1)
	go func() {
		stream, err := kvclient.AsyncSubresourceHelper(h.config, resourceVMIs, ref.Namespace, ref.Name, "console", url.Values{})
		dialed <- outcome{stream, err}
	}()
	select {
	case o := <-dialed:
		if o.err != nil {
			return nil, consoleError(o.err)
		}
		lasting := context.WithoutCancel(ctx)
		return newConsoleConn(o.stream, func(err error) error { return h.consoleEnd(lasting, ref, err) }), nil
	case <-ctx.Done():
		// The dial knows no context: hang up when it comes through.
		go func() {
			if o := <-dialed; o.err == nil {
				_ = newConsoleConn(o.stream, func(err error) error { return err }).Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// consoleError translates a refused connection.
func consoleError(err error) error {
	code, text := 0, err.Error()
	var refused *kvclient.AsyncSubresourceError
	var answer apierrors.APIStatus
	switch {
	case errors.As(err, &refused):
		code = refused.StatusCode
	case errors.As(err, &answer):
		code = int(answer.Status().Code)
	}
	switch {
	case strings.Contains(text, textNoConsole):
		return hypervisor.ErrUnsupported
	case code == http.StatusNotFound, code == http.StatusBadRequest, code == http.StatusConflict:
		return hypervisor.ErrNoInstance
	default:
		return fmt.Errorf("%w: open console: %w", hypervisor.ErrUnavailable, err)
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
	return err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) ||
		websocket.IsCloseError(err, websocket.CloseNormalClosure, websocket.CloseNoStatusReceived, websocket.CloseAbnormalClosure)
}

// consoleConn is a connection to a serial port: two pipes around the stream of
// KubeVirt's client, which ends its connection only when it pumps itself.
type consoleConn struct {
	*io.PipeReader
	*io.PipeWriter
	close func()
}

func newConsoleConn(stream kvclient.StreamInterface, end func(error) error) *consoleConn {
	input, typed := io.Pipe()
	printed, output := io.Pipe()
	var closed atomic.Bool
	go func() {
		err := stream.Stream(kvclient.StreamOptions{In: input, Out: output})
		_ = input.Close()
		if closed.Load() {
			_ = output.Close()
			return
		}
		_ = output.CloseWithError(end(err))
	}()
	return &consoleConn{
		PipeReader: printed,
		PipeWriter: typed,
		close: sync.OnceFunc(func() {
			closed.Store(true)
			_ = typed.Close()
			_ = printed.Close()
		}),
	}
}

// Close ends the connection.
func (c *consoleConn) Close() error {
	c.close()
	return nil
}

// CloseWithError is hidden: both pipes have it.
func (c *consoleConn) CloseWithError(error) error { return c.Close() }
