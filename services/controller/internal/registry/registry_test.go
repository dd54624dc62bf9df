// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

const (
	ipmi    = registryv1.Protocol_PROTOCOL_IPMI
	redfish = registryv1.Protocol_PROTOCOL_REDFISH

	agent = "agent-of-a"
)

// rested is when BMCs have begun to move for balance alone.
const rested = registry.DefaultRestTime + time.Second

// observer counts what it is told.
type observer struct {
	mu       sync.Mutex
	statuses map[registry.Ref]int
	replicas map[registryv1.Protocol]int
}

func (o *observer) StatusChanged(ref registry.Ref) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.statuses[ref]++
}

func (o *observer) ReplicasChanged(protocol registryv1.Protocol) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.replicas[protocol]++
}

// take returns how often it was told of a BMC since it was last asked.
func (o *observer) take(name string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.statuses[ref(name)]
	delete(o.statuses, ref(name))
	return n
}

// world is a registry under test, in a bubble of synctest.
type world struct {
	*testing.T
	*registry.Registry
	observer *observer
	log      *bytes.Buffer
	metrics  *prometheus.Registry
	stop     func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		T: t, observer: &observer{statuses: map[registry.Ref]int{}, replicas: map[registryv1.Protocol]int{}},
		log: &bytes.Buffer{}, metrics: prometheus.NewRegistry(),
	}
	r, err := registry.New(registry.Config{
		Log: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Metrics: w.metrics,
		Observer: w.observer,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Registry = r
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(w.stop)
	synctest.Wait()
	return w
}

func ref(name string) registry.Ref { return registry.Ref{Namespace: "lab", Name: name} }

// entry is a BMC that is served over both protocols.
func entry(name, password string) registry.Entry {
	both := []registryv1.Protocol{ipmi, redfish}
	return registry.Entry{BMC: &registryv1.BMC{
		Bmc:  &referencev1.BMCReference{Namespace: "lab", Name: name},
		Uuid: "4c4c4544-0042-3510-8054-b4c04f4c4d32",
		Accounts: []*registryv1.Account{
			{Username: "admin", Password: password, Role: registryv1.Role_ROLE_ADMINISTRATOR, Protocols: both},
			{Username: "web", Password: "secret-web", Role: registryv1.Role_ROLE_OPERATOR, Protocols: both[1:]},
		},
		Ipmi: &registryv1.IPMIEndpoint{Udp: &registryv1.Listener{Port: 20623, ClientPort: 623}, CipherSuites: []uint32{17}, Kg: []byte("secret-kg")},
		Redfish: &registryv1.RedfishEndpoint{
			Https: &registryv1.Listener{Port: 20443, ClientPort: 443},
			Certificate: &registryv1.Certificate{
				ChainPem: []byte("chain"), PrivateKeyPem: []byte("secret-key"),
			},
		},
	}}
}

// frontend is a replica as the test plays it. It notes what it is told, and
// acknowledges if it is to.
type frontend struct {
	*registry.Session
	w      *world
	name   string
	cancel context.CancelFunc

	mu       sync.Mutex
	has      map[string]*registryv1.BMC
	told     []string // since it was last asked
	unknown  []string // at the end of the first part
	revision uint64
	answer   func(*registryv1.Acknowledgement) bool
}

func (w *world) connect(name string, revision uint64) *frontend {
	w.Helper()
	return w.connectAs("", ipmi, name, revision)
}

func (w *world) connectAs(identity string, protocol registryv1.Protocol, name string, revision uint64) *frontend {
	w.Helper()
	hello := &registryv1.Hello{Protocol: protocol, Replica: name, Revision: revision}
	session, err := w.Connect(w.Context(), identity, hello)
	if err != nil {
		w.Fatalf("connect %s: %v", name, err)
	}
	f := &frontend{Session: session, w: w, name: name, has: map[string]*registryv1.BMC{}}
	f.answer = func(*registryv1.Acknowledgement) bool { return true }
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	go f.run(ctx)
	w.Cleanup(f.lose)
	synctest.Wait()
	return f
}

// lose ends the stream.
func (f *frontend) lose() {
	f.cancel()
	f.Close()
	synctest.Wait()
}

// silence makes it acknowledge nothing any more.
func (f *frontend) silence() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = func(*registryv1.Acknowledgement) bool { return false }
}

