//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package processes_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/bmcresource/bmcresourcetest"
	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/kubeaccess/rbactest"
	"kubevirtbmc.dev/pkg/testport"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	consolev1 "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	"kubevirtbmc.dev/test/launch"
)

const (
	// machinePatience is how long a machine may take for anything.
	machinePatience = 4 * time.Minute
	// longestWait is how long a call may wait for an action's end.
	longestWait = 2 * time.Minute
	// quiet is for how long it is looked whether nothing comes of something. The
	// condition RestartRequired comes 3 s after a change.
	quiet = 8 * time.Second
)

// Resources of the cluster.
var (
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	secrets    = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	bmcs       = schema.GroupVersionResource{Group: "bmc.kubevirt.io", Version: "v1beta1", Resource: "virtualmachinebmcs"}
	events     = schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}
	vms        = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"}
	vmis       = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}
	mutating   = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"}
	validating = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"}
)

// lab is KUBECONFIG's cluster with KubeVirt, a controller with webhooks and a power
// service whose overrides are carried out at admission, both processes with the
// rights of their manifests.
type lab struct {
	*testing.T
	config     *rest.Config
	client     dynamic.Interface
	namespace  string
	power      powerv1.PowerServiceClient
	boot       bootv1.BootServiceClient
	console    consolev1.ConsoleServiceClient
	controller *launch.Process
	// start starts the controller again.
	start        func()
	powerProcess *launch.Process
	// health are the addresses of the services' health and metrics.
	health        map[string]string
	configuration string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	kubeconfig := os.Getenv("KUBECONFIG")
	if kubeconfig == "" {
		t.Fatal("KUBECONFIG names no cluster (hack/with-cluster.sh kubevirt)")
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 100, 200
	l := &lab{T: t, config: config, namespace: "lab-" + strings.ToLower(rand.Text()[:8])}
	if l.client, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	bmcresourcetest.Install(t, config)
	l.apply(namespaces, "", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": l.namespace}})
	t.Cleanup(func() {
		_ = l.client.Resource(namespaces).Delete(context.Background(), l.namespace, metav1.DeleteOptions{})
	})
	l.configuration = "virtbmc-controller." + l.namespace
	t.Cleanup(func() {
		for _, resource := range []schema.GroupVersionResource{mutating, validating} {
			_ = l.client.Resource(resource).Delete(context.Background(), l.configuration, metav1.DeleteOptions{})
		}
	})
	l.apply(secrets, l.namespace, map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "account"},
		"stringData": map[string]any{"username": username, "password": password},
	})

	c := newCredentials(t)
	host := testport.HostFor(t, config.Host)
	webhookCert, webhookKey, webhookCA := c.issue(t, host)
	first := testport.FreeRow(t, 5)
	address := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", first+n) }
	webhook := net.JoinHostPort(host, fmt.Sprint(first+4))
	l.health = map[string]string{"controller": address(1), "power": address(3)}
	account := func(service string) string {
		return rbactest.New(t, config, service, rbactest.Where{
			Own: l.namespace, Serves: []string{l.namespace}, Names: map[string]string{"virtbmc-controller.kubevirtbmc-system": l.configuration},
		}).Kubeconfig()
	}
	controllers := account("controller")
	program := launch.Build(t, "services/controller")
	l.start = func() {
		l.controller = launch.Start(t, nil, program, append(c.serve(address(0)), "--health-listen", l.health["controller"], "--kubeconfig", controllers,
			"--namespace", l.namespace, "--namespaces", l.namespace, "--default-ipmi", "--boot-override-strategy", "Admission", "--webhook-listen", webhook, "--webhook-url", "https://"+webhook,
			"--webhook-tls-cert-file", webhookCert, "--webhook-tls-key-file", webhookKey, "--webhook-ca-file", webhookCA)...)
		l.controller.WaitReady(t, webhook)
	}
	l.start()
	l.powerProcess = launch.Start(t, nil, launch.Build(t, "services/power"), append(c.serve(address(2)), "--health-listen", l.health["power"],
		"--replica", "power-0", "--hypervisor", "kubevirt", "--bmcs", "resources", "--kubeconfig", account("power"), "--namespaces", l.namespace,
		"--boot-override-strategy", "Admission")...)
	l.powerProcess.WaitReady(t, address(2))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("controller:\n%s\npower:\n%s", l.controller.Stderr(), l.powerProcess.Stderr())
		}
	})

	roots, err := certs.LoadRoots(c.ca)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpcclient.Dial(address(2), grpcclient.Config{Roots: roots.Pool, Token: grpcclient.TokenFile(c.token)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	l.power, l.boot, l.console = powerv1.NewPowerServiceClient(conn), bootv1.NewBootServiceClient(conn), consolev1.NewConsoleServiceClient(conn)
	l.eventually("webhooks are registered", func() error {
		_, err := l.client.Resource(mutating).Get(t.Context(), l.configuration, metav1.GetOptions{})
		return err
	})
	return l
}

// issue makes the files of a certificate for a host, its key, and its issuer.
func (c *credentials) issue(t *testing.T, host string) (cert, key, ca string) {
	t.Helper()
	authority, err := certs.NewAuthority("webhook CA", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Issue([]string{host}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	return c.write(t, "webhook.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]})),
		c.write(t, "webhook.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		c.write(t, "webhook-ca.crt", authority.PEM())
}

func (l *lab) apply(resource schema.GroupVersionResource, namespace string, object map[string]any) *unstructured.Unstructured {
	l.Helper()
	is := &unstructured.Unstructured{Object: object}
	is, err := l.client.Resource(resource).Namespace(namespace).Apply(l.Context(), is.GetName(), is, metav1.ApplyOptions{FieldManager: "test", Force: true})
	if err != nil {
		l.Fatal(err)
	}
	return is
}

func (l *lab) eventually(what string, check func() error) {
	l.Helper()
	var err error
	for end := time.Now().Add(machinePatience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	l.Fatalf("%s: %v", what, err)
}

// guest is a machine with a BMC of its name.
type guest struct {
	*lab
	name string
	// template is the machine's, as KubeVirt has completed it.
	template map[string]any
}

// add makes a machine that boots from its disk, then from the network, and has an
// empty CD drive.
func (l *lab) add(name, strategy string) *guest {
	l.Helper()
	g := &guest{lab: l, name: name}
	drive := func(name string) map[string]any {
		return map[string]any{"name": name, "emptyDisk": map[string]any{"capacity": "1Mi"}}
	}
	l.apply(vms, l.namespace, map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"runStrategy": strategy, "template": map[string]any{"spec": map[string]any{
			"terminationGracePeriodSeconds": 5,
			"domain": map[string]any{
				"memory": map[string]any{"guest": "64Mi"}, "resources": map[string]any{"requests": map[string]any{"cpu": "10m"}},
				"devices": map[string]any{
					"logSerialConsole": false,
					"disks": []any{
						map[string]any{"name": "root", "bootOrder": 1, "disk": map[string]any{"bus": "virtio"}},
						map[string]any{"name": "cd", "cdrom": map[string]any{"bus": "sata"}},
					},
					"interfaces": []any{map[string]any{"name": "nic", "bootOrder": 2, "masquerade": map[string]any{}}},
				},
			},
			"networks": []any{map[string]any{"name": "nic", "pod": map[string]any{}}},
			"volumes":  []any{drive("root"), drive("cd")},
		}}},
	})
	l.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, _ = l.power.TransitionPower(ctx, &powerv1.TransitionPowerRequest{
			Bmc: g.reference(), Action: powerv1.PowerAction_POWER_ACTION_FORCE_OFF, Wait: durationpb.New(30 * time.Second),
		})
		_ = l.client.Resource(vms).Namespace(l.namespace).Delete(ctx, name, metav1.DeleteOptions{})
	})
	l.eventually("BMC is accepted", func() error {
		_, err := l.client.Resource(bmcs).Namespace(l.namespace).Apply(l.Context(), name, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "bmc.kubevirt.io/v1beta1", "kind": "VirtualMachineBMC", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"virtualMachineRef": map[string]any{"name": name}, "authSecretRef": map[string]any{"name": "account"}},
		}}, metav1.ApplyOptions{FieldManager: "test", Force: true})
		return err
	})
	l.eventually("KubeVirt has completed the template", func() error {
		g.template = g.templateNow()
		if uuid, _, _ := unstructured.NestedString(g.template, "spec", "domain", "firmware", "uuid"); uuid == "" {
			return errors.New("no UUID")
		}
		return nil
	})
	l.eventually("the power service knows it", func() error {
		_, err := l.power.GetPower(l.Context(), &powerv1.GetPowerRequest{Bmc: g.reference()})
		return err
	})
	return g
}

