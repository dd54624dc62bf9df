// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	kvclient "kubevirt.io/client-go/kubevirt/typed/core/v1"
)

const (
	// maxSilence is how long nothing may come over a connection, an answer to a
	// ping neither, before it is taken for broken. It is virt-api's for those
	// connections that it pings; a console's pings are virt-handler's to answer.
	maxSilence = time.Minute
	// farewell is how long a connection may last that was closed, so that what
	// was typed arrives.
	farewell = 2 * time.Second
)

// consoleConn is a connection to a serial port.
type consoleConn struct {
	ws *websocket.Conn
	// silence is the longest that is borne.
	silence time.Duration
	printed *io.PipeReader
	// closed is closed by Close, over when nothing comes any more.
	closed, over chan struct{}
	close        func()
	// writing is held by who writes, pinging is done when pings are.
	writing sync.Mutex
	pinging sync.WaitGroup
	// fault is what the network has first said to a write, which may be all that
	// it says: the reader then finds an end like any other.
	fault atomic.Pointer[error]
}

// newConsoleConn makes a connection of a websocket; end is asked what the reader
// gets when it ends by itself.
func newConsoleConn(ws *websocket.Conn, silence time.Duration, end func(error) error) *consoleConn {
	printed, output := io.Pipe()
	c := &consoleConn{ws: ws, silence: silence, printed: printed, closed: make(chan struct{}), over: make(chan struct{})}
	c.close = sync.OnceFunc(func() {
		close(c.closed)
		_ = printed.Close()
		// Hanging up while output comes in could lose input on its way.
		go func() {
			goodbye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
			_ = ws.WriteControl(websocket.CloseMessage, goodbye, time.Now().Add(farewell))
		}()
		time.AfterFunc(farewell, func() { _ = ws.Close() })
	})
	ws.SetPongHandler(func(string) error { return c.heard() })
	_ = c.heard()
	c.pinging.Go(c.ping)
	go c.pump(output, end)
	return c
}

// heard tells that something came from the other side.
func (c *consoleConn) heard() error { return c.ws.SetReadDeadline(time.Now().Add(c.silence)) }

// wrote takes note of what came of a write.
func (c *consoleConn) wrote(err error) {
	if _, ok := errors.AsType[net.Error](err); ok && !errors.Is(err, net.ErrClosed) {
		c.fault.CompareAndSwap(nil, &err)
	}
}

// pump hands output on until the connection ends. Whatever came before the end is
// read before it.
func (c *consoleConn) pump(output *io.PipeWriter, end func(error) error) {
	_, err := kvclient.CopyFrom(hearing{c, output}, c.ws)
	select {
	case <-c.closed:
		// Until the other side hangs up too.
		_, _ = kvclient.CopyFrom(io.Discard, c.ws)
	default:
	}
	close(c.over)
	_ = c.ws.Close()
	c.pinging.Wait()
	c.writing.Lock()
	defer c.writing.Unlock()
	if fault := c.fault.Load(); fault != nil {
		err = *fault
	}
	select {
	case <-c.closed:
		_ = output.Close()
	default:
		_ = output.CloseWithError(end(err))
	}
}

// hearing is output that shows that the connection works.
type hearing struct {
	conn   *consoleConn
	output io.Writer
}

func (h hearing) Write(p []byte) (int, error) {
	n, err := h.output.Write(p)
	if err == nil {
		err = h.conn.heard()
	}
	return n, err
}

// ping asks the other side for a sign of life now and then.
func (c *consoleConn) ping() {
	ticker := time.NewTicker(c.silence / 6)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			// Without a deadline, which would break the connection of a guest that
			// takes no input; a broken one is noticed by its silence.
			if err := c.ws.WriteControl(websocket.PingMessage, nil, time.Time{}); err != nil {
				c.wrote(err)
				return
			}
		case <-c.closed:
			return
		case <-c.over:
			return
		}
	}
}

// Read implements io.Reader.
func (c *consoleConn) Read(p []byte) (int, error) { return c.printed.Read(p) }

// Write implements io.Writer. What it has taken is on its way, also when the
// connection is closed afterwards.
func (c *consoleConn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	select {
	case <-c.closed:
		return 0, io.ErrClosedPipe
	default:
	}
	if err := c.ws.WriteMessage(websocket.BinaryMessage, p); err != nil {
		c.wrote(err)
		return 0, err
	}
	return len(p), nil
}

// Close ends the connection.
func (c *consoleConn) Close() error {
	c.close()
	return nil
}