func (f *frontend) run(ctx context.Context) {
	for {
		response, err := f.Next(ctx)
		if err != nil {
			return
		}
		f.mu.Lock()
		f.revision = response.GetRevision()
		ack := &registryv1.Acknowledgement{Revision: response.GetRevision()}
		switch payload := response.GetPayload().(type) {
		case *registryv1.SubscribeResponse_Upsert:
			ack.Bmc, ack.Serving = payload.Upsert.GetBmc(), true
			f.has[ack.GetBmc().GetName()] = payload.Upsert
			f.told = append(f.told, "+"+ack.GetBmc().GetName())
		case *registryv1.SubscribeResponse_Removal:
			ack.Bmc = payload.Removal
			delete(f.has, ack.GetBmc().GetName())
			f.told = append(f.told, "-"+ack.GetBmc().GetName())
		case *registryv1.SubscribeResponse_Synced:
			f.told = append(f.told, map[bool]string{true: "full", false: "changes"}[payload.Synced.GetFull()])
			for _, bmc := range payload.Synced.GetUnknown() {
				f.unknown = append(f.unknown, bmc.GetName())
			}
		}
		answer := ack.GetBmc() != nil && f.answer(ack)
		f.mu.Unlock()
		if answer {
			if err := f.Acknowledge(ack); err != nil {
				f.w.Errorf("%s acknowledges %v: %v", f.name, ack, err)
			}
		}
	}
}

// take returns what the replica was told since it was last asked.
func (f *frontend) take() []string {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	told := f.told
	f.told = nil
	return told
}

// wantTold fails the test unless the replica was told this since it was last
// asked.
func (f *frontend) wantTold(want ...string) {
	f.w.Helper()
	if d := cmp.Diff(want, f.take()); d != "" {
		f.w.Errorf("what %s was told (-want +got):\n%s", f.name, d)
	}
}

func (f *frontend) at() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.revision
}

// status waits until the registry rests and returns a BMC's over IPMI.
func (w *world) status(name string) registry.Status {
	w.Helper()
	synctest.Wait()
	status, ok := w.Status(ref(name), ipmi)
	if !ok {
		w.Fatalf("BMC %s is not to be served", name)
	}
	return status
}

func (w *world) wantStatus(name string, want registry.Status) {
	w.Helper()
	if d := cmp.Diff(want, w.status(name)); d != "" {
		w.Errorf("status of %s (-want +got):\n%s", name, d)
	}
}

// ownedBy returns a BMC name that belongs to the first of some replicas.
func ownedBy(names ...string) string {
	for n := 0; ; n++ {
		bmc := fmt.Sprintf("bmc-%d", n)
		if registry.BestOf(names, "lab/"+bmc) == names[0] {
			return bmc
		}
	}
}

func serving(replica string) registry.Status {
	return registry.Status{Replica: replica, Connected: true, State: registry.Serving}
}

// Replicas leave as it is what nothing is known of yet. When it is, those that do
// not serve it stop.
func TestRegistry_unknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Put(entry("a", "p1"))
		mine := ownedBy("r-0", "r-1")
		w.Open([]registry.Ref{ref("a"), ref(mine), ref("gone"), ref("never")})
		f, other := w.connect("r-0", 0), w.connect("r-1", 0)
		f.take()
		other.take()
		for _, one := range []*frontend{f, other} {
			if want := []string{mine, "gone", "never"}; !slices.Equal(sorted(one.unknown), sorted(want)) {
				t.Errorf("%s is told to leave %v, want %v", one.name, one.unknown, want)
			}
		}
		w.Put(entry(mine, "p1"))
		f.wantTold("+" + mine)
		other.wantTold("-" + mine)
		w.Put(entry(mine, "p2"))
		f.wantTold("+" + mine)
		other.wantTold()

		// One that was away meanwhile is told when it is back.
		at := other.at()
		other.lose()
		w.Remove(ref("gone"))
		f.wantTold("-gone")
		other = w.connect("r-1", at)
		other.wantTold("-gone", "changes")
		w.Remove(ref("gone"))
		f.wantTold()
		w.connect("r-2", 0)
		if late := w.connect("r-3", 0); !slices.Equal(late.unknown, []string{"never"}) {
			t.Errorf("one that is new is told to leave %v", late.unknown)
		}
	})
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

