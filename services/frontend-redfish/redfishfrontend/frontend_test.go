// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package redfishfrontend

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"kubevirtbmc.dev/pkg/testport"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/fakebackend"
)

func entry(name, password string, port uint32) *registryv1.BMC {
	return &registryv1.BMC{
		Bmc:  &referencev1.BMCReference{Namespace: "lab", Name: name},
		Uuid: "11111111-2222-4333-8444-555555555555",
		Accounts: []*registryv1.Account{{
			Username: "admin", Password: password, Role: registryv1.Role_ROLE_ADMINISTRATOR,
			Protocols: []registryv1.Protocol{registryv1.Protocol_PROTOCOL_REDFISH},
		}},
		Redfish: &registryv1.RedfishEndpoint{Http: &registryv1.Listener{Port: port}},
	}
}

func get(t *testing.T, port uint32, password string) (int, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/redfish/v1/Systems/1", port), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("admin", password)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	response, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	io.Copy(io.Discard, response.Body)
	return response.StatusCode, nil
}

func acknowledged(t *testing.T, r *fakebackend.Registry) *registryv1.Acknowledgement {
	t.Helper()
	select {
	case ack := <-r.Acknowledgements:
		return ack
	case <-time.After(10 * time.Second):
		t.Fatal("no acknowledgement")
		return nil
	}
}

func TestFrontend_followsTheRegistry(t *testing.T) {
	t.Parallel()
	first := entry("one", "first password", uint32(testport.Free(t)))
	registry := fakebackend.NewRegistry(first)
	backend := fakebackend.New().Serve(t)
	metrics := prometheus.NewRegistry()
	readiness := make(chan bool, 4)
	var log strings.Builder
	f, err := New(Config{
		Listen: "127.0.0.1", Registry: registry.Serve(t), Power: backend, Boot: backend, Media: backend, Inventory: backend, State: backend,
		Replica: "replica-1", Log: slog.New(slog.NewJSONHandler(&log, nil)), Metrics: metrics,
		OnReady: func(ready bool) { readiness <- ready },
	})
	if err != nil {
		t.Fatal(err)
	}
	if f.Ready() {
		t.Error("ready before it runs")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()

	if ack := acknowledged(t, registry); !ack.GetServing() || ack.GetBmc().GetName() != "one" || ack.GetRevision() != 1 {
		t.Errorf("first acknowledgement = %v", ack)
	}
	if ready := <-readiness; !ready || !f.Ready() {
		t.Error("not ready although it has all BMCs")
	}
	if hello := registry.Hello(); hello.GetProtocol() != registryv1.Protocol_PROTOCOL_REDFISH || hello.GetReplica() != "replica-1" {
		t.Errorf("hello = %v", hello)
	}
	port := first.GetRedfish().GetHttp().GetPort()
	if status, err := get(t, port, "first password"); status != http.StatusOK {
		t.Errorf("GET = %d, %v", status, err)
	}

	changed := proto.CloneOf(first)
	changed.Accounts[0].Password = "second password"
	registry.Changes <- fakebackend.Upsert(2, changed)
	if ack := acknowledged(t, registry); !ack.GetServing() || ack.GetRevision() != 2 {
		t.Errorf("acknowledgement of a change = %v", ack)
	}
	for password, want := range map[string]int{"first password": 401, "second password": 200} {
		if status, err := get(t, port, password); status != want {
			t.Errorf("GET with the %s = %d, %v, want %d", password, status, err, want)
		}
	}

	clash := entry("two", "x", port)
	registry.Changes <- fakebackend.Upsert(3, clash)
	if ack := acknowledged(t, registry); ack.GetServing() || !strings.Contains(ack.GetMessage(), "address already in use") {
		t.Errorf("acknowledgement of a port that is taken = %v", ack)
	}

	registry.Changes <- fakebackend.Removal(4, first.GetBmc())
	if ack := acknowledged(t, registry); ack.GetServing() {
		t.Errorf("acknowledgement of a removal = %v", ack)
	}
	if _, err := get(t, port, "second password"); err == nil {
		t.Error("a removed BMC is served")
	}
	families, err := metrics.Gather()
	if err != nil || len(families) < 4 {
		t.Errorf("%d metric families, %v", len(families), err)
	}

	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Run does not end")
	}
	if f.Ready() {
		t.Error("ready after it ended")
	}
	for _, secret := range []string{"first password", "second password"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log has %q", secret)
		}
	}
}

