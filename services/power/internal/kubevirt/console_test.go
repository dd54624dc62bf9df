// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	kvv1 "kubevirt.io/api/core/v1"
	kvclient "kubevirt.io/client-go/kubevirt/typed/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// serialPort serves websockets over TLS and returns a hypervisor that has only
// this to dial.
func serialPort(t *testing.T, serve func(conn *websocket.Conn)) *Hypervisor {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := kvclient.NewUpgrader().Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		serve(conn)
	}))
	t.Cleanup(server.Close)
	return &Hypervisor{config: &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}}
}

// connected connects to a serial port.
func connected(t *testing.T, port *Hypervisor, silence time.Duration, end func(error) error) *consoleConn {
	t.Helper()
	ws, err := port.dialConsole(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	conn := newConsoleConn(ws, silence, end)
	t.Cleanup(func() {
		_ = conn.Close()
		<-conn.over
	})
	return conn
}

func asItIs(err error) error { return err }

func closeFrame(code int) func(*testing.T, *websocket.Conn) {
	return func(t *testing.T, conn *websocket.Conn) {
		t.Helper()
		if err := conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, ""), time.Time{}); err != nil {
			t.Error(err)
		}
	}
}

// hangUp ends a connection as KubeVirt does: without a close frame.
func hangUp(t *testing.T, conn *websocket.Conn) {
	t.Helper()
	if err := conn.UnderlyingConn().(*tls.Conn).CloseWrite(); err != nil {
		t.Error(err)
	}
}

// TestConsole_ends: how a connection ends tells whether it has broken. Whatever
// came before the end is read.
func TestConsole_ends(t *testing.T) {
	t.Parallel()
	const silence = 500 * time.Millisecond
	for name, test := range map[string]struct {
		end  func(t *testing.T, conn *websocket.Conn)
		want error
	}{
		"hung up without a word": {hangUp, io.EOF},
		"closed":                 {closeFrame(websocket.CloseNormalClosure), io.EOF},
		"closed with an error":   {closeFrame(websocket.CloseInternalServerErr), hypervisor.ErrUnavailable},
		"closed by a restart":    {closeFrame(websocket.CloseServiceRestart), hypervisor.ErrUnavailable},
		"going away":             {closeFrame(websocket.CloseGoingAway), hypervisor.ErrUnavailable},
		"reset": {func(t *testing.T, conn *websocket.Conn) {
			tcp := conn.UnderlyingConn().(*tls.Conn).NetConn().(*net.TCPConn)
			time.Sleep(100 * time.Millisecond) // A reset overtakes what was not read yet.
			if err := errors.Join(tcp.SetLinger(0), tcp.Close()); err != nil {
				t.Error(err)
			}
		}, hypervisor.ErrUnavailable},
		"silent": {func(t *testing.T, conn *websocket.Conn) {
			<-t.Context().Done() // One that nobody holds would be closed at the next collection of garbage.
			_ = conn.Close()
		}, hypervisor.ErrUnavailable},
		"pings answered, then hung up": {func(t *testing.T, conn *websocket.Conn) {
			if err := conn.SetReadDeadline(time.Now().Add(3 * silence)); err != nil {
				t.Error(err)
			}
			if _, _, err := conn.NextReader(); !isTimeout(err) {
				t.Errorf("the connection has not lasted: %v", err)
			}
			hangUp(t, conn)
		}, io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := serialPort(t, func(conn *websocket.Conn) {
				if err := conn.WriteMessage(websocket.BinaryMessage, []byte("last words")); err != nil {
					t.Error(err)
				}
				test.end(t, conn)
			})
			h := started(t, newFakeAPI(t))
			conn := connected(t, port, silence, func(err error) error { return h.consoleEnd(t.Context(), ref, err) })
			said := make([]byte, len("last words"))
			if _, err := io.ReadFull(conn, said); err != nil || string(said) != "last words" {
				t.Fatalf("read %q, %v", said, err)
			}
			if _, err := conn.Read(said); !errors.Is(err, test.want) {
				t.Errorf("read ended with %v, want %v", err, test.want)
			}
		})
	}
}

func isTimeout(err error) bool {
	netError, ok := errors.AsType[net.Error](err)
	return ok && netError.Timeout()
}

// TestConsole_input_arrives: what was typed is not lost with a connection that is
// closed while the guest talks.
func TestConsole_input_arrives(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	end := make(chan error, 1)
	port := serialPort(t, func(conn *websocket.Conn) {
		go func() {
			for conn.WriteMessage(websocket.BinaryMessage, make([]byte, 10_000)) == nil {
			}
		}()
		time.Sleep(100 * time.Millisecond) // Let output pile up.
		for {
			_, p, err := conn.ReadMessage()
			if err != nil {
				_ = conn.Close()
				end <- err
				return
			}
			got.Write(p)
		}
	})
	conn := connected(t, port, time.Minute, asItIs)
	typed := bytes.Repeat([]byte("0123456789"), 6_000)
	if _, err := conn.Write(typed); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a closed connection can be read")
	}
	if err := <-end; !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		t.Errorf("the connection ended with %v", err)
	}
	if !bytes.Equal(got.Bytes(), typed) {
		t.Errorf("%d of %d bytes have arrived", got.Len(), len(typed))
	}
}