func TestRegistry_fullStateThenChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Put(entry("a", "p1"))
		w.Open(nil)
		f := w.connect("r-0", 0)
		f.wantTold("+a", "full")
		w.wantStatus("a", serving("r-0"))
		if w.observer.take("a") == 0 || w.observer.replicas[ipmi] == 0 {
			t.Error("the observer was not told of the replica and of the acknowledgement")
		}

		w.Put(entry("b", "p1"))
		f.wantTold("+b")
		w.Put(entry("b", "p1"))
		f.wantTold()
		// A credential change is one message.
		w.Put(entry("b", "p2"))
		f.wantTold("+b")
		if got := f.has["b"].GetAccounts()[0].GetPassword(); got != "p2" {
			t.Errorf("password %q after the change", got)
		}
		w.Remove(ref("a"))
		w.Remove(ref("never-there"))
		f.wantTold("-a")
		if _, ok := w.Status(ref("a"), ipmi); ok {
			t.Error("a removed BMC has a status")
		}
		w.stop()
		if err := f.Err(); grpcstatus.ReasonOf(err) != errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE {
			t.Errorf("the stream ended with %v", err)
		}
		for _, secret := range []string{"p1", "p2", "secret"} {
			if strings.Contains(w.log.String(), secret) {
				t.Errorf("the log has a secret:\n%s", w.log)
			}
		}
	})
}

func TestRegistry_contentByProtocol(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		whole := entry("a", "p1")
		w.Put(whole)
		w.Open(nil)
		i, r := w.connect("i-0", 0), w.connectAs("", redfish, "r-0", 0)
		i.wantTold("+a", "full")
		r.wantTold("+a", "full")
		want := proto.CloneOf(whole.BMC)
		want.Redfish, want.Accounts = nil, want.Accounts[:1]
		if d := cmp.Diff(want, i.has["a"], protocmp.Transform()); d != "" {
			t.Errorf("what IPMI gets (-want +got):\n%s", d)
		}
		want = proto.CloneOf(whole.BMC)
		want.Ipmi.Kg = nil
		if d := cmp.Diff(want, r.has["a"], protocmp.Transform()); d != "" {
			t.Errorf("what Redfish gets (-want +got):\n%s", d)
		}
		// A new certificate is no news for IPMI.
		renewed := entry("a", "p1")
		renewed.BMC.Redfish.Certificate.ChainPem = []byte("new chain")
		w.Put(renewed)
		i.wantTold()
		r.wantTold("+a")
		// IPMI is switched off.
		off := entry("a", "p1")
		off.BMC.Ipmi = nil
		w.Put(off)
		i.wantTold("-a")
		r.wantTold("+a")
		if _, ok := w.Status(ref("a"), ipmi); ok {
			t.Error("a BMC without IPMI has a status over IPMI")
		}
	})
}

func TestRegistry_resume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, name := range []string{"a", "b", "c"} {
			w.Put(entry(name, "p1"))
		}
		w.Open(nil)
		f := w.connect("r-0", 0)
		f.take()
		f.lose()
		w.wantStatus("a", registry.Status{Replica: "r-0", Problem: "the frontend is not connected"})
		w.Put(entry("b", "p2"))
		w.Remove(ref("c"))
		w.Put(entry("d", "p1"))

		again := w.connect("r-0", f.at())
		told := again.take()
		slices.Sort(told)
		if d := cmp.Diff([]string{"+b", "+d", "-c", "changes"}, told); d != "" {
			t.Errorf("after resuming (-want +got):\n%s", d)
		}
		// What the replica serves already it need not say again.
		w.wantStatus("a", serving("r-0"))

		// It missed the last messages.
		before := again.at()
		w.Put(entry("a", "p3"))
		w.Remove(ref("d"))
		again.wantTold("+a", "-d")
		again.lose()
		third := w.connect("r-0", before)
		// d's removal was acknowledged, so it arrived.
		third.wantTold("+a", "changes")
		w.wantStatus("a", serving("r-0"))
		third.lose()

		// A new process of the same name, and revisions that are not this
		// registry's, get all.
		for _, revision := range []uint64{0, 1, third.at() + 1000, third.at() - 1<<40, third.at() + 1<<40, 1<<64 - 1} {
			f := w.connect("r-0", revision)
			told := f.take()
			slices.Sort(told)
			if d := cmp.Diff([]string{"+a", "+b", "full"}, told); d != "" {
				t.Errorf("at revision %d (-want +got):\n%s", revision, d)
			}
			f.lose()
		}
	})
}

