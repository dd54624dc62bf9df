// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/rest"
	kvclient "kubevirt.io/client-go/kubevirt/typed/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// TestConsole_ends: how a connection ends tells whether it has broken. Whatever
// came before the end is read.
func TestConsole_ends(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end  func(t *testing.T, conn *websocket.Conn)
		want error
	}{
		"hung up without a word": {func(t *testing.T, conn *websocket.Conn) {
			if err := conn.UnderlyingConn().(*tls.Conn).CloseWrite(); err != nil {
				t.Error(err)
			}
		}, io.EOF},
		"closed": {func(t *testing.T, conn *websocket.Conn) {
			message := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
			if err := conn.WriteControl(websocket.CloseMessage, message, time.Time{}); err != nil {
				t.Error(err)
			}
		}, io.EOF},
		"closed with an error": {func(t *testing.T, conn *websocket.Conn) {
			message := websocket.FormatCloseMessage(websocket.CloseInternalServerErr, "broken")
			if err := conn.WriteControl(websocket.CloseMessage, message, time.Time{}); err != nil {
				t.Error(err)
			}
		}, hypervisor.ErrUnavailable},
		"reset": {func(t *testing.T, conn *websocket.Conn) {
			tcp := conn.UnderlyingConn().(*tls.Conn).NetConn().(*net.TCPConn)
			time.Sleep(100 * time.Millisecond) // A reset overtakes what was not read yet.
			if err := errors.Join(tcp.SetLinger(0), tcp.Close()); err != nil {
				t.Error(err)
			}
		}, hypervisor.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				conn, err := kvclient.NewUpgrader().Upgrade(w, r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if err := conn.WriteMessage(websocket.BinaryMessage, []byte("last words")); err != nil {
					t.Error(err)
				}
				test.end(t, conn)
			}))
			t.Cleanup(server.Close)
			config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
			stream, err := kvclient.AsyncSubresourceHelper(config, resourceVMIs, "lab", "vm", "console", url.Values{})
			if err != nil {
				t.Fatal(err)
			}
			api := newFakeAPI(t)
			h := started(t, api)
			conn := newConsoleConn(stream, func(err error) error { return h.consoleEnd(t.Context(), ref, err) })
			defer conn.Close()
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