func (g *guest) reference() *referencev1.BMCReference {
	return &referencev1.BMCReference{Namespace: g.namespace, Name: g.name}
}

func (g *guest) vm() *unstructured.Unstructured {
	g.Helper()
	vm, err := g.client.Resource(vms).Namespace(g.namespace).Get(g.Context(), g.name, metav1.GetOptions{})
	if err != nil {
		g.Fatal(err)
	}
	return vm
}

func (g *guest) templateNow() map[string]any {
	g.Helper()
	template, _, err := unstructured.NestedMap(g.vm().Object, "spec", "template")
	if err != nil {
		g.Fatal(err)
	}
	return template
}

// arm sets a one-time override and returns its ID.
func (g *guest) arm(target bootv1.BootTarget, mode bootv1.FirmwareMode) string {
	g.Helper()
	response, err := g.boot.SetBootOverride(g.Context(), &bootv1.SetBootOverrideRequest{Bmc: g.reference(), Override: &bootv1.BootOverride{
		Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE, Target: target, Mode: mode,
	}})
	if err != nil {
		g.Fatalf("%s: arm: %v", g.name, err)
	}
	if response.GetStatus().GetOverrideId() == "" {
		g.Fatalf("%s: the override has no ID", g.name)
	}
	return response.GetStatus().GetOverrideId()
}

