//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package processes_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"kubevirtbmc.dev/pkg/bmcresource/bmcresourcetest"
	"kubevirtbmc.dev/pkg/kubeaccess/rbactest"
	"kubevirtbmc.dev/pkg/testport"
	"kubevirtbmc.dev/test/launch"
)

// agentHost is where the agent serves, whose ports are fixed: nobody else's, as the
// address of a pod is.
const agentHost = "127.84.66.77"

// objects makes objects in a namespace, for as long as the test.
type objects struct {
	t *testing.T
	dynamic.Interface
	namespace string
}

func newObjects(t *testing.T, namespace string) objects {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 100, 200
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return objects{t, client, namespace}
}

func (o objects) create(resource schema.GroupVersionResource, manifest string) {
	o.t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &object.Object); err != nil {
		o.t.Fatal(err)
	}
	client := o.Resource(resource).Namespace(o.namespace)
	if _, err := client.Create(o.t.Context(), object, metav1.CreateOptions{}); err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() { _ = client.Delete(context.Background(), object.GetName(), metav1.DeleteOptions{}) })
}

func (o objects) eventually(what string, check func() error) {
	o.t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	o.t.Fatalf("%s: %v", what, err)
}

var (
	bmcResource     = schema.GroupVersionResource{Group: "bmc.kubevirt.io", Version: "v1beta1", Resource: "virtualmachinebmcs"}
	machineResource = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"}
	secretResource  = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
)

