//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	sigsyaml "sigs.k8s.io/yaml"

	"kubevirtbmc.dev/api/crds"
	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/test/cluster"
	"kubevirtbmc.dev/test/cluster/ociarchive"
	"kubevirtbmc.dev/test/launch"
)

const (
	// patience is for what the cluster does in its own time.
	patience = 90 * time.Second
	// registry is no real one: images are loaded into the nodes.
	registry = "kubevirtbmc.test"
	certLife = 6 * time.Hour
)

// Names of the services, which are those of their Deployments.
const (
	controller      = "controller"
	power           = "power"
	frontendIPMI    = "frontend-ipmi"
	frontendRedfish = "frontend-redfish"
)

//go:embed testdata/product.yaml
var product string

var (
	bmcResource     = schema.GroupVersionResource{Group: "bmc.kubevirt.io", Version: "v1beta1", Resource: "virtualmachinebmcs"}
	machineResource = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"}
)

// service is one Deployment.
type service struct {
	Name, Image string
	Args        []string
	// API: it talks to Kubernetes.
	API bool
	// Serves: it serves gRPC to others.
	Serves bool
}

// site is a cluster with the product in one namespace and BMCs in another.
type site struct {
	cluster *cluster.Cluster
	client  *kubernetes.Clientset
	dynamic *dynamic.DynamicClient
	id      string
	// system is the product's namespace, lab that of the BMCs.
	system, lab string
	// caFile has the certificate that the BMCs' come from.
	caFile string
}

func TestMain(m *testing.M) {
	code := m.Run()
	launch.CleanUp()
	os.Exit(code)
}

// newSite deploys the product for as long as the test.
func newSite(t *testing.T) *site {
	t.Helper()
	for _, program := range []string{"ipmitool", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed (make clients)", program)
		}
	}
	s := &site{id: strings.ToLower(rand.Text()[:8])}
	s.system, s.lab = "virtbmc-"+s.id, "lab-"+s.id
	s.open(t)
	services := []service{
		{Name: controller, API: true, Serves: true, Args: append([]string{"--namespaces=" + s.lab}, s.agents(t)...)},
		{Name: power, API: true, Serves: true, Args: []string{"--hypervisor=kubevirt", "--namespaces=" + s.lab}},
		{Name: frontendIPMI},
		{Name: frontendRedfish, Args: []string{
			// Nothing is asked of it.
			"--media=" + s.address(power), "--tls-cert-file=/etc/virtbmc/tls/tls.crt", "--tls-key-file=/etc/virtbmc/tls/tls.key",
		}},
	}
	for i := range services {
		one := &services[i]
		if one.Serves {
			one.Args = append(one.Args, "--tls-cert-file=/etc/virtbmc/tls/tls.crt", "--tls-key-file=/etc/virtbmc/tls/tls.key")
		} else {
			one.Args = append(one.Args,
				"--registry="+s.address(controller), "--power="+s.address(power),
				"--ca-file=/etc/virtbmc/tls/ca.crt", "--token-file=/var/run/secrets/bmc.kubevirt.io/token", "--drain-time=15s")
		}
		one.Image = s.image(t, one.Name)
	}
	s.namespaces(t)
	t.Cleanup(func() {
		if t.Failed() {
			s.dump(t)
		}
	})
	s.define(t)
	s.grant(t)
	s.certificates(t)
	var manifest bytes.Buffer
	if err := template.Must(template.New("product").Parse(product)).Execute(&manifest, map[string]any{"Namespace": s.system, "Services": services}); err != nil {
		t.Fatal(err)
	}
	s.apply(t, manifest.Bytes())
	start := time.Now()
	s.waitRolledOut(t, controller, power, frontendIPMI, frontendRedfish)
	t.Logf("two pods of each service are ready after %s", time.Since(start).Round(100*time.Millisecond))
	s.trust(t)
	return s
}

// agents are the controller's flags about dedicated agents, whose image it loads.
func (s *site) agents(t *testing.T) []string {
	t.Helper()
	name, tag, _ := strings.Cut(s.load(t, "virtbmc", "cmd/virtbmc"), ":")
	return []string{
		"--agent-image-name=" + name, "--agent-image-tag=" + tag, "--agent-ca-file=/etc/virtbmc/tls/ca.crt",
		// Nothing is asked of media.
		"--agent-registry=" + s.address(controller), "--agent-power=" + s.address(power), "--agent-media=" + s.address(power),
	}
}