// Changes that come while the first part is being sent follow it.
func TestRegistry_changesWithinTheFirstPart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Put(entry("a", "p1"))
		w.Put(entry("b", "p1"))
		w.Open(nil)
		session, err := w.Connect(t.Context(), "", &registryv1.Hello{Protocol: ipmi, Replica: "r-0"})
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		next := func() string {
			response, err := session.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("%s%s%v", response.GetUpsert().GetBmc().GetName(), response.GetRemoval().GetName(), response.GetSynced().GetFull())
		}
		first := next()
		w.Put(entry("c", "p1"))
		other := map[string]string{"afalse": "b", "bfalse": "a"}[first]
		w.Remove(ref(other)) // Never told.
		w.Put(entry(strings.TrimSuffix(first, "false"), "p2"))
		got := []string{next(), next(), next()}
		if d := cmp.Diff([]string{"true", "cfalse", first}, got); d != "" {
			t.Errorf("messages after %s (-want +got):\n%s", first, d)
		}
	})
}

// A replica that does not read gets the newest of each BMC.
func TestRegistry_slowReplica_getsTheNewestOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Open(nil)
		session, err := w.Connect(t.Context(), "", &registryv1.Hello{Protocol: ipmi, Replica: "r-0"})
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		for n := range 1000 {
			w.Put(entry("a", fmt.Sprintf("p%d", n)))
			w.Put(entry("b", fmt.Sprintf("p%d", n)))
			w.Put(entry("gone", fmt.Sprintf("p%d", n)))
		}
		w.Remove(ref("gone"))
		var got []string
		last := uint64(0)
		for {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			response, err := session.Next(ctx)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if response.GetUpsert() != nil {
				if response.GetRevision() <= last {
					t.Errorf("revision %d follows %d", response.GetRevision(), last)
				}
				last = response.GetRevision()
				got = append(got, response.GetUpsert().GetBmc().GetName()+response.GetUpsert().GetAccounts()[0].GetPassword())
			}
		}
		slices.Sort(got)
		if d := cmp.Diff([]string{"ap999", "bp999"}, got); d != "" {
			t.Errorf("messages (-want +got):\n%s", d)
		}
	})
}

// The new owner serves before clients are sent to it, and the old one after.
func TestRegistry_plannedHandOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		name := ownedBy("new", "old")
		w.Put(entry(name, "p1"))
		w.Open(nil)
		older := w.connect("old", 0)
		older.wantTold("+"+name, "full")
		newer, err := w.Connect(t.Context(), "", &registryv1.Hello{Protocol: ipmi, Replica: "new"})
		if err != nil {
			t.Fatal(err)
		}
		defer newer.Close()
		if synced, err := newer.Next(t.Context()); err != nil || synced.GetSynced() == nil {
			t.Fatalf("first message %v, %v", synced, err)
		}
		upsert, err := newer.Next(t.Context())
		if err != nil || upsert.GetUpsert().GetBmc().GetName() != name {
			t.Fatalf("second message %v, %v", upsert, err)
		}
		time.Sleep(10 * time.Second)
		w.wantStatus(name, serving("old"))
		older.wantTold()
		acknowledge := func(serving bool, problem string) {
			t.Helper()
			if err := newer.Acknowledge(&registryv1.Acknowledgement{Bmc: upsert.GetUpsert().GetBmc(), Revision: upsert.GetRevision(), Serving: serving, Message: problem}); err != nil {
				t.Fatal(err)
			}
		}
		acknowledge(false, "port taken")
		w.wantStatus(name, serving("old"))
		w.observer.take(name)
		acknowledge(true, "")
		w.wantStatus(name, serving("new"))
		if w.observer.take(name) == 0 {
			t.Error("the observer was not told of the new owner")
		}
		older.wantTold()
		time.Sleep(registry.DefaultHandOverTime - time.Millisecond)
		older.wantTold()
		time.Sleep(time.Millisecond)
		older.wantTold("-" + name)

		// The new owner goes without a word.
		newer.Close()
		older.wantTold("+" + name)
		w.wantStatus(name, serving("old"))
	})
}

// A credential change in the middle of a hand-over reaches both.
func TestRegistry_changeWhileHandingOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		name := ownedBy("new", "old")
		w.Put(entry(name, "p1"))
		w.Open(nil)
		older, newer := w.connect("old", 0), w.connect("new", 0)
		older.take()
		newer.wantTold("full")
		time.Sleep(rested)
		newer.wantTold("+" + name)
		w.Put(entry(name, "p2"))
		older.wantTold("+" + name)
		newer.wantTold("+" + name)
		// The new owner dies while the old one still serves: nothing was lost.
		newer.lose()
		w.wantStatus(name, serving("old"))
		time.Sleep(time.Minute)
		older.wantTold()
		w.wantStatus(name, serving("old"))
	})
}

