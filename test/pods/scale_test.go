//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kubevirtbmc.dev/api/v1beta1"
)

const (
	// manyBMCs are those of one replica (design decision 1).
	manyBMCs = 500
	// probeInterval is how often each BMC is called over each protocol: what is
	// measured is that much longer than what is so.
	probeInterval = 500 * time.Millisecond
	probeTime     = 400 * time.Millisecond
	// manyTime is for the cluster to make all of them.
	manyTime = 10 * time.Minute
)

// testScale: all BMCs of a replica with as many as it may have are soon reached
// again when it dies. Clients without a login stand for others, whose crypto would
// be what is measured; some log in afterwards.
func testScale(t *testing.T, s *site) {
	s.waitRolledOut(t, controller, power, frontendIPMI, frontendRedfish)
	doomed := map[string]string{}
	for _, name := range []string{frontendIPMI, frontendRedfish} {
		pods, err := s.pods(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		doomed[name] = pods[0].Name
	}
	list := s.makeMany(t, doomed)
	for _, one := range []struct {
		name, service string
		ask           func(*many, context.Context) error
		end           func(*testing.T, string)
	}{
		{"of IPMI falls silent", frontendIPMI, (*many).askIPMI, s.freeze},
		{"of Redfish is deleted", frontendRedfish, (*many).askRedfish, s.deleteAtOnce},
	} {
		t.Run(one.name, func(t *testing.T) {
			testMany(t, list, one.ask, func(t *testing.T) { one.end(t, doomed[one.service]) })
		})
	}
}

// belongs tells whether a replica is the one to serve a BMC: that with the highest
// weight. Were the registry to choose otherwise, waitMany would say so.
func belongs(bmc, replica string, others []string) bool {
	weigh := func(replica string) uint64 { return xxhash.Sum64String(replica + "\x00" + bmc) }
	return !slices.ContainsFunc(others, func(other string) bool { return weigh(other) > weigh(replica) })
}

// makeMany makes machines with BMCs that all belong to the same replicas.
func (s *site) makeMany(t *testing.T, owners map[string]string) []*many {
	t.Helper()
	others := map[string][]string{}
	for name := range owners {
		pods, err := s.pods(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range pods {
			others[name] = append(others[name], pod.Name)
		}
	}
	var names []string
	for i := 0; len(names) < manyBMCs; i++ {
		name := fmt.Sprintf("many-%d", i)
		is := true
		for protocol, owner := range owners {
			is = is && belongs(s.lab+"/"+name, owner, others[protocol])
		}
		if is {
			names = append(names, name)
		}
	}
	s.create(t, s.secret("many", password))
	start := time.Now()
	s.createMany(t, machineResource, names, s.machine)
	t.Logf("%d machines were made in %s", manyBMCs, time.Since(start).Round(100*time.Millisecond))
	start = time.Now()
	s.createMany(t, bmcResource, names, func(name string) *unstructured.Unstructured {
		object := s.resource(name, name, "many", "ClusterIP")
		_ = unstructured.SetNestedField(object.Object, map[string]any{"http": map[string]any{"enabled": true}}, "spec", "redfish")
		object.SetLabels(map[string]string{"many": ""})
		return object
	})
	t.Logf("%d BMCs were made in %s", manyBMCs, time.Since(start).Round(100*time.Millisecond))
	list := s.waitMany(t, owners)
	t.Logf("all are Ready after %s", time.Since(start).Round(100*time.Millisecond))
	return list
}

// createMany makes objects, several at a time.
func (s *site) createMany(t *testing.T, resource schema.GroupVersionResource, names []string, object func(name string) *unstructured.Unstructured) {
	t.Helper()
	queue := make(chan string)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for name := range queue {
				_, err := s.dynamic.Resource(resource).Namespace(s.lab).Create(t.Context(), object(name), metav1.CreateOptions{})
				if err != nil && !apierrors.IsAlreadyExists(err) {
					t.Errorf("create %s: %v", name, err)
				}
			}
		})
	}
	for _, name := range names {
		queue <- name
	}
	close(queue)
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// waitMany waits until all are Ready and served by these pods.
func (s *site) waitMany(t *testing.T, owners map[string]string) []*many {
	t.Helper()
	var problem string
	for end := time.Now().Add(manyTime); time.Now().Before(end); time.Sleep(time.Second) {
		all, err := s.dynamic.Resource(bmcResource).Namespace(s.lab).List(t.Context(), metav1.ListOptions{LabelSelector: "many"})
		if err != nil {
			t.Fatal(err)
		}
		var list []*many
		for _, item := range all.Items {
			var is v1beta1.VirtualMachineBMC
			if err := apiruntime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &is); err != nil {
				t.Fatal(err)
			}
			switch f := is.Status.Frontend; {
			case !meta.IsStatusConditionTrue(is.Status.Conditions, v1beta1.ConditionReady):
				problem = fmt.Sprintf("%s has conditions %+v", is.Name, is.Status.Conditions)
			case f.IPMI.Replica != owners[frontendIPMI], f.Redfish.Replica != owners[frontendRedfish]:
				problem = fmt.Sprintf("%s is served by %s and %s, want %v", is.Name, f.IPMI.Replica, f.Redfish.Replica, owners)
			default:
				list = append(list, &many{bmc{site: s, name: is.Name, address: is.Status.ClusterIP, ipmi: 623, https: 443, password: password}})
			}
		}
		if len(list) == manyBMCs {
			return list
		}
	}
	t.Fatalf("not all are Ready: %s", problem)
	return nil
}