// address is where a service is found by the others.
func (s *site) address(service string) string { return service + "." + s.system + ".svc:9443" }

func (s *site) open(t *testing.T) {
	t.Helper()
	o := cluster.Options{Level: cluster.LevelKubeVirt, Dir: filepath.Join(t.TempDir(), "testbed"), Log: t.Output()}
	var err error
	if s.cluster, err = cluster.Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := s.cluster.Down(ctx); err != nil {
			t.Error(err)
		}
	})
	if len(s.cluster.NodePIDs) == 0 {
		t.Skip("KUBECONFIG names a cluster whose nodes are not ours, so images can't be loaded into them; without KUBECONFIG make test-integration brings one up")
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.cluster.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 500, 1000
	config.WarningHandlerWithContext = rest.NoWarnings{}
	if s.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if s.dynamic, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
}

// image builds a service and loads it into the nodes.
func (s *site) image(t *testing.T, name string) string {
	t.Helper()
	return s.load(t, "virtbmc-"+name, "services/"+name)
}

// load builds a program as an image and loads it into the nodes.
func (s *site) load(t *testing.T, name, folder string) string {
	t.Helper()
	program := "/" + filepath.Base(folder)
	image := ociarchive.Image{
		Name: registry + "/" + name + ":test", User: "65532", Entrypoint: []string{program},
		Files: []ociarchive.File{{Path: program, Source: launch.Build(t, folder)}},
	}
	if err := s.cluster.AddImage(t.Context(), image); err != nil {
		t.Fatal(err)
	}
	return image.Name
}

// namespaces makes that of the product, where pods get the least rights that there
// are, and that of the machines, whose pods need more.
func (s *site) namespaces(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { s.removeNamespaces(t) })
	for name, labels := range map[string]map[string]string{
		s.system: {"pod-security.kubernetes.io/enforce": "restricted"},
		s.lab:    nil,
	} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if _, err := s.client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// removeNamespaces removes the machines' namespace before the product's, and waits
// until both are gone.
func (s *site) removeNamespaces(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	names := []string{s.lab, s.system}
	for _, name := range names {
		if err := s.client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	if s.cluster.Dir != "" {
		return // The cluster ends with the test.
	}
	for _, name := range names {
		for {
			_, err := s.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				break
			}
			if ctx.Err() != nil {
				t.Errorf("namespace %s is still there: %v", name, err)
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
}

// define installs our custom resource definition.
func (s *site) define(t *testing.T) {
	t.Helper()
	s.apply(t, crds.VirtualMachineBMC)
	s.kubectl(t, "wait", "--for=condition=Established", "crd/virtualmachinebmcs.bmc.kubevirt.io", "--timeout=60s")
}

// grant makes accounts, roles and bindings of deploy/rbac, under names of their own where
// they count in the whole cluster.
func (s *site) grant(t *testing.T) {
	t.Helper()
	var objects []*unstructured.Unstructured
	files := []string{"frontend"}
	for _, service := range []string{controller, power, frontendIPMI, frontendRedfish} {
		files = append(files, "services/"+service)
	}
	for _, file := range files {
		objects = append(objects, documents(t, filepath.Join(launch.Root(), "deploy/rbac", file+".yaml"))...)
	}
	var manifest, cluster []string
	for _, object := range objects {
		if strings.HasPrefix(object.GetKind(), "Cluster") {
			object.SetName(object.GetName() + "-" + s.id)
			cluster = append(cluster, strings.ToLower(object.GetKind())+"/"+object.GetName())
		} else {
			object.SetNamespace(s.system)
		}
		if kind, name := field(object, "roleRef", "kind"), field(object, "roleRef", "name"); kind == "ClusterRole" && strings.HasPrefix(name, "bmc.kubevirt.io:") {
			_ = unstructured.SetNestedField(object.Object, name+"-"+s.id, "roleRef", "name")
		}
		if list, ok, _ := unstructured.NestedSlice(object.Object, "subjects"); ok {
			for _, subject := range list {
				subject.(map[string]any)["namespace"] = s.system
			}
			_ = unstructured.SetNestedSlice(object.Object, list, "subjects")
		}
		text, err := sigsyaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		manifest = append(manifest, string(text))
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if out, err := s.cluster.Kubectl(ctx, append([]string{"delete", "--ignore-not-found", "--wait=false"}, cluster...)...).CombinedOutput(); err != nil {
			t.Errorf("remove roles: %v\n%s", err, out)
		}
	})
	s.apply(t, []byte(strings.Join(manifest, "---\n")))
}

func field(object *unstructured.Unstructured, path ...string) string {
	value, _, _ := unstructured.NestedString(object.Object, path...)
	return value
}

// documents reads a file of YAML documents.
func documents(t *testing.T, path string) []*unstructured.Unstructured {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if object.Object != nil {
			list = append(list, object)
		}
	}
}

// certificates makes those of the services, from one CA.
func (s *site) certificates(t *testing.T) {
	t.Helper()
	authority, err := certs.NewAuthority("test", certLife)
	if err != nil {
		t.Fatal(err)
	}
	for service, hosts := range map[string][]string{
		controller:      {controller + "." + s.system + ".svc"},
		power:           {power + "." + s.system + ".svc"},
		frontendIPMI:    {frontendIPMI},
		frontendRedfish: {frontendRedfish},
	} {
		leaf, err := authority.Issue(hosts, certLife)
		if err != nil {
			t.Fatal(err)
		}
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: service + "-tls", Namespace: s.system},
			Type:       corev1.SecretTypeTLS,
			Data:       map[string][]byte{"ca.crt": authority.PEM(), "tls.crt": chain(leaf), "tls.key": key(t, leaf)},
		}
		if _, err := s.client.CoreV1().Secrets(s.system).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func chain(leaf *tls.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]})
}