// A replica that is going to end hands its BMCs over first.
func TestRegistry_draining(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		name := ownedBy("a", "b")
		w.Put(entry(name, "p1"))
		w.Open(nil)
		a := w.connect("a", 0)
		b := w.connect("b", 0)
		a.wantTold("+"+name, "full")
		b.wantTold("full")
		w.SetDraining(registry.ReplicaID{Protocol: ipmi, Name: "a"}, true)
		b.wantTold("+" + name)
		w.wantStatus(name, serving("b"))
		time.Sleep(registry.DefaultHandOverTime)
		a.wantTold("-" + name)
		want := []registry.Replica{
			{ReplicaID: registry.ReplicaID{Protocol: ipmi, Name: "a"}, Connected: true, Draining: true},
			{ReplicaID: registry.ReplicaID{Protocol: ipmi, Name: "b"}, Connected: true, BMCs: 1},
		}
		if d := cmp.Diff(want, w.Replicas(ipmi)); d != "" {
			t.Errorf("replicas (-want +got):\n%s", d)
		}
		// When all are going to end they have to do, and a move gains nothing.
		w.SetDraining(registry.ReplicaID{Protocol: ipmi, Name: "b"}, true)
		w.wantStatus(name, serving("b"))
		b.lose()
		w.wantStatus(name, serving("a"))
		w.SetDraining(registry.ReplicaID{Protocol: ipmi, Name: "never-there"}, true)
	})
}

// A replica that comes gets BMCs that are served elsewhere only when replicas have
// neither come nor gone for a while, and a step at a time. Those that have to move
// do not wait.
func TestRegistry_balance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const bmcs = 1000
		for n := range bmcs {
			w.Put(entry(fmt.Sprintf("bmc-%d", n), "p1"))
		}
		w.Open(nil)
		a := w.connect("a", 0)
		owned := func() map[string]int {
			synctest.Wait()
			counts := map[string]int{}
			for _, replica := range w.Replicas(ipmi) {
				counts[replica.Name] = replica.BMCs
			}
			return counts
		}
		want := func(when string, want map[string]int) {
			t.Helper()
			if d := cmp.Diff(want, owned()); d != "" {
				t.Errorf("BMCs of each %s (-want +got):\n%s", when, d)
			}
		}
		shares := func(names ...string) map[string]int {
			counts := map[string]int{}
			for n := range bmcs {
				counts[registry.BestOf(names, fmt.Sprintf("lab/bmc-%d", n))]++
			}
			return counts
		}
		time.Sleep(registry.DefaultRestTime / 2)
		b := w.connect("b", 0)
		time.Sleep(registry.DefaultRestTime / 2)
		c := w.connect("c", 0)
		time.Sleep(registry.DefaultRestTime - time.Millisecond)
		want("while it rests", map[string]int{"a": bmcs, "b": 0, "c": 0})
		for _, f := range []*frontend{b, c} {
			f.wantTold("full")
		}
		time.Sleep(time.Second)
		if got := owned()["a"]; got != bmcs-registry.BalanceStep {
			t.Errorf("after a step a has %d BMCs, want %d", got, bmcs-registry.BalanceStep)
		}
		time.Sleep(bmcs / registry.BalanceStep * time.Second)
		balanced := shares("a", "b", "c")
		want("at the end", balanced)

		// What a dead one had moves at once, and nothing else.
		b.lose()
		after := shares("a", "c")
		after["b"] = 0
		want("after a death", after)
		// Its successor has other BMCs, and those not at once.
		w.connect("d", 0)
		after["d"] = 0
		want("with a successor", after)
		// a ends before there is balance: only its own move.
		w.SetDraining(registry.ReplicaID{Protocol: ipmi, Name: "a"}, true)
		got := owned()
		if got["a"] != 0 || got["c"] < after["c"] || got["d"] == 0 {
			t.Errorf("BMCs of each while one ends: %v", got)
		}
		time.Sleep(rested + bmcs/registry.BalanceStep*time.Second)
		after = shares("c", "d")
		after["a"], after["b"] = 0, 0
		want("at last", after)
		c.take()
		a.take()
		time.Sleep(time.Hour)
		c.wantTold()
		a.wantTold()
	})
}

