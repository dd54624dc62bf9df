//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package bmcresource_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"kubevirtbmc.dev/pkg/bmcresource"
	"kubevirtbmc.dev/pkg/bmcresource/bmcresourcetest"
	"kubevirtbmc.dev/pkg/hypervisor"
)

// machineUID is that of all machines here.
const machineUID = "machine-uid"

// cluster is a namespace of KUBECONFIG's cluster.
type cluster struct {
	*testing.T
	config    *rest.Config
	bmcs      dynamic.ResourceInterface
	namespace string
}

func open(t *testing.T) *cluster {
	t.Helper()
	config := bmcresourcetest.Cluster(t)
	config.QPS, config.Burst = 200, 400
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	namespaces := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	c := &cluster{T: t, config: config, namespace: "bmc-" + strings.ToLower(rand.Text()[:8])}
	namespace := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": c.namespace},
	}}
	if _, err := namespaces.Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := namespaces.Delete(context.Background(), c.namespace, metav1.DeleteOptions{}); err != nil {
			t.Logf("delete namespace: %v", err)
		}
	})
	c.bmcs = bmcresourcetest.Install(t, config).Namespace(c.namespace)
	return c
}

func (c *cluster) create(name, machine string) *unstructured.Unstructured {
	c.Helper()
	created, err := c.bmcs.Create(c.Context(), bmcresourcetest.New(name, machine), metav1.CreateOptions{})
	if err != nil {
		c.Fatal(err)
	}
	return created
}

func (c *cluster) delete(name string) {
	c.Helper()
	if err := c.bmcs.Delete(c.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) patch(name, patch string) {
	c.Helper()
	if _, err := c.bmcs.Patch(c.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		c.Fatal(err)
	}
}

// store starts a store of the namespace alone; wrap, unless it is nil, has a say
// in its requests.
func (c *cluster) store(wrap func(http.RoundTripper) http.RoundTripper, namespaces ...string) *bmcresource.Store {
	c.Helper()
	config := rest.CopyConfig(c.config)
	if wrap != nil {
		config.Wrap(wrap)
	}
	if namespaces == nil {
		namespaces = []string{c.namespace}
	}
	s, err := bmcresource.New(bmcresource.Config{REST: config, Namespaces: namespaces, Log: slog.New(slog.NewTextHandler(c.Output(), nil))})
	if err != nil {
		c.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	c.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			c.Errorf("run: %v", err)
		}
	})
	c.until("ready", s.Ready)
	return s
}

func (c *cluster) until(what string, done func() bool) {
	c.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatalf("not %s", what)
		}
	}
}

func (c *cluster) ref(machine string) hypervisor.Ref {
	return hypervisor.Ref{Namespace: c.namespace, Name: machine}
}

func state(s *bmcresource.Store, machine hypervisor.Ref) string {
	bmc := s.Of(machine)
	if bmc == nil {
		return ""
	}
	return string(bmcresource.State(bmc, machineUID))
}

func TestStore_resolves(t *testing.T) {
	t.Parallel()
	c := open(t)
	c.create("one", "vm")
	s := c.store(nil)
	if got, err := s.Resolve(c.namespace, "one"); err != nil || got != c.ref("vm") {
		t.Errorf("resolved to %s, %v", got, err)
	}
	time.Sleep(time.Second) // Ages are in seconds.
	c.create("two", "vm")
	c.until("known", func() bool {
		_, err := s.Resolve(c.namespace, "two")
		return err != nil && strings.Contains(err.Error(), "belongs to BMC one")
	})
	if _, err := s.Resolve(c.namespace, "two"); !errors.Is(err, hypervisor.ErrNoBMC) {
		t.Errorf("got %v, want %v", err, hypervisor.ErrNoBMC)
	}
	c.patch("one", `{"spec":{"virtualMachineRef":{"name":"other"}}}`)
	c.until("given to the next", func() bool {
		two, err := s.Resolve(c.namespace, "two")
		return err == nil && two == c.ref("vm")
	})
	if got, err := s.Resolve(c.namespace, "one"); err != nil || got != c.ref("other") {
		t.Errorf("resolved to %s, %v", got, err)
	}
	c.delete("one")
	c.until("gone", func() bool {
		_, err := s.Resolve(c.namespace, "one")
		return errors.Is(err, hypervisor.ErrNoBMC)
	})
	if _, err := s.Resolve("default", "two"); !errors.Is(err, hypervisor.ErrNoBMC) {
		t.Errorf("in a namespace that is not served: got %v, want %v", err, hypervisor.ErrNoBMC)
	}
	if got, err := c.store(nil, "").Resolve(c.namespace, "two"); err != nil || got != c.ref("vm") {
		t.Errorf("a store of all namespaces resolved to %s, %v", got, err)
	}
}