// TestConsole_output_outlives_input: input that nobody takes any more does not
// take away what the guest has said.
func TestConsole_output_outlives_input(t *testing.T) {
	t.Parallel()
	said := bytes.Repeat([]byte("0123456789"), 4_000)
	port := serialPort(t, func(conn *websocket.Conn) {
		for n := 0; n < len(said); n += 10_000 {
			if err := conn.WriteMessage(websocket.BinaryMessage, said[n:n+10_000]); err != nil {
				t.Error(err)
			}
		}
		_ = conn.Close()
	})
	conn := connected(t, port, time.Minute, asItIs)
	within(t, "refused", func() bool {
		_, err := conn.Write([]byte("x"))
		return err != nil
	})
	heard := make([]byte, len(said))
	if n, err := io.ReadFull(conn, heard); err != nil || !bytes.Equal(heard, said) {
		t.Errorf("read %d of %d bytes, %v", n, len(said), err)
	}
}

// TestConsole_close_does_not_wait: neither for a guest that takes no input nor
// for who does not say goodbye.
func TestConsole_close_does_not_wait(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	port := serialPort(t, func(conn *websocket.Conn) {
		<-release
		_ = conn.Close()
	})
	conn := connected(t, port, time.Minute, asItIs)
	t.Cleanup(func() { close(release) })
	stuck := make(chan struct{})
	go func() {
		defer close(stuck)
		for {
			if _, err := conn.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	}()
	time.Sleep(100 * time.Millisecond) // Let it get stuck.
	before := time.Now()
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(before); took > farewell/2 {
		t.Errorf("close took %s", took)
	}
	select {
	case <-stuck:
	case <-time.After(10 * farewell):
		t.Error("who types waits for ever")
	}
}

// TestConsole_input_finds_it_broken: input may be told of a fault that is then
// hidden from output.
func TestConsole_input_finds_it_broken(t *testing.T) {
	t.Parallel()
	told := make(chan struct{})
	port := serialPort(t, func(conn *websocket.Conn) {
		<-told
		hangUp(t, conn)
	})
	conn := connected(t, port, time.Minute, asItIs)
	conn.wrote(websocket.ErrCloseSent)
	conn.wrote(&net.OpError{Op: "write", Err: net.ErrClosed})
	conn.wrote(&net.OpError{Op: "write", Err: syscall.ECONNRESET})
	close(told)
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("ended with %v, want %v", err, syscall.ECONNRESET)
	}
}

// running returns a hypervisor with a machine that runs.
func running(t *testing.T, console http.HandlerFunc) *Hypervisor {
	t.Helper()
	api := newFakeAPI(t)
	api.console = console
	api.put(testVM(on))
	api.put(testVMI("one", kvv1.Running))
	return started(t, api)
}

// TestOpenConsole_in_turn: a dial that was given up does not take the console
// from a later one.
func TestOpenConsole_in_turn(t *testing.T) {
	t.Parallel()
	var (
		dials   atomic.Int32
		reached = make(chan struct{})
		release = make(chan struct{})
		mu      sync.Mutex
		stop    chan struct{}
	)
	h := running(t, func(w http.ResponseWriter, r *http.Request) {
		if dials.Add(1) == 1 {
			close(reached)
			<-release
		}
		// As virt-handler does: the port is taken before the answer.
		mine := make(chan struct{})
		mu.Lock()
		if stop != nil {
			close(stop)
		}
		stop = mine
		mu.Unlock()
		conn, err := kvclient.NewUpgrader().Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				_, message, err := conn.ReadMessage()
				if err != nil || conn.WriteMessage(websocket.BinaryMessage, message) != nil {
					return
				}
			}
		}()
		select {
		case <-mine:
		case <-ended:
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := make(chan error, 1)
	go func() {
		_, err := h.OpenConsole(ctx, ref)
		first <- err
	}()
	<-reached
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the first got %v, want %v", err, context.Canceled)
	}
	impatient, cancelImpatient := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancelImpatient()
	if _, err := h.OpenConsole(impatient, ref); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one who does not wait got %v, want %v", err, context.DeadlineExceeded)
	}
	if n := dials.Load(); n != 1 {
		t.Errorf("%d dials at a time", n)
	}
	close(release)
	conn, err := h.OpenConsole(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 3 {
		word := []byte("word")
		if _, err := conn.Write(word); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, word); err != nil || string(word) != "word" {
			t.Fatalf("read %q, %v", word, err)
		}
	}
}

// TestOpenConsole_refused: in KubeVirt's words.
func TestOpenConsole_refused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		code    int
		message string
		want    error
	}{
		"no serial port":  {http.StatusBadRequest, "No serial consoles are present.", hypervisor.ErrUnsupported},
		"not running":     {http.StatusBadRequest, "VMI is not running", hypervisor.ErrNoInstance},
		"failed":          {http.StatusConflict, "VMI is in failed status", hypervisor.ErrNoInstance},
		"gone":            {http.StatusNotFound, "virtualmachineinstance.kubevirt.io \"vm\" not found", hypervisor.ErrNoInstance},
		"no virt-handler": {http.StatusInternalServerError, "dialing virt-handler: websocket: bad handshake", hypervisor.ErrUnavailable},
		"no virt-api":     {http.StatusServiceUnavailable, "service unavailable", hypervisor.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := running(t, func(w http.ResponseWriter, _ *http.Request) {
				refuse(w, test.code, &metav1.Status{Message: test.message})
			})
			if _, err := h.OpenConsole(t.Context(), ref); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

// TestConsole_ends_with_the_API_server: who hangs up and answers no more is down.
func TestConsole_ends_with_the_API_server(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	h := started(t, api)
	if err := h.consoleEnd(t.Context(), ref, io.EOF); !errors.Is(err, io.EOF) {
		t.Errorf("with an API server that answers: %v, want %v", err, io.EOF)
	}
	api.server.CloseClientConnections()
	api.server.Listener.Close()
	if err := h.consoleEnd(t.Context(), ref, io.EOF); !errors.Is(err, hypervisor.ErrUnavailable) {
		t.Errorf("with one that does not: %v, want %v", err, hypervisor.ErrUnavailable)
	}
}