func (g *guest) do(action powerv1.PowerAction) {
	g.Helper()
	response, err := g.power.TransitionPower(g.Context(), &powerv1.TransitionPowerRequest{Bmc: g.reference(), Action: action, Wait: durationpb.New(longestWait)})
	if err != nil {
		g.Fatalf("%s: %s: %v", g.name, action, err)
	}
	if phase := response.GetStatus().GetOperation().GetPhase(); phase != powerv1.OperationPhase_OPERATION_PHASE_SUCCEEDED {
		g.Fatalf("%s: %s ended %s: %s", g.name, action, phase, response.GetStatus().GetOperation().GetMessage())
	}
}

// startsByItself tells whether KubeVirt starts a machine that is new, and waits until
// that runs.
func (g *guest) startsByItself(strategy string) bool {
	g.Helper()
	if strategy != "Always" && strategy != "RerunOnFailure" {
		return false
	}
	g.eventually("KubeVirt has started it", func() error {
		_, err := g.client.Resource(vmis).Namespace(g.namespace).Get(g.Context(), g.name, metav1.GetOptions{})
		return err
	})
	g.do(turnOn) // It waits until the machine runs.
	return true
}

// instance is the machine's instance.
func (g *guest) instance() *unstructured.Unstructured {
	g.Helper()
	vmi, err := g.client.Resource(vmis).Namespace(g.namespace).Get(g.Context(), g.name, metav1.GetOptions{})
	if err != nil {
		g.Fatal(err)
	}
	return vmi
}

// bootsBy writes down by what an instance boots, and the override's ID.
func bootsBy(vmi *unstructured.Unstructured) string {
	var list []string
	for _, kind := range []string{"disks", "interfaces"} {
		devices, _, _ := unstructured.NestedSlice(vmi.Object, "spec", "domain", "devices", kind)
		for _, device := range devices {
			text := fmt.Sprint(device.(map[string]any)["name"])
			if order, ok := device.(map[string]any)["bootOrder"]; ok {
				text += fmt.Sprintf("=%v", order)
			}
			list = append(list, text)
		}
	}
	if id, ok := vmi.GetAnnotations()[bootoverride.InstanceAnnotation]; ok {
		list = append(list, "by "+id)
	}
	return strings.Join(list, " ")
}

// ownOrder is by what the machines boot themselves.
const ownOrder = "root=1 cd nic=2"

func (g *guest) wantBoots(what, want string) {
	g.Helper()
	if got := bootsBy(g.instance()); got != want {
		g.Errorf("%s: %s: boots by %s, want %s", g.name, what, got, want)
	}
}