func TestStore_setsState(t *testing.T) {
	t.Parallel()
	c := open(t)
	c.create("bmc", "vm")
	s, machine := c.store(nil), c.ref("vm")
	for _, step := range []struct {
		name       string
		uid        string
		old, state []byte
		want       error
	}{
		{"of a BMC that has none, as if there was one", machineUID, []byte("{}"), []byte(`{"a":1}`), hypervisor.ErrStale},
		{"the first", machineUID, nil, []byte(`{"a":1}`), nil},
		{"as if there was none", machineUID, nil, []byte(`{"a":2}`), hypervisor.ErrStale},
		{"as if it was another", machineUID, []byte(`{"a":2}`), []byte(`{"a":3}`), hypervisor.ErrStale},
		{"the second", machineUID, []byte(`{"a":1}`), []byte(`{"a":2}`), nil},
		{"none", machineUID, []byte(`{"a":2}`), nil, nil},
		{"none again", machineUID, nil, nil, nil},
		{"one of a machine before", "earlier-uid", nil, []byte(`{"b":1}`), nil},
		{"over one of a machine before", machineUID, nil, []byte(`{"a":4}`), nil},
		{"more than an object may have", machineUID, []byte(`{"a":4}`), []byte(`"` + strings.Repeat("x", 300<<10) + `"`), new(hypervisor.InvalidError)},
	} {
		before := state(s, machine)
		err := s.SetState(t.Context(), machine, step.uid, step.old, step.state)
		if invalid, ok := errors.AsType[*hypervisor.InvalidError](err); ok && step.want != nil {
			step.want = invalid
		}
		if !errors.Is(err, step.want) {
			t.Errorf("%s: got %v, want %v", step.name, err, step.want)
		}
		want := before
		if err == nil {
			want = string(step.state)
		}
		if step.uid != machineUID {
			want = ""
		}
		if got := state(s, machine); got != want {
			t.Errorf("%s: state is %s, want %s", step.name, got, want)
		}
	}
	if err := s.SetState(t.Context(), c.ref("none"), machineUID, nil, []byte("{}")); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Errorf("of a machine without a BMC: got %v, want %v", err, hypervisor.ErrNotFound)
	}
}