func key(t *testing.T, leaf *tls.Certificate) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// trust gets the CA certificates that the controller publishes, from which those of
// the BMCs come.
func (s *site) trust(t *testing.T) {
	t.Helper()
	s.caFile = filepath.Join(t.TempDir(), "ca.pem")
	eventually(t, "CA certificates are published", func() error {
		bundle, err := s.client.CoreV1().ConfigMaps(s.system).Get(t.Context(), "virtbmc-ca-bundle", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return os.WriteFile(s.caFile, []byte(bundle.Data["ca.crt"]), 0o600)
	})
}

// kubectl runs kubectl and returns what it printed.
func (s *site) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := s.cluster.Kubectl(t.Context(), args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s%s", strings.Join(args, " "), err, out, &stderr)
	}
	return string(out)
}

func (s *site) apply(t *testing.T, manifest []byte) {
	t.Helper()
	if err := s.cluster.Apply(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
}

// waitRolledOut waits until the Deployments have all their pods, and no others.
func (s *site) waitRolledOut(t *testing.T, services ...string) {
	t.Helper()
	for _, name := range services {
		s.kubectl(t, "rollout", "status", "-n", s.system, "deployment/"+name, "--timeout="+patience.String())
		eventually(t, "pods of "+name, func() error {
			pods, err := s.pods(t.Context(), name)
			if err == nil && len(pods) != 2 {
				err = fmt.Errorf("there are %d", len(pods))
			}
			return err
		})
	}
}

// pods are those of a service, those that are ending too.
func (s *site) pods(ctx context.Context, service string) ([]corev1.Pod, error) {
	list, err := s.client.CoreV1().Pods(s.system).List(ctx, metav1.ListOptions{LabelSelector: "app=" + service})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// eventually waits until there is no error.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// dump logs what helps to understand a failure.
func (s *site) dump(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, args := range [][]string{
		{"get", "pods", "-n", s.system, "-o", "wide"},
		{"get", "events", "-n", s.system, "--sort-by=.lastTimestamp"},
		{"get", "vmbmc,service,endpointslice", "-n", s.lab, "-o", "wide"},
		{"logs", "-n", s.system, "-l", "app=" + controller, "--prefix", "--tail=60"},
		{"logs", "-n", s.system, "-l", "app=" + power, "--prefix", "--tail=30"},
		{"logs", "-n", s.system, "-l", "app=" + frontendIPMI, "--prefix", "--tail=30"},
		{"logs", "-n", s.system, "-l", "app=" + frontendRedfish, "--prefix", "--tail=30"},
	} {
		out, err := s.cluster.Kubectl(ctx, args...).CombinedOutput()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, strings.Join(lines[max(0, len(lines)-120):], "\n"))
	}
}