// wantDisarmed waits until no override is armed, as its client sees it.
func (g *guest) wantDisarmed() {
	g.Helper()
	g.eventually(g.name+": no override is armed", func() error {
		response, err := g.boot.GetBoot(g.Context(), &bootv1.GetBootRequest{Bmc: g.reference()})
		if err != nil {
			return err
		}
		if is := response.GetStatus().GetOverride().GetPersistence(); is != bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED {
			return fmt.Errorf("it is %s", is)
		}
		return nil
	})
}

// wantUntouched: the template is as it was, and KubeVirt wants no restart, for a
// while.
func (g *guest) wantUntouched() {
	g.Helper()
	for end := time.Now().Add(quiet); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		vm := g.vm()
		template, _, _ := unstructured.NestedMap(vm.Object, "spec", "template")
		if diff := cmp.Diff(g.template, template); diff != "" {
			g.Fatalf("%s: the template was changed (-before +now):\n%s", g.name, diff)
		}
		if restartRequired(vm) {
			g.Fatalf("%s: KubeVirt wants a restart: %v", g.name, vm.Object["status"])
		}
	}
}

// restartRequired tells whether KubeVirt wants a machine to be restarted.
func restartRequired(vm *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(vm.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		return c.(map[string]any)["type"] == "RestartRequired" && c.(map[string]any)["status"] == "True"
	})
}

const (
	anyMode = bootv1.FirmwareMode_FIRMWARE_MODE_UNSPECIFIED
	uefi    = bootv1.FirmwareMode_FIRMWARE_MODE_UEFI
	toCD    = bootv1.BootTarget_BOOT_TARGET_CD
	toPXE   = bootv1.BootTarget_BOOT_TARGET_PXE

	turnOn = powerv1.PowerAction_POWER_ACTION_ON
	cycle  = powerv1.PowerAction_POWER_ACTION_POWER_CYCLE
	reset  = powerv1.PowerAction_POWER_ACTION_FORCE_RESTART
)

// A one-time override is carried out on one instance of a machine, whatever its run
// strategy, and nothing of it is ever in the template.
func TestBootOverride_onceOnKubeVirt(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for _, strategy := range []string{"Halted", "Always", "Manual", "RerunOnFailure"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			l := *l
			l.T = t
			g := l.add("vm-"+strings.ToLower(strategy), strategy)
			if g.startsByItself(strategy) {
				id := g.arm(toCD, anyMode)
				g.do(cycle)
				g.wantBoots("armed while on", "root=2 cd=1 nic=3 by "+id)
			} else {
				id := g.arm(toCD, anyMode)
				g.do(turnOn)
				g.wantBoots("armed while off", "root=2 cd=1 nic=3 by "+id)
			}
			g.wantDisarmed()
			g.wantUntouched()
			overridden := g.instance().GetUID()
			// A guest's own reboot would stay with the instance; the BMC's reset makes
			// another one.
			g.do(reset)
			g.wantBoots("the next start", ownOrder)
			if g.instance().GetUID() == overridden {
				t.Error("it is the same instance")
			}

			first := g.arm(toCD, anyMode)
			second := g.arm(toPXE, uefi)
			if first == second {
				t.Errorf("both overrides have ID %s", first)
			}
			g.do(reset)
			g.wantBoots("armed twice", "root=3 cd=4 nic=2 by "+second)
			if efi, ok, _ := unstructured.NestedMap(g.instance().Object, "spec", "domain", "firmware", "bootloader", "efi"); !ok || efi["secureBoot"] != false {
				t.Errorf("the firmware is not UEFI without Secure Boot: %v", efi)
			}
			g.wantDisarmed()
			g.wantUntouched()
			g.do(cycle)
			g.wantBoots("the start after that", ownOrder)
			if _, ok, _ := unstructured.NestedMap(g.instance().Object, "spec", "domain", "firmware", "bootloader"); ok {
				t.Error("the firmware is still the override's")
			}
			g.wantUntouched()
		})
	}
}

// dryRun has the API server say what the machine's next instance would be.
func (g *guest) dryRun() *unstructured.Unstructured {
	g.Helper()
	vm := g.vm()
	spec, _, _ := unstructured.NestedMap(vm.Object, "spec", "template", "spec")
	vmi := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
		"metadata": map[string]any{"name": g.name, "namespace": g.namespace, "ownerReferences": []any{map[string]any{
			"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": g.name, "uid": string(vm.GetUID()),
			"controller": true, "blockOwnerDeletion": true,
		}}},
		"spec": spec,
	}}
	answer, err := g.client.Resource(vmis).Namespace(g.namespace).Create(g.Context(), vmi, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		g.Fatal(err)
	}
	return answer
}