// many is one of many BMCs.
type many struct{ bmc }

// capabilities is Get Channel Authentication Capabilities for IPMI 2.0 of the
// present channel (IPMI 2.0 section 22.13), without a session.
var capabilities = []byte{
	0x06, 0x00, 0xff, 0x07, // RMCP: IPMI
	0x00, 0, 0, 0, 0, 0, 0, 0, 0, 0x09, // no authentication, sequence, session, length
	0x20, 0x18, 0xc8, 0x81, 0x00, 0x38, 0x8e, 0x04, 0xb5,
}

// askIPMI asks for something that takes no login.
func (m *many) askIPMI(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", net.JoinHostPort(m.address, fmt.Sprint(m.ipmi)))
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := conn.Write(capabilities); err != nil {
		return err
	}
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	if err == nil && (n < 21 || !bytes.Equal(answer[:4], capabilities[:4]) || answer[20] != 0) {
		err = fmt.Errorf("answer %x", answer[:n])
	}
	return err
}

// plain is a client without a login and without connections that it keeps.
var plain = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// askRedfish asks for the service root, which takes no login.
func (m *many) askRedfish(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.address+"/redfish/v1", nil)
	if err != nil {
		return err
	}
	response, err := plain.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return err
}

// testMany ends a pod that serves many BMCs and measures how long each is out of
// reach. On a machine that others keep busy it says so, and no more.
func testMany(t *testing.T, list []*many, ask func(*many, context.Context) error, end func(*testing.T)) {
	var loops []*loop
	for i, m := range list {
		offset := probeInterval * time.Duration(i) / time.Duration(len(list))
		loops = append(loops, newPacedLoop(t, m.name, offset, probeInterval, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, probeTime)
			defer cancel()
			return ask(m, ctx)
		}))
	}
	eventually(t, "all BMCs are reached", func() error {
		for _, l := range loops {
			if attempts := l.list(); len(attempts) == 0 || attempts[len(attempts)-1].err != nil {
				return errors.New(l.name + " is not")
			}
		}
		return nil
	})
	writes := list[0].watchRoutes(t)
	load := loadAverage(t)
	start := time.Now()
	end(t)
	time.Sleep(watchTime)
	stopAll(loops)
	var outages []time.Duration
	for _, l := range loops {
		outages = append(outages, l.outage(start))
	}
	slices.Sort(outages)
	at := func(percent int) time.Duration {
		return outages[(len(outages)-1)*percent/100].Round(10 * time.Millisecond)
	}
	written := writes()
	if len(written) < len(list) {
		t.Errorf("%d EndpointSlices were written, want %d", len(written), len(list))
	} else {
		t.Logf("%d EndpointSlices were written, from %s to %s after its end", len(written),
			written[0].Sub(start).Round(10*time.Millisecond), written[len(list)-1].Sub(start).Round(10*time.Millisecond))
	}
	t.Logf("%d BMCs: outage median %s, 95%% %s, longest %s; %d processors, load %.1f before", len(outages), at(50), at(95), at(100), runtime.NumCPU(), load)
	if longest := at(100); longest >= mostOutage {
		if load > mostLoad*float64(runtime.NumCPU()) {
			t.Logf("not held against it: others use this machine, whose load was %.1f", load)
		} else {
			t.Errorf("a BMC was out of reach for %s, want less than %s", longest, mostOutage)
		}
	}
	for _, m := range list[:3] {
		eventually(t, "login to "+m.name, func() error { return m.login(t.Context()) })
	}
}

// mostLoad is how many programs for each processor may want to run before a pod is
// ended, for what is measured to say anything about the product.
const mostLoad = 2

// loadAverage is the machine's of the last minute.
func loadAverage(t *testing.T) float64 {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	var load float64
	if _, err := fmt.Sscan(string(text), &load); err != nil {
		t.Fatal(err)
	}
	return load
}

// watchRoutes notes when EndpointSlices are written, until it is asked when.
func (s *site) watchRoutes(t *testing.T) (times func() []time.Time) {
	t.Helper()
	slices := s.client.DiscoveryV1().EndpointSlices(s.lab)
	now, err := slices.List(t.Context(), metav1.ListOptions{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	watch, err := slices.Watch(t.Context(), metav1.ListOptions{ResourceVersion: now.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	var list []time.Time
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range watch.ResultChan() {
			list = append(list, time.Now())
		}
	}()
	return func() []time.Time {
		watch.Stop()
		<-ended
		return list
	}
}
