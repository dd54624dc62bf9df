//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract"
	"kubevirtbmc.dev/pkg/kubeaccess/rbactest"
	"kubevirtbmc.dev/pkg/urlpolicy"
	"kubevirtbmc.dev/services/media/internal/image"
	"kubevirtbmc.dev/services/media/internal/kubevirt"
	"kubevirtbmc.dev/services/media/internal/kubevirt/cditest"
	"kubevirtbmc.dev/services/media/internal/relay"
)

// own is the drive that the service adds.
const own = "virtbmc-media"

// timeout of what a cluster does.
const timeout = 2 * time.Minute

var (
	kubevirts = kvv1.GroupVersion.WithResource("kubevirts")
	machines  = kvv1.GroupVersion.WithResource("virtualmachines")
	instances = kvv1.GroupVersion.WithResource("virtualmachineinstances")
	claims    = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
)

// site is a namespace of KUBECONFIG's cluster with an importer and a relay, and an
// image server.
type site struct {
	*testing.T
	config    *rest.Config
	client    dynamic.Interface
	namespace string
	importer  *cditest.Importer
	images    *imageServer
	relay     *httptest.Server
	source    *relay.Relay
}

// imageServer serves one image of each name, and fails on demand.
type imageServer struct {
	url string
	// failing makes it answer 503.
	failing atomic.Bool
	// chunks, unless it is nil, gives the parts of an answer free one by one.
	mu   sync.Mutex
	gate chan struct{}
}

func content(path string) []byte { return bytes.Repeat([]byte("image "+path+"\n"), 20_000) }

func (s *imageServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.failing.Load() {
		http.Error(w, "out of order", http.StatusServiceUnavailable)
		return
	}
	s.mu.Lock()
	gate := s.gate
	s.mu.Unlock()
	image := content(r.URL.Path)
	if gate == nil || r.Method == http.MethodHead || r.Header.Get("Range") != "" {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(image))
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(image)))
	_, _ = w.Write(image[:len(image)/2])
	_ = http.NewResponseController(w).Flush()
	select {
	case <-gate:
		_, _ = w.Write(image[len(image)/2:])
	case <-r.Context().Done():
	}
}

// hold keeps downloads at their half until the function that it returns is called.
func (s *imageServer) hold() (release func()) {
	gate := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate = gate
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.gate = nil
		close(gate)
	})
}

func newSite(t *testing.T) *site {
	t.Helper()
	kubeconfig := os.Getenv("KUBECONFIG")
	if kubeconfig == "" {
		t.Fatal("KUBECONFIG names no cluster (make test-integration, or hack/with-cluster.sh kubevirt)")
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 200, 400
	config.WarningHandlerWithContext = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{T: t, config: config, client: client, namespace: "media-" + strings.ToLower(rand.Text()[:8]), images: &imageServer{}}
	namespaces := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	namespace := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": s.namespace},
	}}
	if _, err := namespaces.Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := namespaces.Delete(context.Background(), s.namespace, metav1.DeleteOptions{}); err != nil {
			t.Logf("delete namespace: %v", err)
		}
	})
	cditest.Install(t, client)
	s.importer = cditest.Start(t, config, client, s.namespace)
	server := httptest.NewServer(s.images)
	t.Cleanup(server.Close)
	s.images.url = server.URL
	open, err := urlpolicy.New(urlpolicy.Config{Deny: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := relay.NewSealer(relay.NewKey())
	if err != nil {
		t.Fatal(err)
	}
	s.relay = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.source.ServeHTTP(w, r) }))
	t.Cleanup(s.relay.Close)
	base, err := url.Parse(s.relay.URL)
	if err != nil {
		t.Fatal(err)
	}
	roots, err := kubevirt.NewRoots(s.account())
	if err != nil {
		t.Fatal(err)
	}
	s.source = relay.New(relay.Config{
		Client: image.NewClient(image.Config{Policy: open, Answer: 5 * time.Second}), Sealer: sealer, Base: base, Log: s.log(), Roots: roots,
	})
	return s
}

