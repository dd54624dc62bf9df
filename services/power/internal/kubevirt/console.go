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

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kvclient "kubevirt.io/client-go/kubevirt/typed/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
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
		return newConsoleConn(o.stream), nil
	case <-ctx.Done():
		// The dial knows no context: hang up when it comes through.
		go func() {
			if o := <-dialed; o.err == nil {
				_ = newConsoleConn(o.stream).Close()
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
// client has come, the guest has ended or moved, or one of them is restarted:
// TLS ends properly then, and the websocket abnormally (1006). An API server or
// a network that dies leaves TLS cut off or answers no more.
func consoleEnd(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) ||
		websocket.IsCloseError(err, websocket.CloseNormalClosure, websocket.CloseNoStatusReceived, websocket.CloseAbnormalClosure) {
		return io.EOF
	}
	return fmt.Errorf("%w: console: %w", hypervisor.ErrUnavailable, err)
}

// consoleConn is a connection to a serial port: two pipes around the stream of
// KubeVirt's client, which ends its connection only when it pumps itself.
type consoleConn struct {
	*io.PipeReader
	*io.PipeWriter
	close func()
}

func newConsoleConn(stream kvclient.StreamInterface) *consoleConn {
	input, typed := io.Pipe()
	printed, output := io.Pipe()
	go func() {
		err := stream.Stream(kvclient.StreamOptions{In: input, Out: output})
		_ = output.CloseWithError(consoleEnd(err))
		_ = input.Close()
	}()
	return &consoleConn{
		PipeReader: printed,
		PipeWriter: typed,
		close: sync.OnceFunc(func() {
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