// A BMC that its owner can't serve need not wait for balance.
func TestRegistry_balance_failingOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		name := ownedBy("new", "old")
		w.Open(nil)
		older := w.connect("old", 0)
		older.mu.Lock()
		older.answer = func(ack *registryv1.Acknowledgement) bool {
			ack.Serving, ack.Message = false, "port taken"
			return true
		}
		older.mu.Unlock()
		w.Put(entry(name, "p1"))
		w.connect("new", 0)
		w.wantStatus(name, serving("new"))
	})
}

func TestRegistry_problemOfTheOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Put(entry("a", "p1"))
		w.wantStatus("a", registry.Status{Problem: "no frontend is connected"})
		w.Open(nil)
		f := w.connect("r-0", 0)
		f.mu.Lock()
		f.answer = func(ack *registryv1.Acknowledgement) bool {
			ack.Serving, ack.Message = false, "port\ttaken\xff"+strings.Repeat("x", 2000)
			return true
		}
		f.mu.Unlock()
		w.Put(entry("a", "p2"))
		got := w.status("a")
		if got.State != registry.Failed || !strings.HasPrefix(got.Problem, "port taken?xx") || len(got.Problem) > 1024 {
			t.Errorf("status %+v", got)
		}
		f.mu.Lock()
		f.answer = func(*registryv1.Acknowledgement) bool { return false }
		f.mu.Unlock()
		w.Put(entry("a", "p3"))
		w.wantStatus("a", registry.Status{Replica: "r-0", Connected: true, Problem: "the frontend has not answered yet"})
	})
}

// A replica that takes messages and answers none is as good as dead.
func TestRegistry_replicaWithoutAnswers_losesItsBMCs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		name := ownedBy("mute", "other")
		w.Open(nil)
		mute, other := w.connect("mute", 0), w.connect("other", 0)
		mute.mu.Lock()
		mute.answer = func(*registryv1.Acknowledgement) bool { return false }
		mute.mu.Unlock()
		w.Put(entry(name, "p1"))
		mute.wantTold("full", "+"+name)
		time.Sleep(registry.DefaultAckTime + 2*time.Second)
		if err := mute.Err(); grpcstatus.ReasonOf(err) != errorsv1.Reason_REASON_LIMIT_REACHED {
			t.Errorf("the stream ended with %v", err)
		}
		other.wantTold("full", "+"+name)
		w.wantStatus(name, serving("other"))
		// One that was told nothing for long is none.
		time.Sleep(time.Hour)
		if err := other.Err(); err != nil {
			t.Error(err)
		}
	})
}

// A new controller tells nobody anything before it knows all BMCs, and waits for
// the replicas that clients are sent to.
func TestRegistry_settles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		name := ownedBy("late", "early")
		early := w.connect("early", 0)
		time.Sleep(time.Minute)
		early.wantTold()
		w.Put(entry(name, "p1"))
		early.wantTold()
		w.Open(nil)
		early.wantTold("+"+name, "full")
	})
	for name, late := range map[string]time.Duration{"comes": 2 * time.Second, "does not come": 0} {
		t.Run("expected replica "+name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				name := ownedBy("late", "early")
				w.Put(entry(name, "p1"))
				w.Open(nil, registry.ReplicaID{Protocol: ipmi, Name: "late"}, registry.ReplicaID{Protocol: ipmi, Name: "early"})
				early := w.connect("early", 0)
				time.Sleep(registry.DefaultSettleTime - 3*time.Second)
				if late > 0 {
					w.connect("late", 0).wantTold("+"+name, "full")
					early.wantTold("full")
					return
				}
				time.Sleep(3*time.Second - time.Millisecond)
				early.wantTold()
				time.Sleep(time.Millisecond)
				early.wantTold("+"+name, "full")
			})
		})
	}
}

// A frontend that serves one BMC alone gets no other, and no other frontend gets
// that one.
func TestRegistry_agent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		dedicated := entry("a", "p1")
		dedicated.Agent = agent
		w.Put(dedicated)
		w.Put(entry("b", "p1"))
		w.Open(nil)
		own, shared, stranger := w.connectAs(agent, ipmi, "r-0", 0), w.connect("r-0", 0), w.connectAs("stranger", ipmi, "r-0", 0)
		own.wantTold("+a", "full")
		if d := cmp.Diff([]registry.Ref{ref("a")}, own.BMCs()); d != "" {
			t.Errorf("the agent's BMCs (-want +got):\n%s", d)
		}
		shared.wantTold("+b", "full")
		stranger.wantTold("full")
		// b's acknowledgement by a stranger counts for nothing.
		err := own.Acknowledge(&registryv1.Acknowledgement{Bmc: &referencev1.BMCReference{Namespace: "lab", Name: "b"}, Revision: shared.at(), Message: "broken"})
		if err != nil {
			t.Error(err)
		}
		w.wantStatus("b", serving("r-0"))
		// An agent can't have replicas without end.
		for n := range 8 {
			_, err = w.Connect(t.Context(), agent, &registryv1.Hello{Protocol: ipmi, Replica: fmt.Sprint(n)})
		}
		if grpcstatus.ReasonOf(err) != errorsv1.Reason_REASON_LIMIT_REACHED {
			t.Errorf("the ninth replica of an agent got %v", err)
		}
	})
}

