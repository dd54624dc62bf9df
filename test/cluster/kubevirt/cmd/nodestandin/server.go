// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package main

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"time"

	"github.com/gorilla/websocket"
	kvv1 "kubevirt.io/api/core/v1"
)

// certificates is where virt-operator mounts virt-handler's certificate.
const certificates = "/etc/virt-handler/servercertificates/"

// consolePort is where virt-api finds virt-handler.
const consolePort = 8186

// plainProtocol is the websocket subprotocol of consoles: nothing but bytes.
const plainProtocol = "plain.kubevirt.io"

// serve starts the two servers of virt-handler: the one that probes ask, and
// the one that virt-api passes requests on to.
func (h *handler) serve(failed chan<- error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	const instance = "/v1/namespaces/{namespace}/virtualmachineinstances/{name}/"
	for verb, act := range map[string]func(*life){
		"pause":      func(l *life) { l.setPaused(true) },
		"unpause":    func(l *life) { l.setPaused(false) },
		"reset":      func(l *life) { l.reset() },
		"softreboot": func(l *life) { l.softReboot() },
	} {
		mux.HandleFunc("PUT "+instance+verb, h.act(act))
	}
	for verb, tell := range map[string]func(*kvv1.VirtualMachineInstance) any{
		"guestosinfo":    func(vmi *kvv1.VirtualMachineInstance) any { return guestInfo(vmi) },
		"userlist":       func(*kvv1.VirtualMachineInstance) any { return kvv1.VirtualMachineInstanceGuestOSUserList{} },
		"filesystemlist": func(*kvv1.VirtualMachineInstance) any { return kvv1.VirtualMachineInstanceFileSystemList{} },
	} {
		mux.HandleFunc("GET "+instance+verb, h.tell(tell))
	}
	mux.HandleFunc("GET "+instance+"console", h.console)
	mux.HandleFunc("PUT "+migrationPath+"{uid}", h.receive)
	// What tests want to know: which calls virt-api made.
	mux.HandleFunc("GET /calls", func(w http.ResponseWriter, _ *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		writeJSON(w, h.calls)
	})
	mux.HandleFunc(instance+"{verb}", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "the stand-in does not play "+r.PathValue("verb"), http.StatusNotImplemented)
	})
	for _, address := range []string{":8443", fmt.Sprintf(":%d", consolePort)} {
		s := &http.Server{
			Addr: address, Handler: mux, ReadHeaderTimeout: 10 * time.Second,
			TLSConfig: &tls.Config{
				// Read each time, since virt-operator renews it.
				GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
					c, err := tls.LoadX509KeyPair(certificates+"tls.crt", certificates+"tls.key")
					return &c, err
				},
				ClientAuth: tls.RequestClientCert,
			},
			TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // websockets need HTTP/1.1
		}
		go func() { failed <- s.ListenAndServeTLS("", "") }()
	}
}

// admit notes a request, or refuses it: only clients with a certificate, as
// virt-api and the other virt-handlers have one, get further.
func (h *handler) admit(w http.ResponseWriter, r *http.Request) bool {
	if len(r.TLS.PeerCertificates) == 0 {
		http.Error(w, "a client certificate is required", http.StatusUnauthorized)
		return false
	}
	log.Print(r.Method, " ", r.URL.Path)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, r.Method+" "+r.URL.Path)
	return true
}

// find returns the VMI that a request is about and its machine.
func (h *handler) find(w http.ResponseWriter, r *http.Request) (*kvv1.VirtualMachineInstance, *life) {
	if !h.admit(w, r) {
		return nil, nil
	}
	key := r.PathValue("namespace") + "/" + r.PathValue("name")
	o, ok, err := h.instances.GetByKey(key)
	if err != nil || !ok {
		http.Error(w, "no VirtualMachineInstance "+key, http.StatusNotFound)
		return nil, nil
	}
	vmi := o.(*kvv1.VirtualMachineInstance)
	l := h.life(vmi.UID)
	if l == nil || l.has(moved) {
		http.Error(w, "VirtualMachineInstance "+key+" does not run", http.StatusBadRequest)
		return nil, nil
	}
	return vmi, l
}

// act answers a request that does something to a machine. Conditions follow
// with the next tick, as they do with the real one.
func (h *handler) act(do func(*life)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, io.LimitReader(r.Body, 1<<20))
		if _, l := h.find(w, r); l != nil {
			do(l)
			w.WriteHeader(http.StatusAccepted)
		}
	}
}

// tell answers a request for what the guest agent knows.
func (h *handler) tell(what func(*kvv1.VirtualMachineInstance) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if vmi, _ := h.find(w, r); vmi != nil {
			writeJSON(w, what(vmi))
		}
	}
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		log.Print("write response: ", err)
	}
}

// console connects a websocket with a machine's serial port.
func (h *handler) console(w http.ResponseWriter, r *http.Request) {
	_, l := h.find(w, r)
	if l == nil {
		return
	}
	upgrader := websocket.Upgrader{Subprotocols: []string{plainProtocol}, CheckOrigin: func(*http.Request) bool { return true }}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		log.Print("console: ", err)
		return
	}
	out := l.serial.connect()
	defer l.serial.disconnect(out)
	go func() {
		// Whoever ends first closes the connection, and with it the other: without
		// a close frame, as virt-handler does.
		defer conn.Close()
		defer out.close()
		for buffer := make([]byte, 4096); ; {
			n, err := out.Read(buffer)
			if err != nil {
				return
			}
			if err := conn.WriteMessage(websocket.BinaryMessage, buffer[:n]); err != nil {
				return
			}
		}
	}()
	for {
		_, b, err := conn.ReadMessage()
		if err != nil {
			var closed *websocket.CloseError
			if !errors.As(err, &closed) {
				log.Print("console: ", err)
			}
			return
		}
		out.waitForRoom()
		l.input(b)
	}
}
