//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"crypto/rand"
	"flag"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/kubeaccess/rbactest"
	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/pkg/registryclient"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/controller/internal/webhook"
)

// accounts passes on which users a frontend is told of.
type accounts chan string

func (a accounts) Apply(_ context.Context, bmc *registryv1.BMC) error {
	var names []string
	for _, account := range bmc.GetAccounts() {
		names = append(names, account.GetUsername())
	}
	a <- strings.Join(names, " ")
	return nil
}

func (a accounts) Remove(*referencev1.BMCReference) { a <- "" }

// want waits until a frontend is told of users.
func (a accounts) want(t *testing.T, names string) {
	t.Helper()
	end := time.After(60 * time.Second)
	for {
		select {
		case got := <-a:
			if got == names {
				return
			}
			t.Logf("the frontend is told of users %q", got)
		case <-end:
			t.Fatalf("the frontend is not told of users %q", names)
		}
	}
}

// wantCount waits for an event of a BMC that counts so many alike.
func wantCount(t *testing.T, core kubernetes.Interface, namespace string, count int32) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		list, err := core.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			if e := &list.Items[i]; e.InvolvedObject.Kind == "VirtualMachineBMC" && e.Count == count {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("none of %d events counts %d alike", len(list.Items), count)
		}
	}
}

// TestRun_cluster: the program as it is run: a machine that a flag selects gets a
// BMC, a frontend is told of it, and again when an account is made for it.
func TestRun_cluster(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	core, err := kubernetes.NewForConfig(s.admin)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(s.admin)
	if err != nil {
		t.Fatal(err)
	}
	namespace := "app-" + strings.ToLower(rand.Text()[:8])
	if _, err := core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = core.CoreV1().Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{})
	})
	machine := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
		"metadata": map[string]any{"name": "vm", "labels": map[string]any{"bmc": "yes"}},
		"spec": map[string]any{"runStrategy": "Halted", "template": map[string]any{"spec": map[string]any{
			"domain": map[string]any{"devices": map[string]any{}},
		}}},
	}}
	machines := objects.Resource(schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"})
	if _, err := machines.Namespace(namespace).Create(t.Context(), machine, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	account := rbactest.New(t, s.admin, "controller", rbactest.Where{
		Own: namespace, Serves: []string{namespace},
		Names: map[string]string{webhook.DefaultName("kubevirtbmc-system"): webhook.DefaultName(namespace)},
	})
	flags := flag.NewFlagSet(t.Name(), flag.ContinueOnError)
	run := New(flags)
	if err := flags.Parse(append(s.flags, "--kubeconfig="+account.Kubeconfig(), "--namespace="+namespace, "--namespaces="+namespace, "--provision-machines=bmc in (yes)", "--default-ipmi", "--discovery-interval=1s")); err != nil {
		t.Fatal(err)
	}
	p := &process.Process{Log: slog.New(slog.DiscardHandler), Registry: process.NewRegistry(), Health: process.NewHealth()}
	stop := s.run(t, p, func(ctx context.Context) error { return run(ctx, p) })
	roots, err := certs.LoadRoots(s.caFile)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpcclient.Dial(s.address, grpcclient.Config{Roots: roots.Pool, Token: s.token})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	told := make(accounts, 16)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- registryclient.Run(ctx, registryclient.Config{
			Conn: conn, Protocol: registryv1.Protocol_PROTOCOL_IPMI, Replica: "r-0", Log: slog.New(slog.DiscardHandler),
		}, told)
	}()
	told.want(t, "admin")
	if _, err := s.bmcs.Namespace(namespace).Get(t.Context(), "vm", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	create := func() error {
		_, err := statev1.NewStateServiceClient(conn).CreateAccount(t.Context(), &statev1.CreateAccountRequest{
			Bmc: &referencev1.BMCReference{Namespace: namespace, Name: "vm"}, Username: "second", Password: "long enough", Role: registryv1.Role_ROLE_OPERATOR,
		})
		return err
	}
	if err := create(); err != nil {
		t.Fatal(err)
	}
	told.want(t, "admin second")
	// The same again and again is one event that counts.
	for range 3 {
		if err := create(); status.Code(err) != codes.AlreadyExists {
			t.Errorf("account made twice: %v", err)
		}
	}
	wantCount(t, core, namespace, 3)
	if err := s.bmcs.Namespace(namespace).Delete(t.Context(), "vm", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	told.want(t, "")
	cancel()
	<-ended
	stop()
}