// A BMC that gets other frontends is served by the former ones until clients are
// with those.
func TestRegistry_otherGroup_handsOver(t *testing.T) {
	t.Parallel()
	dedicated := func(password string) registry.Entry {
		e := entry("a", password)
		e.Agent = agent
		return e
	}
	for name, tc := range map[string]struct {
		run func(w *world, shared, own *frontend)
	}{
		"at leisure": {func(w *world, shared, own *frontend) {
			time.Sleep(registry.DefaultHandOverTime - time.Millisecond)
			shared.wantTold()
			time.Sleep(time.Millisecond)
			shared.wantTold("-a")
			own.wantTold()
		}},
		"a new password meanwhile": {func(w *world, shared, own *frontend) {
			w.Put(dedicated("p2"))
			own.wantTold("+a")
			time.Sleep(registry.DefaultHandOverTime)
			shared.wantTold("-a")
			w.wantStatus("a", registry.Status{Agent: agent, Replica: "r-0", Connected: true, State: registry.Serving})
		}},
		"and back": {func(w *world, shared, own *frontend) {
			w.Put(entry("a", "p1"))
			time.Sleep(registry.DefaultHandOverTime)
			own.wantTold("-a")
			time.Sleep(registry.DefaultHandOverTime)
			shared.wantTold("+a") // Of the same content, but anew.
			w.wantStatus("a", serving("r-0"))
		}},
		"the new one takes its time": {func(w *world, shared, own *frontend) {
			w.Put(entry("a", "p1"))
			shared.wantTold("+a")
			own.wantTold()
			time.Sleep(registry.DefaultHandOverTime)
			own.wantTold("-a")
			own.silence()
			w.Put(dedicated("p1"))
			own.wantTold("+a")
			w.wantStatus("a", serving("r-0"))
			time.Sleep(registry.DefaultHandOverTime)
			shared.wantTold("-a")
			w.wantStatus("a", registry.Status{Agent: agent, Replica: "r-0", Connected: true, Problem: "the frontend has not answered yet"})
		}},
		"the BMC goes": {func(w *world, shared, own *frontend) {
			w.Remove(ref("a"))
			shared.wantTold("-a")
			own.wantTold("-a")
		}},
		"the former one dies": {func(w *world, shared, own *frontend) {
			shared.lose()
			time.Sleep(registry.DefaultHandOverTime)
			own.wantTold()
			w.wantStatus("a", registry.Status{Agent: agent, Replica: "r-0", Connected: true, State: registry.Serving})
		}},
		"the new one dies": {func(w *world, shared, own *frontend) {
			own.lose()
			time.Sleep(registry.DefaultHandOverTime)
			shared.wantTold("-a")
			w.wantStatus("a", registry.Status{Agent: agent, Replica: "r-0", Problem: "the frontend is not connected"})
		}},
		"the former one says that it fails": {func(w *world, shared, own *frontend) {
			err := shared.Acknowledge(&registryv1.Acknowledgement{Bmc: ref("a").Message(), Revision: shared.at(), Message: "broken"})
			if err != nil {
				w.Error(err)
			}
			w.wantStatus("a", registry.Status{Agent: agent, Replica: "r-0", Connected: true, State: registry.Serving})
			time.Sleep(registry.DefaultHandOverTime)
			shared.wantTold("-a")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.Put(entry("a", "p1"))
				w.Open(nil)
				shared, own := w.connect("r-0", 0), w.connectAs(agent, ipmi, "r-0", 0)
				shared.wantTold("+a", "full")
				own.wantTold("full")
				w.Put(dedicated("p1"))
				own.wantTold("+a")
				shared.wantTold()
				tc.run(w, shared, own)
			})
		})
	}
}