func (s *site) log() *slog.Logger { return slog.New(slog.NewTextHandler(s.Output(), nil)) }

// gates sets KubeVirt's feature gates for the test, and waits until virt-api knows
// them. Such tests do not run in parallel.
func (s *site) gates(names ...string) {
	s.Helper()
	list, err := s.client.Resource(kubevirts).List(s.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		s.Fatalf("KubeVirts: %v, %v", list, err)
	}
	kv := &list.Items[0]
	path := []string{"spec", "configuration", "developerConfiguration", "featureGates"}
	before, _, _ := unstructured.NestedStringSlice(kv.Object, path...)
	set := func(ctx context.Context, gates []string) {
		s.Helper()
		body, err := json.Marshal(map[string]any{"spec": map[string]any{"configuration": map[string]any{"developerConfiguration": map[string]any{"featureGates": gates}}}})
		if err == nil {
			_, err = s.client.Resource(kubevirts).Namespace(kv.GetNamespace()).Patch(ctx, kv.GetName(), types.MergePatchType, body, metav1.PatchOptions{})
		}
		if err != nil {
			s.Errorf("set feature gates: %v", err)
		}
	}
	set(s.Context(), names)
	s.Cleanup(func() { set(context.Background(), before) })
	declarative := slices.Contains(names, "DeclarativeHotplugVolumes")
	s.until("virt-api knows the feature gates", func() bool {
		// It lets a machine have an empty tray.
		_, err := s.client.Resource(machines).Namespace(s.namespace).Create(s.Context(), machine("probe", "cd"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return (err == nil) == declarative
	})
}

// start starts the service's hypervisor; stop ends it. wrap, unless it is nil, has a
// say in its requests.
func (s *site) start(wrap func(http.RoundTripper) http.RoundTripper) (h *kubevirt.Hypervisor, stop func()) {
	s.Helper()
	return s.startWith(kubevirt.Preferences{}, wrap)
}

// account is the configuration of a media service with a ServiceAccount of its own.
func (s *site) account() *rest.Config {
	s.Helper()
	return rbactest.New(s, s.config, "media", rbactest.Where{Own: s.namespace, Serves: []string{s.namespace}}).REST()
}

// startWith is start for machines whose BMCs have preferences.
func (s *site) startWith(preferences kubevirt.Preferences, wrap func(http.RoundTripper) http.RoundTripper) (h *kubevirt.Hypervisor, stop func()) {
	s.Helper()
	config := s.account()
	if wrap != nil {
		config.Wrap(wrap)
	}
	h, err := kubevirt.New(kubevirt.Config{
		REST: config, Namespaces: []string{s.namespace}, Source: s.source, Log: s.log(),
		Preferences: func(hypervisor.Ref) kubevirt.Preferences { return preferences },
	})
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.Errorf("run: %v", err)
		}
	})
	s.Cleanup(stop)
	s.until("ready", func() bool { return h.Ready() && h.Capability(s.namespace).CDI })
	return h, stop
}

func (s *site) until(what string, done func() bool) {
	s.Helper()
	for end := time.Now().Add(timeout); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("not in time: %s", what)
		}
	}
}

// machine is one that is off, with empty trays and a disk.
func machine(name string, trays ...string) *unstructured.Unstructured {
	disks := []any{map[string]any{"name": "root", "disk": map[string]any{"bus": "virtio"}}}
	for _, tray := range trays {
		disks = append(disks, map[string]any{"name": tray, "cdrom": map[string]any{"bus": "sata"}})
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": kvv1.GroupVersion.String(), "kind": "VirtualMachine",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"runStrategy": "Halted",
			"template": map[string]any{"spec": map[string]any{
				"terminationGracePeriodSeconds": int64(0),
				"domain": map[string]any{
					"memory":    map[string]any{"guest": "64Mi"},
					"resources": map[string]any{"requests": map[string]any{"cpu": "10m"}},
					"devices":   map[string]any{"disks": disks, "logSerialConsole": false},
				},
				"volumes": []any{map[string]any{"name": "root", "emptyDisk": map[string]any{"capacity": "1Mi"}}},
			}},
		},
	}}
}