// TestStore_writersOvertakeEachOther: of two processes that change the state at
// the same time, with others that change the rest, no change is lost.
func TestStore_writersOvertakeEachOther(t *testing.T) {
	t.Parallel()
	c := open(t)
	c.create("bmc", "vm")
	machine := c.ref("vm")
	const writers, each = 2, 20
	var stores []*bmcresource.Store
	for range writers {
		stores = append(stores, c.store(nil))
	}
	over := make(chan struct{})
	var others, writing sync.WaitGroup
	others.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-over:
				return
			case <-time.After(2 * time.Millisecond):
				c.patch("bmc", fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, n))
			}
		}
	})
	for _, s := range stores {
		writing.Go(func() {
			for done := 0; done < each; {
				old := state(s, machine)
				number, _ := strconv.Atoi(old)
				var before []byte
				if old != "" {
					before = []byte(old)
				}
				switch err := s.SetState(t.Context(), machine, machineUID, before, []byte(strconv.Itoa(number+1))); {
				case err == nil:
					done++
				case !errors.Is(err, hypervisor.ErrStale):
					t.Error(err)
					return
				default:
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	writing.Wait()
	close(over)
	others.Wait()
	want := strconv.Itoa(writers * each)
	for _, s := range stores {
		c.until("the number of writes", func() bool { return state(s, machine) == want })
	}
}

// lossy has no answer for the next PATCH, which is carried out or not.
type lossy struct {
	http.RoundTripper
	next   atomic.Bool
	before bool
}

var errLost = errors.New("connection reset")

func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPatch || !l.next.Swap(false) {
		return l.RoundTripper.RoundTrip(r)
	}
	if l.before {
		return nil, errLost
	}
	response, err := l.RoundTripper.RoundTrip(r)
	if err == nil {
		_ = response.Body.Close()
	}
	return nil, errLost
}

func TestStore_lostAnswers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before bool
		want   error
	}{
		"carried out":     {false, nil},
		"not carried out": {true, hypervisor.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := open(t)
			c.create("bmc", "vm")
			l := &lossy{before: test.before}
			s := c.store(func(inner http.RoundTripper) http.RoundTripper {
				l.RoundTripper = inner
				return l
			})
			l.next.Store(true)
			if err := s.SetState(t.Context(), c.ref("vm"), machineUID, nil, []byte("{}")); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			want := "{}"
			if test.want != nil {
				want = ""
			}
			if got := state(s, c.ref("vm")); got != want {
				t.Errorf("state is %q, want %q", got, want)
			}
		})
	}
}

// TestStore_madeAnew: what was meant for one BMC is not written to another of the
// same name.
func TestStore_madeAnew(t *testing.T) {
	t.Parallel()
	c := open(t)
	c.create("bmc", "vm")
	held := make(chan struct{})
	entered := make(chan struct{}, 1)
	s := c.store(func(inner http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPatch {
				entered <- struct{}{}
				<-held
			}
			return inner.RoundTrip(r)
		})
	})
	result := make(chan error, 1)
	go func() { result <- s.SetState(t.Context(), c.ref("vm"), machineUID, nil, []byte("{}")) }()
	<-entered
	c.delete("bmc")
	fresh := c.create("bmc", "vm")
	close(held)
	if err := <-result; !errors.Is(err, hypervisor.ErrNotFound) {
		t.Errorf("got %v, want %v", err, hypervisor.ErrNotFound)
	}
	now, err := c.bmcs.Get(t.Context(), "bmc", metav1.GetOptions{})
	if err != nil || now.GetResourceVersion() != fresh.GetResourceVersion() {
		t.Errorf("the new BMC is %v, %v", now, err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestStore_subscribers are told of each machine whose BMC changes.
func TestStore_subscribers(t *testing.T) {
	t.Parallel()
	c := open(t)
	s := c.store(nil)
	var mu sync.Mutex
	told := map[hypervisor.Ref]int{}
	cancel := s.Subscribe(func(machine hypervisor.Ref) {
		mu.Lock()
		defer mu.Unlock()
		told[machine]++
	})
	count := func(machine string) int {
		mu.Lock()
		defer mu.Unlock()
		return told[c.ref(machine)]
	}
	c.create("bmc", "vm")
	c.until("told of a new one", func() bool { return count("vm") == 1 })
	c.patch("bmc", `{"spec":{"virtualMachineRef":{"name":"other"}}}`)
	c.until("told of both", func() bool { return count("vm") == 2 && count("other") == 1 })
	cancel()
	c.delete("bmc")
	c.until("gone", func() bool { return s.Of(c.ref("other")) == nil })
	if got := count("other"); got != 1 {
		t.Errorf("one that has left was told %d times", got)
	}
}

// TestStore_document: the state is text in an annotation, so that any text will
// do.
func TestStore_document(t *testing.T) {
	t.Parallel()
	c := open(t)
	c.create("bmc", "vm")
	s := c.store(nil)
	document, err := json.Marshal(map[string]string{"text": "ü \" \\ \n <>&"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetState(t.Context(), c.ref("vm"), machineUID, nil, document); err != nil {
		t.Fatal(err)
	}
	if got := bmcresource.State(s.Of(c.ref("vm")), machineUID); !bytes.Equal(got, document) {
		t.Errorf("got %s, want %s", got, document)
	}
}