// A request under way when the process is told to stop is answered.
func TestFrontend_finishesRequestsAtShutdown(t *testing.T) {
	t.Parallel()
	first := entry("one", "password", uint32(testport.Free(t)))
	registry := fakebackend.NewRegistry(first)
	machine := fakebackend.New()
	hold := machine.HoldTransitions()
	backend := machine.Serve(t)
	f, err := New(Config{
		Listen: "127.0.0.1", Registry: registry.Serve(t), Power: backend, Boot: backend, Inventory: backend, State: backend,
		Replica: "replica-1", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	acknowledged(t, registry)
	status := make(chan int, 1)
	port := first.GetRedfish().GetHttp().GetPort()
	go func() {
		req, _ := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodPost,
			fmt.Sprintf("http://127.0.0.1:%d/redfish/v1/Systems/1/Actions/ComputerSystem.Reset", port), strings.NewReader(`{"ResetType":"ForceOff"}`))
		req.SetBasicAuth("admin", "password")
		response, err := http.DefaultClient.Do(req)
		if err != nil {
			status <- 0
			return
		}
		response.Body.Close()
		status <- response.StatusCode
	}()
	<-hold.Entered
	cancel()
	for range 100 { // Until the port is closed, which is when the drain begins.
		if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
			break
		} else {
			c.Close()
			time.Sleep(10 * time.Millisecond)
		}
	}
	close(hold.Release)
	if got := <-status; got != http.StatusNoContent {
		t.Errorf("request under way = %d, want 204", got)
	}
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestNew_refusesIncompleteConfig(t *testing.T) {
	t.Parallel()
	conn := fakebackend.New().Serve(t)
	whole := Config{
		Registry: conn, Power: conn, Boot: conn, Inventory: conn, State: conn, Replica: "x", Log: slog.New(slog.DiscardHandler),
		Certificate: func() (*tls.Certificate, error) { return nil, nil },
	}
	if _, err := New(whole); err != nil {
		t.Errorf("a whole config: %v", err)
	}
	for name, clear := range map[string]func(*Config){
		"registry": func(c *Config) { c.Registry = nil }, "power": func(c *Config) { c.Power = nil }, "boot": func(c *Config) { c.Boot = nil },
		"inventory": func(c *Config) { c.Inventory = nil }, "replica": func(c *Config) { c.Replica = "" }, "log": func(c *Config) { c.Log = nil },
	} {
		cfg := whole
		clear(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	metrics := prometheus.NewRegistry()
	whole.Metrics = metrics
	if _, err := New(whole); err != nil {
		t.Errorf("with metrics: %v", err)
	}
	if _, err := New(whole); err == nil {
		t.Error("the same metrics twice are no error")
	}
}

// A frontend that is to end serves its BMC until the registry has given it to
// another, and is not ready meanwhile.
func TestFrontend_goesOnUntilRelieved(t *testing.T) {
	t.Parallel()
	one := entry("one", "password", uint32(testport.Free(t)))
	registry, backend := fakebackend.NewRegistry(one), fakebackend.New().Serve(t)
	f, err := New(Config{
		Listen: "127.0.0.1", Registry: registry.Serve(t), Power: backend, Boot: backend, Media: backend, Inventory: backend, State: backend,
		Replica: "replica-1", Log: slog.New(slog.DiscardHandler), DrainTime: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	acknowledged(t, registry)
	cancel()
	changed := proto.CloneOf(one)
	changed.Accounts[0].Password = "changed"
	registry.Changes <- fakebackend.Upsert(2, changed)
	acknowledged(t, registry)
	if f.Ready() {
		t.Error("it is ready although it is to end")
	}
	if status, err := get(t, one.GetRedfish().GetHttp().GetPort(), "changed"); status != http.StatusOK {
		t.Errorf("GET = %d, %v", status, err)
	}
	select {
	case err := <-done:
		t.Fatalf("Run has ended before the BMC was given away: %v", err)
	default:
	}
	registry.Changes <- fakebackend.Removal(3, one.GetBmc())
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Run does not end")
	}
}