func (s *site) create(h *kubevirt.Hypervisor, vm *unstructured.Unstructured) hypervisor.Ref {
	s.Helper()
	if _, err := s.client.Resource(machines).Namespace(s.namespace).Create(s.Context(), vm, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	ref := hypervisor.Ref{Namespace: s.namespace, Name: vm.GetName()}
	s.until("machine known", func() bool {
		_, err := h.Trays(ref)
		return err == nil
	})
	return ref
}

// run sets a machine's run strategy.
func (s *site) run(ref hypervisor.Ref, strategy string) {
	s.Helper()
	patch := []byte(`{"spec":{"runStrategy":"` + strategy + `"}}`)
	if _, err := s.client.Resource(machines).Namespace(ref.Namespace).Patch(s.Context(), ref.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		s.Fatal(err)
	}
}

// instance returns a machine's instance; nil when there is none.
func (s *site) instance(ref hypervisor.Ref) *unstructured.Unstructured {
	vmi, err := s.client.Resource(instances).Namespace(ref.Namespace).Get(s.Context(), ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return vmi
}

func (s *site) phase(ref hypervisor.Ref) string {
	vmi := s.instance(ref)
	if vmi == nil {
		return ""
	}
	phase, _, _ := unstructured.NestedString(vmi.Object, "status", "phase")
	return phase
}

// volumes returns what fills the drives: DataVolumes by drive, "other" for
// anything else.
func volumes(object *unstructured.Unstructured, path ...string) map[string]string {
	got := map[string]string{}
	list, _, _ := unstructured.NestedSlice(object.Object, append(path, "volumes")...)
	for _, item := range list {
		volume, _ := item.(map[string]any)
		name, _ := volume["name"].(string)
		dataVolume, found, _ := unstructured.NestedString(volume, "dataVolume", "name")
		if !found {
			dataVolume = "other"
		}
		got[name] = dataVolume
	}
	return got
}

func (s *site) template(ref hypervisor.Ref) map[string]string {
	s.Helper()
	vm, err := s.client.Resource(machines).Namespace(ref.Namespace).Get(s.Context(), ref.Name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return volumes(vm, "spec", "template", "spec")
}

// dataVolumes names those of the namespace.
func (s *site) dataVolumes() []string {
	s.Helper()
	return s.names(cditest.DataVolumes)
}

func (s *site) names(of schema.GroupVersionResource) []string {
	s.Helper()
	list, err := s.client.Resource(of).Namespace(s.namespace).List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	var names []string
	for _, item := range list.Items {
		names = append(names, item.GetName())
	}
	return names
}

func (s *site) tray(h *kubevirt.Hypervisor, ref hypervisor.Ref, device string) hypervisor.Tray {
	s.Helper()
	trays, err := h.Trays(ref)
	if err != nil {
		s.Fatal(err)
	}
	for _, tray := range trays {
		if tray.Device == device {
			return tray
		}
	}
	s.Fatalf("no tray %s in %+v", device, trays)
	return hypervisor.Tray{}
}

func (s *site) insert(h *kubevirt.Hypervisor, ref hypervisor.Ref, device, path string) {
	s.Helper()
	if err := h.Insert(s.Context(), ref, device, hypervisor.Image{URL: s.images.url + path}); err != nil {
		s.Fatalf("insert: %v", err)
	}
	if m := s.tray(h, ref, device).Medium; m == nil || m.URL != s.images.url+path || m.Foreign || m.Phase == hypervisor.MediumFailed {
		s.Fatalf("the tray does not show the insert: %+v", m)
	}
}

func (s *site) eject(h *kubevirt.Hypervisor, ref hypervisor.Ref, device string) {
	s.Helper()
	if err := h.Eject(s.Context(), ref, device); err != nil {
		s.Fatalf("eject: %v", err)
	}
}

func (s *site) untilInserted(h *kubevirt.Hypervisor, ref hypervisor.Ref, device, path string) {
	s.Helper()
	s.until("inserted", func() bool {
		m := s.tray(h, ref, device).Medium
		return m != nil && m.Phase == hypervisor.MediumInserted && m.URL == s.images.url+path
	})
	if got := s.importer.Imported(s.template(ref)[device]); !bytes.Equal(got, content(path)) {
		s.Errorf("%d bytes were imported, want those of %s", len(got), path)
	}
}

// TestLive is what can be done where trays change while their machines run.
func TestLive(t *testing.T) {
	s := newSite(t)
	s.gates("DeclarativeHotplugVolumes")
	h, _ := s.start(nil)
	s.until("live", func() bool { return h.Capability(s.namespace).Live })
	for name, test := range map[string]func(*site, *kubevirt.Hypervisor){
		"insert, replace, eject": insertAndEject,
		"failure":                failure,
		"restart":                restart,
		"running machine":        running,
		"foreign":                foreign,
		"two replicas":           replicas,
		"crashes":                crashes,
		"machine deleted":        deleted,
		"contract":               suite,
		"preferences":            preferences,
	} {
		t.Run(name, func(t *testing.T) {
			one := *s
			one.T = t
			// The next test begins with nothing.
			defer func() {
				for _, vm := range one.names(machines) {
					one.remove(vm)
				}
				one.until("nothing left", func() bool { return len(one.names(machines)) == 0 && len(one.dataVolumes()) == 0 })
			}()
			test(&one, h)
		})
	}
}

func (s *site) remove(vm string) {
	s.Helper()
	if err := s.client.Resource(machines).Namespace(s.namespace).Delete(s.Context(), vm, metav1.DeleteOptions{}); err != nil {
		s.Logf("delete machine: %v", err)
	}
}

// suite is what the simulator has to do, too.
func suite(s *site, h *kubevirt.Hypervisor) {
	var made atomic.Int32
	contract.RunMedia(s.T, contract.MediaBench{
		Media: h,
		NewMachine: func(t *testing.T, spec contract.Spec) hypervisor.Ref {
			one := *s
			one.T = t
			var trays []string
			vm := machine(fmt.Sprintf("vm-%d", made.Add(1)))
			for _, d := range spec.Devices {
				switch {
				case d.Kind == hypervisor.DeviceCDROM && d.Volume == "":
					trays = append(trays, d.Name)
				case d.Kind == hypervisor.DeviceCDROM:
					vm = machine(vm.GetName(), append(trays, d.Name)...)
					one.fill(vm, map[string]any{"name": d.Name, "emptyDisk": map[string]any{"capacity": "1Mi"}})
					return one.create(h, vm)
				}
			}
			return one.create(h, machine(vm.GetName(), trays...))
		},
		Volume:   func(ref hypervisor.Ref, device string) string { return s.template(ref)[device] },
		ImageURL: s.images.url + "/one.iso", ImageURL2: s.images.url + "/two.iso",
		Timeout: timeout, Quiet: 2 * time.Second,
	})
}

// fill adds a volume to a machine that is yet to be made.
func (s *site) fill(vm *unstructured.Unstructured, volume map[string]any) {
	s.Helper()
	spec, _, _ := unstructured.NestedMap(vm.Object, "spec", "template", "spec")
	list, _ := spec["volumes"].([]any)
	spec["volumes"] = append(list, volume)
	if err := unstructured.SetNestedMap(vm.Object, spec, "spec", "template", "spec"); err != nil {
		s.Fatal(err)
	}
}

func insertAndEject(s *site, h *kubevirt.Hypervisor) {
	ref := s.create(h, machine("vm"))
	trays, err := h.Trays(ref)
	if want := []hypervisor.Tray{{Device: own}}; err != nil || !cmp.Equal(trays, want) {
		s.Errorf("trays are %+v, %v; want %+v", trays, err, want)
	}
	s.eject(h, ref, own)
	if got := s.template(ref); len(got) != 1 {
		s.Errorf("an eject of nothing left %v", got)
	}
	release := s.images.hold()
	defer release()
	s.insert(h, ref, own, "/one.iso")
	s.until("progress", func() bool {
		m := s.tray(h, ref, own).Medium
		return m != nil && m.Phase == hypervisor.MediumImporting && m.Progress >= 40 && m.Progress < 100
	})
	release()
	s.untilInserted(h, ref, own, "/one.iso")
	one := s.dataVolumes()
	s.insert(h, ref, own, "/one.iso")
	if got := s.dataVolumes(); !cmp.Equal(got, one) || len(one) != 1 {
		s.Errorf("the same URL again made %v of %v", got, one)
	}
	s.insert(h, ref, own, "/two.iso")
	s.untilInserted(h, ref, own, "/two.iso")
	if got := s.dataVolumes(); len(got) != 1 || got[0] == one[0] {
		s.Errorf("after a replacement there are %v", got)
	}
	for range 2 {
		s.eject(h, ref, own)
		if m := s.tray(h, ref, own).Medium; m != nil {
			s.Errorf("after the eject there is %+v", m)
		}
	}
	s.until("nothing left", func() bool { return len(s.dataVolumes()) == 0 && len(s.names(claims)) == 0 })
	for name, err := range map[string]error{
		"insert into a disk": h.Insert(s.Context(), ref, "root", hypervisor.Image{URL: s.images.url + "/x"}),
		"eject from a disk":  h.Eject(s.Context(), ref, "root"),
	} {
		if !errors.Is(err, hypervisor.ErrNoTray) {
			s.Errorf("%s: got %v, want %v", name, err, hypervisor.ErrNoTray)
		}
	}
	nobody := hypervisor.Ref{Namespace: s.namespace, Name: "nobody"}
	if err := h.Insert(s.Context(), nobody, own, hypervisor.Image{URL: s.images.url + "/x"}); !errors.Is(err, hypervisor.ErrNotFound) {
		s.Errorf("no machine: got %v, want %v", err, hypervisor.ErrNotFound)
	}
}

func failure(s *site, h *kubevirt.Hypervisor) {
	ref := s.create(h, machine("vm"))
	s.images.failing.Store(true)
	defer s.images.failing.Store(false)
	err := h.Insert(s.Context(), ref, own, hypervisor.Image{URL: s.images.url + "/one.iso"})
	if !errors.Is(err, image.ErrUnreachable) {
		s.Errorf("server out of order: got %v, want %v", err, image.ErrUnreachable)
	}
	if got := s.dataVolumes(); len(got) != 0 {
		s.Errorf("an insert that failed left %v", got)
	}
	s.images.failing.Store(false)
	release := s.images.hold()
	s.insert(h, ref, own, "/one.iso")
	s.images.failing.Store(true)
	s.relay.CloseClientConnections()
	s.until("failed", func() bool {
		m := s.tray(h, ref, own).Medium
		return m != nil && m.Phase == hypervisor.MediumFailed && strings.Contains(m.Message, "502")
	})
	release()
	s.images.failing.Store(false)
	before := s.template(ref)[own]
	if err := h.Insert(s.Context(), ref, own, hypervisor.Image{URL: s.images.url + "/one.iso"}); err != nil {
		s.Fatal(err)
	}
	// The import may have come right by itself just then, which is as good.
	s.untilInserted(h, ref, own, "/one.iso")
	s.until("one DataVolume", func() bool { return len(s.dataVolumes()) == 1 })
	s.Logf("the medium was %s and is %s", before, s.template(ref)[own])
}

// restart: another process knows what this one began.
func restart(s *site, h *kubevirt.Hypervisor) {
	first, stop := s.start(nil)
	ref := s.create(h, machine("vm"))
	release := s.images.hold()
	defer release()
	s.insert(first, ref, own, "/one.iso")
	stop()
	second, _ := s.start(nil)
	if m := s.tray(second, ref, own).Medium; m == nil || m.Phase != hypervisor.MediumImporting || m.URL != s.images.url+"/one.iso" {
		s.Errorf("after the restart the tray has %+v", m)
	}
	s.insert(second, ref, own, "/one.iso")
	if got := s.dataVolumes(); len(got) != 1 {
		s.Errorf("the same URL after the restart made %v", got)
	}
	release()
	s.untilInserted(second, ref, own, "/one.iso")
}

// powerOnWaits: a machine that is powered on during an import starts with the
// medium. (Of a tray that changes live, virt-handler has to wait, whose part is
// played.)
func powerOnWaits(s *site, h *kubevirt.Hypervisor) {
	ref := s.create(h, machine("early"))
	release := s.images.hold()
	defer release()
	s.insert(h, ref, own, "/one.iso")
	s.run(ref, "Always")
	s.until("an instance", func() bool { return s.instance(ref) != nil })
	time.Sleep(3 * time.Second)
	if phase := s.phase(ref); phase == "Running" {
		s.Error("the machine runs without its medium")
	}
	release()
	s.until("running", func() bool { return s.phase(ref) == "Running" })
	if tray := s.tray(h, ref, own); tray.Pending || tray.Medium == nil || tray.Medium.Phase != hypervisor.MediumInserted {
		s.Errorf("the running machine's tray is %+v", tray)
	}
	if got, want := volumes(s.instance(ref), "spec")[own], s.template(ref)[own]; got != want {
		s.Errorf("the instance has %q, want %q", got, want)
	}
	s.remove(ref.Name)
	s.until("the machine and its medium are gone", func() bool { return s.instance(ref) == nil && len(s.dataVolumes()) == 0 })
}

// running: a running machine's tray is filled and emptied at once.
func running(s *site, h *kubevirt.Hypervisor) {
	ref := s.create(h, machine("vm", "cd"))
	if trays, err := h.Trays(ref); err != nil || trays[0].Device != own {
		s.Errorf("of a machine that is off: trays are %+v, %v", trays, err)
	}
	s.run(ref, "Always")
	s.until("running", func() bool { return s.phase(ref) == "Running" })
	s.until("the guest's tray comes first", func() bool {
		trays, err := h.Trays(ref)
		return err == nil && trays[0].Device == "cd"
	})
	s.insert(h, ref, "cd", "/one.iso")
	if tray := s.tray(h, ref, "cd"); tray.Pending {
		s.Errorf("the tray waits for the next start: %+v", tray)
	}
	s.untilInserted(h, ref, "cd", "/one.iso")
	name := s.template(ref)["cd"]
	s.until("in the instance", func() bool { return volumes(s.instance(ref), "spec")["cd"] == name })
	s.eject(h, ref, "cd")
	s.until("out of the instance", func() bool { return volumes(s.instance(ref), "spec")["cd"] == "" })
	if tray := s.tray(h, ref, "cd"); tray.Pending || tray.Medium != nil {
		s.Errorf("the ejected tray is %+v", tray)
	}
	// A drive that the guest does not have is there at the next start.
	s.insert(h, ref, own, "/two.iso")
	if tray := s.tray(h, ref, own); !tray.Pending {
		s.Errorf("a drive that the guest does not have: %+v", tray)
	}
}

// foreign: what the user put into a tray stays.
func foreign(s *site, h *kubevirt.Hypervisor) {
	vm := machine("vm", "tools")
	s.fill(vm, map[string]any{"name": "tools", "dataVolume": map[string]any{"name": "virtbmc-media-0000000000-tools"}})
	ref := s.create(h, vm)
	trays, err := h.Trays(ref)
	if err != nil || len(trays) != 2 || trays[0].Device != own || trays[1].Medium == nil || !trays[1].Medium.Foreign {
		s.Errorf("trays are %+v, %v", trays, err)
	}
	for name, err := range map[string]error{
		"insert": h.Insert(s.Context(), ref, "tools", hypervisor.Image{URL: s.images.url + "/one.iso"}),
		"eject":  h.Eject(s.Context(), ref, "tools"),
	} {
		if !errors.Is(err, hypervisor.ErrForeignMedium) {
			s.Errorf("%s: got %v, want %v", name, err, hypervisor.ErrForeignMedium)
		}
	}
	s.insert(h, ref, own, "/one.iso")
	s.untilInserted(h, ref, own, "/one.iso")
	s.eject(h, ref, own)
	if got := s.template(ref)["tools"]; got != "virtbmc-media-0000000000-tools" {
		s.Errorf("the user's medium is %q", got)
	}
}

// replicas: two processes that are asked the same at once make one medium.
func replicas(s *site, h *kubevirt.Hypervisor) {
	other, _ := s.start(nil)
	ref := s.create(h, machine("vm"))
	s.until("known to both", func() bool {
		_, err := other.Trays(ref)
		return err == nil
	})
	var inserts sync.WaitGroup
	for _, one := range []*kubevirt.Hypervisor{h, other, h, other} {
		inserts.Go(func() {
			if err := one.Insert(s.Context(), ref, own, hypervisor.Image{URL: s.images.url + "/one.iso"}); err != nil {
				s.Errorf("insert: %v", err)
			}
		})
	}
	inserts.Wait()
	s.untilInserted(h, ref, own, "/one.iso")
	if got := s.dataVolumes(); len(got) != 1 {
		s.Errorf("there are %v", got)
	}
}

// errCrashed is what a process that has crashed hears.
var errCrashed = errors.New("crashed")

// crashing lets a number of writes pass and then nothing.
type crashing struct {
	http.RoundTripper
	writes atomic.Int32
}

func (c *crashing) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && c.writes.Add(-1) < 0 {
		return nil, errCrashed
	}
	return c.RoundTripper.RoundTrip(r)
}

// crashes: whatever step a process ends at, the next one can do what was asked, and
// nothing is left over.
func crashes(s *site, h *kubevirt.Hypervisor) {
	for steps := range int32(4) {
		ref := s.create(h, machine(fmt.Sprintf("vm-%d", steps)))
		s.insert(h, ref, own, "/one.iso")
		s.untilInserted(h, ref, own, "/one.iso")
		c := &crashing{}
		first, stop := s.start(func(inner http.RoundTripper) http.RoundTripper {
			c.RoundTripper = inner
			return c
		})
		c.writes.Store(steps)
		// Replacing takes three writes.
		err := first.Insert(s.Context(), ref, own, hypervisor.Image{URL: s.images.url + "/two.iso"})
		if (err == nil) != (steps == 3) {
			s.Errorf("crash at step %d: got %v", steps, err)
		}
		stop()
		s.insert(h, ref, own, "/two.iso")
		s.untilInserted(h, ref, own, "/two.iso")
		h.ClearLeftovers(s.Context(), 0)
		if got := s.dataVolumes(); len(got) != 1 {
			s.Errorf("crash at step %d: there are %v", steps, got)
		}
		c = &crashing{}
		first, stop = s.start(func(inner http.RoundTripper) http.RoundTripper {
			c.RoundTripper = inner
			return c
		})
		c.writes.Store(steps)
		err = first.Eject(s.Context(), ref, own)
		if (err == nil) != (steps >= 2) {
			s.Errorf("crash at step %d of an eject: got %v", steps, err)
		}
		stop()
		s.eject(h, ref, own)
		h.ClearLeftovers(s.Context(), 0)
		if got := s.dataVolumes(); len(got) != 0 {
			s.Errorf("crash at step %d of an eject: there are %v", steps, got)
		}
	}
}

// preferences: a BMC's CA counts for its machine's images, and its storage for their
// volumes.
func preferences(s *site, h *kubevirt.Hypervisor) {
	server := httptest.NewUnstartedServer(s.images)
	// The refused handshakes are meant.
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	s.Cleanup(server.Close)
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "image-ca"}, "data": map[string]any{"ca.pem": string(bundle)},
	}}
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	if _, err := s.client.Resource(configMaps).Namespace(s.namespace).Create(s.Context(), object, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	ref := s.create(h, machine("vm"))
	iso := hypervisor.Image{URL: server.URL + "/one.iso"}
	if err := h.Insert(s.Context(), ref, own, iso); !errors.Is(err, image.ErrUnreachable) {
		s.Errorf("without the CA: got %v, want %v", err, image.ErrUnreachable)
	}
	other, _ := s.startWith(kubevirt.Preferences{Trust: kubevirt.Trust{Namespace: s.namespace, ConfigMap: "none"}}, nil)
	invalid := &hypervisor.InvalidError{}
	if err := other.Insert(s.Context(), ref, own, iso); !errors.As(err, &invalid) {
		s.Errorf("without the ConfigMap: got %v", err)
	}
	with, _ := s.startWith(kubevirt.Preferences{
		Class: "fast", VolumeMode: "Filesystem", Trust: kubevirt.Trust{Namespace: s.namespace, ConfigMap: "image-ca"},
	}, nil)
	if err := with.Insert(s.Context(), ref, own, iso); err != nil {
		s.Fatal(err)
	}
	name := s.template(ref)[own]
	s.until("imported", func() bool { return bytes.Equal(s.importer.Imported(name), content("/one.iso")) })
	dv, err := s.client.Resource(cditest.DataVolumes).Namespace(s.namespace).Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	storage, _, _ := unstructured.NestedMap(dv.Object, "spec", "storage")
	if storage["storageClassName"] != "fast" || storage["volumeMode"] != "Filesystem" {
		s.Errorf("storage is %v", storage)
	}
}