// A dry run shows the override and does not use it up.
func TestBootOverride_dryRunOnKubeVirt(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	g := l.add("vm", "Manual")
	id := g.arm(toCD, anyMode)
	want := "root=2 cd=1 nic=3 by " + id
	for range 2 {
		// On a loaded machine the webhook may be late for one, as for any instance.
		g.eventually("a dry run shows the override", func() error {
			if got := bootsBy(g.dryRun()); got != want {
				return fmt.Errorf("it boots by %s, want %s", got, want)
			}
			return nil
		})
	}
	response, err := g.boot.GetBoot(t.Context(), &bootv1.GetBootRequest{Bmc: g.reference()})
	if err != nil || response.GetStatus().GetOverrideId() != id || response.GetStatus().GetOverride().GetTarget() != toCD {
		t.Errorf("after the dry run: %v, %v", response, err)
	}
	g.do(turnOn)
	g.wantBoots("after a dry run", want)
	g.wantDisarmed()
	g.wantUntouched()

	// What wantUntouched looks for comes in time where somebody changes the template.
	patch := []byte(`[{"op": "replace", "path": "/spec/template/spec/domain/devices/disks/0/bootOrder", "value": 7}]`)
	if _, err := l.client.Resource(vms).Namespace(l.namespace).Patch(t.Context(), g.name, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(quiet); !restartRequired(g.vm()); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after a change of the template KubeVirt does not want a restart within %s", quiet)
		}
	}
}

