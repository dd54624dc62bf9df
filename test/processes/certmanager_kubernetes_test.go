//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package processes_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"kubevirtbmc.dev/test/cluster"
	"kubevirtbmc.dev/test/launch"
)

var (
	definitionResource  = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	issuerResource      = schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "issuers"}
	certificateResource = schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificates"}
)

// caName is the Secret with the CA of BMCs.
const caName = "virtbmc-ca"

// changeTime bounds how long a new certificate takes until clients see it.
const changeTime = time.Minute

// definedHere is a label of definitions that a test has installed.
const definedHere = "kubevirtbmc.dev/test"

// define installs cert-manager's custom resource definitions for as long as the
// test, and waits until they are served. Those of somebody else are left alone.
func (o objects) define(files []string) {
	o.t.Helper()
	definitions := o.Resource(definitionResource)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			o.t.Fatal(err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(text, &object.Object); err != nil {
			o.t.Fatal(err)
		}
		is, err := definitions.Get(o.t.Context(), object.GetName(), metav1.GetOptions{})
		if err == nil && is.GetLabels()[definedHere] == "" {
			o.t.Fatalf("the cluster has %s of its own: take another one", object.GetName())
		}
		object.SetLabels(map[string]string{definedHere: "true"})
		if _, err := definitions.Apply(o.t.Context(), object.GetName(), object, metav1.ApplyOptions{FieldManager: "test", Force: true}); err != nil {
			o.t.Fatal(err)
		}
		o.t.Cleanup(func() { _ = definitions.Delete(context.Background(), object.GetName(), metav1.DeleteOptions{}) })
	}
	for _, resource := range []schema.GroupVersionResource{issuerResource, certificateResource} {
		o.eventually(resource.Resource+" are served", func() error {
			_, err := o.Resource(resource).Namespace(o.namespace).List(o.t.Context(), metav1.ListOptions{})
			return err
		})
	}
}

// certificate makes a Certificate of cert-manager's, in a Secret of its name.
func (o objects) certificate(name, issuer, what string) {
	o.t.Helper()
	o.create(certificateResource, fmt.Sprintf(`{apiVersion: cert-manager.io/v1, kind: Certificate, metadata: {name: %s},
		spec: {secretName: %[1]s, issuerRef: {name: %s}, duration: 24h, privateKey: {algorithm: ECDSA, size: 256}, %s}}`, name, issuer, what))
}

// renew has cert-manager make a Certificate anew, as its command line does.
func (o objects) renew(name string) {
	o.t.Helper()
	certificates := o.Resource(certificateResource).Namespace(o.namespace)
	o.eventually("renewal of "+name, func() error {
		is, err := certificates.Get(o.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(is.Object, "status", "conditions")
		conditions = slices.DeleteFunc(conditions, func(c any) bool { return c.(map[string]any)["type"] == "Issuing" })
		conditions = append(conditions, map[string]any{
			"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "It is to be issued anew",
			"observedGeneration": is.GetGeneration(), "lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
		})
		if err := unstructured.SetNestedSlice(is.Object, conditions, "status", "conditions"); err != nil {
			return err
		}
		_, err = certificates.UpdateStatus(o.t.Context(), is, metav1.UpdateOptions{})
		return err
	})
}

// trust adds a root to those that clients are to trust.
func (r *rotation) trust(root string) {
	r.Helper()
	secret, err := r.client.CoreV1().Secrets(r.own).Get(r.Context(), root, metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	maps := r.client.CoreV1().ConfigMaps(r.own)
	for {
		published, err := maps.Get(r.Context(), bundleName, metav1.GetOptions{})
		if err != nil {
			r.Fatal(err)
		}
		published.Data["ca.crt"] += string(secret.Data["tls.crt"])
		if _, err = maps.Update(r.Context(), published, metav1.UpdateOptions{}); err == nil {
			return
		} else if !apierrors.IsConflict(err) {
			r.Fatal(err)
		}
	}
}

// With cert-manager's own controllers: Certificates are issued, made anew again and
// again, and moved to another root, while clients log in all the time. No attempt
// fails.
//
// It runs alone, since there is cert-manager in the cluster meanwhile.
func TestCertManager_underLoadOfKubernetes(t *testing.T) {
	built, err := cluster.BuildCertManager(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	names := []string{controllerTLS, powerTLS, caName}
	var o objects
	r := newRotation(t, func(r *rotation) []string {
		o = newObjects(t, r.own)
		o.define(built.Definitions)
		manager := launch.Start(t, nil, built.Program, "--kubeconfig", os.Getenv("KUBECONFIG"), "--namespace", r.own)
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("cert-manager:\n%s", manager.Stderr())
			}
		})
		o.create(issuerResource, `{apiVersion: cert-manager.io/v1, kind: Issuer, metadata: {name: self-signed}, spec: {selfSigned: {}}}`)
		for _, root := range []string{"root-0", "root-1"} {
			o.certificate(root, "self-signed", "isCA: true, commonName: "+root)
			o.create(issuerResource, `{apiVersion: cert-manager.io/v1, kind: Issuer, metadata: {name: `+root+`}, spec: {ca: {secretName: `+root+`}}}`)
		}
		o.certificate(caName, "root-0", "isCA: true, commonName: BMCs")
		for _, name := range names[:2] {
			o.certificate(name, "root-0", `ipAddresses: ["127.0.0.1"]`)
		}
		return []string{"--certificates", "cert-manager", "--ca-secret", caName}
	})
	tallies, stop := r.load()
	r.until(changeTime, tallies, "logins", func(count *tally) bool { return len(count.leaves) > 0 })
	const renewals = 3
	for n := range renewals {
		had := map[*tally]int{}
		for _, count := range tallies {
			count.is(func(count *tally) bool { had[count] = len(count.leaves); return true })
		}
		for _, name := range names {
			o.renew(name)
		}
		r.until(changeTime, tallies, fmt.Sprintf("renewal %d", n+1), func(count *tally) bool { return len(count.leaves) > had[count] })
	}

	r.trust("root-1")
	time.Sleep(rotatingLead) // Until all clients know it.
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"issuerRef": map[string]any{"name": "root-1"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := o.Resource(certificateResource).Namespace(r.own).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r.until(changeTime, tallies, "another root", func(count *tally) bool { return len(count.authorities) > 1 })
	stop()
	r.check(tallies, leastLogins/6, 1+renewals+1)
	if n := len(r.published()); n != 2 {
		t.Errorf("%d CA certificates are published, want both roots", n)
	}
}