// deleted: a machine takes its media with it.
func deleted(s *site, h *kubevirt.Hypervisor) {
	ref := s.create(h, machine("vm"))
	s.insert(h, ref, own, "/one.iso")
	s.remove(ref.Name)
	s.until("the machine is gone", func() bool {
		_, err := h.Trays(ref)
		return errors.Is(err, hypervisor.ErrNotFound)
	})
	s.until("its media are gone", func() bool { return len(s.dataVolumes()) == 0 && len(s.names(claims)) == 0 })
}

// TestNextStart is what can be done where a tray changes with the next instance
// alone.
func TestNextStart(t *testing.T) {
	for name, gates := range map[string][]string{
		"no gate":              {},
		"the older one on top": {"DeclarativeHotplugVolumes", "HotplugVolumes"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.gates(gates...)
			h, _ := s.start(nil)
			s.until("not live", func() bool { return !h.Capability(s.namespace).Live })
			powerOnWaits(s, h)
			ref := s.create(h, machine("vm"))
			s.run(ref, "Always")
			s.until("running", func() bool { return s.phase(ref) == "Running" })
			s.insert(h, ref, own, "/one.iso")
			s.untilInserted(h, ref, own, "/one.iso")
			if tray := s.tray(h, ref, own); !tray.Pending {
				t.Errorf("the tray does not wait for the next start: %+v", tray)
			}
			again := func() {
				s.run(ref, "Halted")
				s.until("off", func() bool { return s.instance(ref) == nil })
				s.run(ref, "Always")
				s.until("running again", func() bool { return s.phase(ref) == "Running" })
			}
			again()
			s.until("nothing waits", func() bool { return !s.tray(h, ref, own).Pending })
			name := s.template(ref)[own]
			if got := volumes(s.instance(ref), "spec")[own]; got != name {
				t.Errorf("the instance has %q, want %q", got, name)
			}
			s.eject(h, ref, own)
			if tray := s.tray(h, ref, own); tray.Medium != nil || !tray.Pending {
				t.Errorf("the ejected tray is %+v", tray)
			}
			h.ClearLeftovers(t.Context(), 0)
			if got := s.dataVolumes(); len(got) != 1 {
				t.Errorf("the instance lost its medium: there are %v", got)
			}
			again()
			s.until("nothing waits", func() bool { return !s.tray(h, ref, own).Pending })
			h.ClearLeftovers(t.Context(), 0)
			if got := s.dataVolumes(); len(got) != 0 {
				t.Errorf("there are %v", got)
			}
		})
	}
}