// What was armed for a machine is not for another one of its name.
func TestBootOverride_machineMadeAnewOnKubeVirt(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	g := l.add("vm", "Manual")
	g.arm(toCD, anyMode)
	if err := l.client.Resource(vms).Namespace(l.namespace).Delete(t.Context(), g.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	g.eventually("gone", func() error {
		_, err := l.client.Resource(vms).Namespace(l.namespace).Get(t.Context(), g.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("still there, %w", err)
	})
	g = l.add("vm", "Manual")
	g.wantDisarmed()
	g.do(turnOn)
	g.wantBoots("another machine", ownOrder)
	g.wantUntouched()
}

// While nobody answers for the webhook, machines start without their override. That
// is seen: the machine is made anew at once, and if that does not help the override
// fails visibly. The next one works again.
func TestBootOverride_withoutWebhookOnKubeVirt(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(*lab){
		"gone": func(l *lab) { l.controller.Kill() },
		"hanging": func(l *lab) {
			if err := syscall.Kill(l.controller.PID(), syscall.SIGSTOP); err != nil {
				l.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			g := l.add("vm", "Manual")
			away(l)
			id := g.arm(toCD, anyMode)
			asked := time.Now()
			if got := bootsBy(g.dryRun()); got != ownOrder {
				t.Errorf("while nobody answers it boots by %s, want %s", got, ownOrder)
			}
			// The API server waits for 2 s; the rest is a machine under load.
			if took := time.Since(asked); took > 6*time.Second {
				t.Errorf("an instance takes %s to be made", took)
			}
			g.request(turnOn)
			g.eventually("the override is given up", func() error {
				if b := g.bypassed(); b == nil || b.ID != id {
					return fmt.Errorf("bypassed: %+v", b)
				}
				return nil
			})
			g.wantDisarmed()
			if got := metric(t, l.metrics("power"), bypasses); got != 2 {
				t.Errorf("%v instances came without their override, want 2", got)
			}
			if got := l.complaints(); got != 2 {
				t.Errorf("the power service says so %d times, want 2:\n%s", got, l.powerProcess.Stderr())
			}
			g.do(turnOn) // It waits until the machine runs.
			g.wantBoots("given up", ownOrder)

			l.controller.Kill()
			l.start()
			g.wantAvailable("False WebhookBypassed")
			g.eventually("a warning event", func() error { return g.warned("WebhookBypassed", id) })
			id = g.arm(toCD, anyMode)
			g.do(cycle)
			g.wantBoots("with the webhook again", "root=2 cd=1 nic=3 by "+id)
			g.wantDisarmed()
			if b := g.bypassed(); b != nil {
				t.Errorf("an override has worked, and still %+v", b)
			}
			g.wantAvailable("True Admission")
			g.wantUntouched()
		})
	}
}

// Where the webhook is back in time, the machine that is made anew has its override.
func TestBootOverride_webhookBackInTimeOnKubeVirt(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	g := l.add("vm", "Manual")
	l.controller.Kill()
	id := g.arm(toCD, anyMode)
	g.request(turnOn)
	g.eventually("an instance without its override is seen", func() error {
		if got := l.complaints(); got != 1 {
			return fmt.Errorf("%d complaints", got)
		}
		return nil
	})
	l.start()
	g.do(turnOn) // It waits until the machine runs.
	g.wantBoots("made anew", "root=2 cd=1 nic=3 by "+id)
	g.wantDisarmed()
	if got := metric(t, l.metrics("power"), bypasses); got != 1 {
		t.Errorf("%v instances came without their override, want 1", got)
	}
	if b := g.bypassed(); b != nil {
		t.Errorf("the override has worked, and still %+v", b)
	}
	g.do(cycle)
	g.wantBoots("the start after that", ownOrder)
	g.wantUntouched()
}

// bypasses counts the instances that came without their override.
const bypasses = "vbmc_power_boot_override_bypasses_total"

// complaints is how often the power service has said that an instance came without
// its override.
func (l *lab) complaints() int {
	return strings.Count(l.powerProcess.Stderr(), "the machine started without its boot override")
}

// request asks for an action and does not wait for it.
func (g *guest) request(action powerv1.PowerAction) {
	g.Helper()
	if _, err := g.power.TransitionPower(g.Context(), &powerv1.TransitionPowerRequest{Bmc: g.reference(), Action: action}); err != nil {
		g.Fatalf("%s: %s: %v", g.name, action, err)
	}
}

// bypassed is the override that the services remember to have given up; nil: none.
func (g *guest) bypassed() *bootoverride.Bypassed {
	g.Helper()
	is, err := g.client.Resource(bmcs).Namespace(g.namespace).Get(g.Context(), g.name, metav1.GetOptions{})
	if err != nil {
		g.Fatal(err)
	}
	var state map[string]json.RawMessage
	if err := json.Unmarshal([]byte(is.GetAnnotations()[v1beta1.AnnotationState]), &state); err != nil {
		g.Fatal(err)
	}
	var b *bootoverride.Bypassed
	if raw, ok := state[bootoverride.BypassedKey]; ok {
		if err := json.Unmarshal(raw, &b); err != nil {
			g.Fatal(err)
		}
	}
	return b
}

// warned is an error unless there is a warning event of the BMC with a reason, whose
// message has a text.
func (g *guest) warned(reason, text string) error {
	list, err := g.client.Resource(events).Namespace(g.namespace).List(g.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	var all []string
	for _, event := range list.Items {
		of, _, _ := unstructured.NestedString(event.Object, "regarding", "name")
		note, _, _ := unstructured.NestedString(event.Object, "note")
		if event.Object["type"] == "Warning" && event.Object["reason"] == reason && of == g.name && strings.Contains(note, text) {
			return nil
		}
		all = append(all, fmt.Sprintf("%v %v of %s: %s", event.Object["type"], event.Object["reason"], of, note))
	}
	return fmt.Errorf("none is %s: %q", reason, all)
}

// wantAvailable waits until the BMC says of overrides whether they take effect.
func (g *guest) wantAvailable(want string) {
	g.Helper()
	g.eventually("condition "+want, func() error {
		is, err := g.client.Resource(bmcs).Namespace(g.namespace).Get(g.Context(), g.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(is.Object, "status", "conditions")
		for _, c := range conditions {
			if c := c.(map[string]any); c["type"] == v1beta1.ConditionBootOverrideAvailable {
				if got := fmt.Sprintf("%s %s", c["status"], c["reason"]); got != want {
					return fmt.Errorf("it is %s: %v", got, c["message"])
				}
				return nil
			}
		}
		return errors.New("there is none")
	})
}

// metrics are those of a service.
func (l *lab) metrics(of string) string {
	l.Helper()
	s := &system{t: l.T, services: map[string]*service{of: {health: l.health[of]}}}
	status, text := s.get(of, "/metrics")
	if status != http.StatusOK {
		l.Fatalf("metrics: %d %s", status, text)
	}
	return text
}