func TestRegistry_Connected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		want := func(when, agent string, is bool, protocols ...registryv1.Protocol) {
			t.Helper()
			if got := w.Connected(agent, protocols...); got != is {
				t.Errorf("%s: %q over %v is connected: %v, want %v", when, agent, protocols, got, is)
			}
		}
		want("at first", "", false, ipmi)
		want("at first", "", true)
		w.Open(nil)
		own := w.connectAs(agent, ipmi, "r-0", 0)
		want("with the one", agent, true, ipmi)
		want("with the one", agent, false, ipmi, redfish)
		want("with the one", "", false, ipmi)
		w.connectAs(agent, redfish, "r-0", 0)
		want("with both", agent, true, ipmi, redfish)
		w.SetDraining(registry.ReplicaID{Protocol: redfish, Agent: agent, Name: "r-0"}, true)
		want("while one ends", agent, false, ipmi, redfish)
		own.lose()
		want("without the one", agent, false, ipmi)
	})
}

// Another stream of the same replica takes over at once, without moving BMCs.
func TestRegistry_secondStreamOfAReplica(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		name := ownedBy("a", "b")
		w.Put(entry(name, "p1"))
		w.Open(nil)
		a, b := w.connect("a", 0), w.connect("b", 0)
		b.wantTold("full")
		second := w.connect("a", a.at())
		second.wantTold("changes")
		if err := a.Err(); grpcstatus.ReasonOf(err) != errorsv1.Reason_REASON_OPERATION_UNDER_WAY {
			t.Errorf("the first stream ended with %v", err)
		}
		a.lose() // Late: it is not the second's end.
		w.wantStatus(name, serving("a"))
		b.wantTold()
		w.Put(entry(name, "p2"))
		second.wantTold("+" + name)
	})
}

func TestRegistry_strayAcknowledgements(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Put(entry("a", "p1"))
		w.Open(nil)
		f := w.connect("r-0", 0)
		stray := &registryv1.Acknowledgement{Bmc: &referencev1.BMCReference{Namespace: "lab", Name: "unknown"}, Revision: f.at()}
		old := &registryv1.Acknowledgement{Bmc: &referencev1.BMCReference{Namespace: "lab", Name: "a"}, Revision: f.at() - 1}
		var err error
		n := 0
		for ; err == nil && n < 100000; n += 2 {
			err = errors.Join(f.Acknowledge(stray), f.Acknowledge(old))
		}
		if n < 20000 || n > 20010 {
			t.Errorf("%d stray acknowledgements were taken", n)
		}
		w.wantStatus("a", serving("r-0"))
	})
}

func TestRegistry_forgetsReplicas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Put(entry("a", "p1"))
		w.Open(nil)
		w.connect("r-0", 0).lose()
		if got := len(w.Replicas(ipmi)); got != 1 {
			t.Errorf("%d replicas are known", got)
		}
		time.Sleep(6 * time.Minute)
		if got := len(w.Replicas(ipmi)); got != 0 {
			t.Errorf("%d replicas are known after a while", got)
		}
		w.wantStatus("a", registry.Status{Problem: "no frontend is connected"})
	})
}

func TestRegistry_notRunning_refuses(t *testing.T) {
	t.Parallel()
	r, err := registry.New(registry.Config{Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	r.Put(entry("a", "p1"))
	r.Open(nil)
	for _, protocol := range []registryv1.Protocol{ipmi, 0, 99} {
		want := errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE
		if protocol != ipmi {
			want = errorsv1.Reason_REASON_INVALID_REQUEST
		}
		if _, err := r.Connect(t.Context(), "", &registryv1.Hello{Protocol: protocol, Replica: "r-0"}); grpcstatus.ReasonOf(err) != want {
			t.Errorf("protocol %d: connect got %v, want %v", protocol, err, want)
		}
	}
}

func TestRegistry_metrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Put(entry("a", "p1"))
		w.Open(nil)
		w.connect("r-0", 0)
		families, err := w.metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				name := family.GetName()
				for _, label := range metric.GetLabel() {
					name += " " + label.GetValue()
				}
				got[name] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
			}
		}
		for name, want := range map[string]float64{
			"vbmc_registry_bmcs ipmi serving": 1, "vbmc_registry_bmcs ipmi pending": 0, "vbmc_registry_bmcs redfish pending": 1,
			"vbmc_registry_replicas ipmi": 1, "vbmc_registry_moves_total ipmi": 1,
		} {
			if got[name] != want {
				t.Errorf("%s = %v, want %v", name, got[name], want)
			}
		}
	})
}
