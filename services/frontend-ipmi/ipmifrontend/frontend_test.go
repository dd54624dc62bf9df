// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package ipmifrontend_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"kubevirtbmc.dev/pkg/testport"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/fakeservice"
	"kubevirtbmc.dev/services/frontend-ipmi/ipmifrontend"
)

const (
	bmcUUID     = "11111111-2222-3333-4444-555555555555"
	machineUUID = "00112233-4455-6677-8899-aabbccddeeff"
)

// bench is a running frontend with one BMC.
type bench struct {
	services *fakeservice.Services
	bmc      *registryv1.BMC
	logs     *lockedBuffer
	stop     func()
}

func (b *bench) port() uint32                         { return b.bmc.GetIpmi().GetUdp().GetPort() }
func (b *bench) reference() *referencev1.BMCReference { return b.bmc.GetBmc() }

// apply sends the BMC to the frontend and waits until it is acknowledged.
func (b *bench) apply(t testing.TB) {
	t.Helper()
	before := len(b.services.Acknowledgements())
	b.services.Upsert(b.bmc)
	eventually(t, "acknowledgement", func() bool { return len(b.services.Acknowledgements()) > before })
	acks := b.services.Acknowledgements()
	if last := acks[len(acks)-1]; !last.GetServing() {
		t.Fatalf("BMC is not served: %s", last.GetMessage())
	}
}

func newBMC(name string, port uint32) *registryv1.BMC {
	return &registryv1.BMC{
		Bmc:  &referencev1.BMCReference{Namespace: "default", Name: name},
		Uuid: bmcUUID,
		Accounts: []*registryv1.Account{
			account("admin", "password", registryv1.Role_ROLE_ADMINISTRATOR),
			account("operator", "password2", registryv1.Role_ROLE_OPERATOR),
			account("reader", "password3", registryv1.Role_ROLE_READ_ONLY),
			{Username: "web", Password: "password4", Role: registryv1.Role_ROLE_ADMINISTRATOR, Protocols: []registryv1.Protocol{registryv1.Protocol_PROTOCOL_REDFISH}},
		},
		Ipmi: &registryv1.IPMIEndpoint{Udp: &registryv1.Listener{Port: port}},
	}
}

func account(name, password string, role registryv1.Role) *registryv1.Account {
	return &registryv1.Account{
		Username: name, Password: password, Role: role,
		Protocols: []registryv1.Protocol{registryv1.Protocol_PROTOCOL_REDFISH, registryv1.Protocol_PROTOCOL_IPMI},
	}
}

// start runs a frontend and has it serve a BMC.
func start(t testing.TB) *bench {
	t.Helper()
	return startOn(t, uint32(testport.Free(t)))
}

// startOn does so with that port.
func startOn(t testing.TB, port uint32) *bench {
	t.Helper()
	b := &bench{services: fakeservice.Start(t), logs: &lockedBuffer{}}
	b.bmc = newBMC("vm-a", port)
	b.services.Change(b.bmc.GetBmc(), func(m *fakeservice.Machine) { m.UUID = machineUUID })
	frontend, err := ipmifrontend.New(ipmifrontend.Config{
		Listen: "127.0.0.1", Registry: b.services.Conn, Power: b.services.Conn, Boot: b.services.Conn, Inventory: b.services.Conn, State: b.services.Conn, Console: b.services.Conn,
		Replica: t.Name(), Log: slog.New(slog.NewJSONHandler(b.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- frontend.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(b.stop)
	eventually(t, "readiness", frontend.Ready)
	b.apply(t)
	return b
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if condition() {
			return
		}
	}
	t.Fatalf("%s: not within 10 s", what)
}

type lockedBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, b...)
	return len(b), nil
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b)
}

var _ io.Writer = (*lockedBuffer)(nil)

func (b *bench) address() string { return fmt.Sprintf("127.0.0.1:%d", b.port()) }

func TestNew_tellsWhatIsMissing(t *testing.T) {
	t.Parallel()
	services := fakeservice.Start(t)
	full := ipmifrontend.Config{Registry: services.Conn, Power: services.Conn, Boot: services.Conn, Replica: "r"}
	if _, err := ipmifrontend.New(full); err != nil {
		t.Errorf("what is needed is not enough: %v", err)
	}
	for name, change := range map[string]func(*ipmifrontend.Config){
		"registry": func(c *ipmifrontend.Config) { c.Registry = nil },
		"power":    func(c *ipmifrontend.Config) { c.Power = nil },
		"boot":     func(c *ipmifrontend.Config) { c.Boot = nil },
		"replica":  func(c *ipmifrontend.Config) { c.Replica = "" },
	} {
		cfg := full
		change(&cfg)
		if _, err := ipmifrontend.New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// A BMC that can't be served is told to the registry, with the reason.
func TestRun_acknowledgesFailure(t *testing.T) {
	t.Parallel()
	b := start(t)
	before := len(b.services.Acknowledgements())
	b.services.Upsert(newBMC("vm-b", b.port()))
	eventually(t, "acknowledgement", func() bool { return len(b.services.Acknowledgements()) > before })
	ack := b.services.Acknowledgements()[before]
	if ack.GetServing() || !strings.Contains(ack.GetMessage(), "address already in use") {
		t.Errorf("a BMC on a port that is taken: %v", ack)
	}
}

// A frontend that is to end serves its BMC until the registry has given it to
// another, and is not ready meanwhile.
func TestFrontend_goesOnUntilRelieved(t *testing.T) {
	t.Parallel()
	services := fakeservice.Start(t)
	b := &bench{services: services, bmc: newBMC("vm-a", uint32(testport.Free(t)))}
	frontend, err := ipmifrontend.New(ipmifrontend.Config{
		Listen: "127.0.0.1", Registry: services.Conn, Power: services.Conn, Boot: services.Conn, Replica: t.Name(), DrainTime: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- frontend.Run(ctx) }()
	eventually(t, "readiness", frontend.Ready)
	b.apply(t)
	cancel()
	eventually(t, "no readiness", func() bool { return !frontend.Ready() })
	b.bmc.Accounts[0].Password = "changed"
	b.apply(t)
	if out, ok := b.ipmitoolAs(t, []string{"-U", "admin", "-P", "changed"}, "power", "status"); !ok {
		t.Errorf("it does not serve any more: %s", out)
	}
	select {
	case err := <-done:
		t.Fatalf("Run has ended before the BMC was given away: %v", err)
	default:
	}
	services.Remove(b.reference())
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Run does not end")
	}
}