// The controller makes an agent; a process with the arguments of its pod, and the
// token of its ServiceAccount, serves its BMC, and is refused all others.
func TestAgent_callerOfKubernetes(t *testing.T) {
	t.Parallel()
	needClients(t, "ipmitool", "curl")
	a, c, o := newAccounts(t), newCredentials(t), newObjects(t, "default")
	bmcresourcetest.Install(t, a.rest)
	for _, name := range []string{"sim-0", "sim-1"} {
		o.create(machineResource, `{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: `+name+`}, spec: {runStrategy: Halted, template: {spec: {domain: {devices: {}, memory: {guest: 64Mi}}}}}}`)
		o.create(secretResource, `{apiVersion: v1, kind: Secret, metadata: {name: `+name+`}, stringData: {username: `+username+`, password: `+password+`}}`)
		o.create(bmcResource, `{apiVersion: bmc.kubevirt.io/v1beta1, kind: VirtualMachineBMC, metadata: {name: `+name+`}, spec: {virtualMachineRef: {name: `+name+`}, authSecretRef: {name: `+name+`}, ipmi: {enabled: true}, redfish: {http: {enabled: true}}, frontend: {mode: Dedicated}}}`)
	}
	t.Cleanup(func() { o.collect("sim-0", "sim-1") })

	first := testport.FreeRow(t, 10)
	address := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", first+i) }
	simulator, power, powerREST, media, controller := address(0), address(1), address(2), address(3), address(4)
	s := &system{t: t, rest: powerREST, caFile: c.ca, services: map[string]*service{}}
	kubeconfig := rbactest.New(t, a.rest, "power", rbactest.Where{Own: "default"}).Kubeconfig()
	serve := func(address, rest string) []string {
		return []string{"--listen", address, "--rest-listen", rest, "--tls-cert-file", c.cert, "--tls-key-file", c.key}
	}
	started := 0
	start := func(name, program string, args ...[]string) {
		t.Helper()
		sv := &service{program: launch.Build(t, program), health: address(6 + started)}
		started++
		for _, some := range args {
			sv.args = append(sv.args, some...)
		}
		sv.args = append(sv.args, "--health-listen", sv.health)
		s.services[name] = sv
		s.start(name)
	}
	start("simulator", "cmd/kubevirtbmc", []string{"simulator", "--machines", "2"}, c.serve(simulator))
	start("power", "services/power", serve(power, powerREST), []string{
		"--kubeconfig", kubeconfig, "--access-allow-ttl", "0", "--access-deny-ttl", "0",
		"--hypervisor", "simulator", "--simulator-address", simulator, "--simulator-ca-file", c.ca, "--simulator-token-file", c.token,
	})
	start("controller", "services/controller", serve(controller, ""), []string{
		"--kubeconfig", os.Getenv("KUBECONFIG"), "--namespaces", "default", "--namespace", "default", "--log-level", "debug",
		"--agent-image-name", "kubevirtbmc.test/virtbmc", "--agent-ca-file", c.ca,
		"--agent-registry", controller, "--agent-power", power, "--agent-media", media,
	})
	for name := range s.services {
		s.waitReady(name)
	}

	var d *appsv1.Deployment
	for _, name := range []string{"sim-0-virtbmc", "sim-1-virtbmc"} {
		o.eventually("Deployment "+name, func() (err error) {
			d, err = a.client.AppsV1().Deployments("default").Get(t.Context(), name, metav1.GetOptions{})
			return err
		})
	}
	d, err := a.client.AppsV1().Deployments("default").Get(t.Context(), "sim-0-virtbmc", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ca, err := a.client.CoreV1().ConfigMaps("default").Get(t.Context(), "sim-0-virtbmc-ca", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// What kubelet does.
	token := a.token(d.Spec.Template.Spec.ServiceAccountName, tokenAudience(t, d))
	args := append(strings.Split(strings.NewReplacer(
		"$(POD_NAME)", "sim-0-virtbmc-x", "[$(POD_IP)]:8081", address(9),
		"/run/virtbmc/ca.crt", c.write(t, "agent-ca", []byte(ca.Data["ca.crt"])), "/run/virtbmc/token", c.write(t, "agent-token", []byte(token)),
		"--drain-time=15s", "--drain-time=0",
	).Replace(strings.Join(d.Spec.Template.Spec.Containers[0].Args, "\n")), "\n"), "--listen="+agentHost)
	agent := &service{program: launch.Build(t, "cmd/virtbmc"), args: args, health: address(9)}
	s.services["virtbmc"] = agent
	s.start("virtbmc")
	s.waitReady("virtbmc")

	ipmitool := func(args ...string) string {
		out, _ := exec.CommandContext(t.Context(), "ipmitool", append([]string{
			"-I", "lanplus", "-H", agentHost, "-p", "10623", "-U", username, "-P", password, "-N", "2", "-R", "2",
		}, args...)...).CombinedOutput()
		return string(out)
	}
	s.eventually("IPMI", func() bool { return strings.Contains(ipmitool("power", "on"), "Up/On") })
	s.eventually("Redfish", func() bool {
		return strings.Contains(s.curl("-u", username+":"+password, "http://"+agentHost+":10080/redfish/v1/Systems/1"), `"PowerState":"On"`)
	})
	log := s.services["power"].process.Stderr()
	for _, part := range []string{`"audit":true`, `"identity":"system:serviceaccount:default:sim-0-virtbmc"`, `"user":"` + username + `"`, `"protocol":"ipmi"`} {
		if !strings.Contains(log, part) {
			t.Errorf("the audit log lacks %s:\n%s", part, log)
		}
	}

	// The agent's token, in other hands.
	const path = "/v1/namespaces/default/bmcs/"
	for name, tc := range map[string]struct{ address, method, path, code string }{
		"its BMC":                       {powerREST, "GET", path + "sim-0/power", "200"},
		"another BMC":                   {powerREST, "GET", path + "sim-1/power", "403"},
		"another BMC's machine":         {powerREST, "POST", path + "sim-1/power", "403"},
		"a BMC that does not exist":     {powerREST, "POST", path + "nobody/power", "403"},
		"one of another namespace":      {powerREST, "GET", "/v1/namespaces/kube-system/bmcs/sim-0/power", "403"},
		"the API server, with its CA's": {"", "GET", "", "401"},
	} {
		args := []string{"-o", "/dev/null", "-w", "%{http_code}", "-H", "Authorization: Bearer " + token, "-X", tc.method}
		if tc.method == "POST" {
			args = append(args, "-d", `{"action":"POWER_ACTION_ON"}`)
		}
		url := "https://" + tc.address + tc.path
		if tc.address == "" {
			args, url = append(args, "-k"), a.rest.Host+"/api/v1/namespaces/default/secrets/sim-0"
		}
		if got := s.curl(append(args, url)...); got != tc.code {
			t.Errorf("%s: %s, want %s", name, got, tc.code)
		}
	}
	if got := ipmitool("power", "status"); !strings.Contains(got, "is on") {
		t.Errorf("power status: %s", got)
	}
	for name, sv := range s.services {
		for _, secret := range []string{token, password} {
			if strings.Contains(sv.process.Stderr(), secret) {
				t.Errorf("%s logs a secret", name)
			}
		}
	}
}

// tokenAudience is the audience of the token that a pod of a Deployment gets.
func tokenAudience(t *testing.T, d *appsv1.Deployment) string {
	t.Helper()
	for _, volume := range d.Spec.Template.Spec.Volumes {
		for _, source := range volume.Projected.Sources {
			if source.ServiceAccountToken != nil {
				return source.ServiceAccountToken.Audience
			}
		}
	}
	t.Fatal("the pod gets no token")
	return ""
}

// collect removes what BMCs owned, as Kubernetes' garbage collector does, which
// clusters of level api do not have.
func (o objects) collect(bmcs ...string) {
	for _, resource := range []schema.GroupVersionResource{
		appsv1.SchemeGroupVersion.WithResource("deployments"),
		corev1.SchemeGroupVersion.WithResource("services"),
		corev1.SchemeGroupVersion.WithResource("configmaps"),
		corev1.SchemeGroupVersion.WithResource("serviceaccounts"),
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
		{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	} {
		for _, bmc := range bmcs {
			selector := metav1.ListOptions{LabelSelector: "kubevirt.io/virtualmachinebmc-name=" + bmc}
			list, err := o.Resource(resource).Namespace(o.namespace).List(context.Background(), selector)
			if err != nil {
				o.t.Error(err)
				continue
			}
			for _, item := range list.Items {
				if err := o.Resource(resource).Namespace(o.namespace).Delete(context.Background(), item.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
					o.t.Error(err)
				}
			}
		}
	}
}
