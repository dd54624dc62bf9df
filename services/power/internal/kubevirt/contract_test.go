//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	kvv1 "kubevirt.io/api/core/v1"
	kvclient "kubevirt.io/client-go/kubevirt/typed/core/v1"
	"sigs.k8s.io/yaml"

	"kubevirtbmc.dev/pkg/bmcresource/bmcresourcetest"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract"
	"kubevirtbmc.dev/pkg/kubeaccess/rbactest"
	"kubevirtbmc.dev/services/power/internal/acceptance"
	"kubevirtbmc.dev/services/power/internal/kubevirt"
)

// GUEST_DISK_IMAGE is the container disk that the machines boot from, for
// clusters that run guests: test/cluster's level real has
// kubevirtbmc.test/guest-disk:1. Without one the cluster is of level kubevirt,
// which reads no disk and whose guests carry out what is typed at their serial
// console.
var diskImage = os.Getenv("GUEST_DISK_IMAGE")

// machinesAtOnce is how many tests run at the same time, unless -parallel says
// so. They wait most of the time; more make a machine of two processors answer too
// late.
const machinesAtOnce = 16

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", strconv.Itoa(machinesAtOnce)); err != nil {
			panic(err)
		}
	}
	os.Exit(rbactest.RunWhole(m, "power"))
}

func drive(name string) kvv1.Volume {
	if diskImage == "" {
		return kvv1.Volume{Name: name, VolumeSource: kvv1.VolumeSource{
			EmptyDisk: &kvv1.EmptyDiskSource{Capacity: resource.MustParse("1Mi")},
		}}
	}
	return kvv1.Volume{Name: name, VolumeSource: kvv1.VolumeSource{
		ContainerDisk: &kvv1.ContainerDiskSource{Image: diskImage, ImagePullPolicy: corev1.PullIfNotPresent},
	}}
}

// cluster is what the tests of one run share: KUBECONFIG's cluster, a namespace
// in it, and the hypervisor under test.
type cluster struct {
	*kubevirt.Hypervisor
	config    *rest.Config
	client    kvclient.KubevirtV1Interface
	namespace string
	// nodes is how many there are that machines can run on.
	nodes    int
	machines atomic.Int32
}

func open(t *testing.T) *cluster {
	t.Helper()
	config := bmcresourcetest.Cluster(t)
	config.QPS, config.Burst = 100, 200
	config.WarningHandlerWithContext = rest.NoWarnings{}
	client, err := kvclient.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{config: config, client: client, namespace: "bmc-" + strings.ToLower(rand.Text()[:8])}
	c.createNamespace(t)
	c.countNodes(t)
	c.Hypervisor, err = kubevirt.New(kubevirt.Config{REST: c.service(t), Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	for end := time.Now().Add(time.Minute); !c.Ready(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			_, err := c.List()
			t.Fatalf("not ready: %v", err)
		}
	}
	return c
}

// service returns the configuration of a power service with a ServiceAccount of its
// own, which serves namespaces; none: all.
func (c *cluster) service(t *testing.T, serves ...string) *rest.Config {
	t.Helper()
	config := rbactest.New(t, c.config, "power", rbactest.Where{Own: c.namespace, Serves: serves}).REST()
	user, err := rest.TransportFor(c.config)
	if err != nil {
		t.Fatal(err)
	}
	config.Wrap(func(service http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if !strings.HasSuffix(r.URL.Path, "/restart") {
				return service.RoundTrip(r)
			}
			// The service restarts by stop and start: a restart is always a user's.
			r = r.Clone(r.Context())
			r.Header.Del("Authorization")
			return user.RoundTrip(r)
		})
	})
	return config
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (c *cluster) createNamespace(t *testing.T) {
	t.Helper()
	body, err := json.Marshal(&corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: c.namespace},
	})
	if err != nil {
		t.Fatal(err)
	}
	const namespaces = "/api/v1/namespaces"
	if err := c.client.RESTClient().Post().AbsPath(namespaces).Body(body).Do(t.Context()).Error(); err != nil {
		t.Fatalf("create namespace: %v", err)
	}
	t.Cleanup(func() {
		if err := c.client.RESTClient().Delete().AbsPath(namespaces + "/" + c.namespace).Do(context.Background()).Error(); err != nil {
			t.Logf("delete namespace: %v", err)
		}
	})
}

func (c *cluster) countNodes(t *testing.T) {
	t.Helper()
	body, err := c.client.RESTClient().Get().AbsPath("/api/v1/nodes").Param("labelSelector", kvv1.NodeSchedulable+"=true").Do(t.Context()).Raw()
	if err != nil {
		t.Fatalf("list nodes: %v", err)
	}
	var nodes corev1.NodeList
	if err := json.Unmarshal(body, &nodes); err != nil {
		t.Fatalf("list nodes: %v", err)
	}
	c.nodes = len(nodes.Items)
}

// add creates a machine and waits until the hypervisor knows it.
func (c *cluster) add(t *testing.T, vm *kvv1.VirtualMachine) hypervisor.Ref {
	t.Helper()
	if vm.Name == "" {
		vm.Name = fmt.Sprintf("vm-%d", c.machines.Add(1))
	}
	vms := c.client.VirtualMachines(c.namespace)
	if _, err := vms.Create(t.Context(), vm, metav1.CreateOptions{}); err != nil {
		t.Fatalf("create machine: %v", err)
	}
	ref := hypervisor.Ref{Namespace: c.namespace, Name: vm.Name}
	t.Cleanup(func() { c.remove(t, ref) })
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		_, err := c.Get(ref)
		if err == nil {
			return ref
		}
		if !errors.Is(err, hypervisor.ErrNotFound) || time.Now().After(end) {
			t.Fatalf("get %s: %v", ref, err)
		}
	}
}

// remove deletes a machine and ends what is left of it at once.
func (c *cluster) remove(t *testing.T, ref hypervisor.Ref) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if m, err := c.Get(ref); err == nil && m.Instance != nil {
		// A guest that ignores ACPI would keep its node for all its grace period.
		if err := c.Stop(ctx, ref, new(time.Duration)); err != nil {
			t.Logf("stop %s: %v", ref, err)
		}
	}
	err := c.client.VirtualMachines(ref.Namespace).Delete(ctx, ref.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Logf("delete %s: %v", ref, err)
	}
}

// machine builds what the suite asks for.
func machine(spec contract.Spec) *kvv1.VirtualMachine {
	strategy := kvv1.VirtualMachineRunStrategy(spec.RunStrategy)
	memory := resource.MustParse("64Mi")
	grace := int64(20)
	if spec.GracePeriod > 0 {
		grace = int64(spec.GracePeriod / time.Second)
	}
	vm := &kvv1.VirtualMachine{Spec: kvv1.VirtualMachineSpec{
		RunStrategy: &strategy,
		Template: &kvv1.VirtualMachineInstanceTemplateSpec{Spec: kvv1.VirtualMachineInstanceSpec{
			TerminationGracePeriodSeconds: &grace,
			Domain: kvv1.DomainSpec{
				Memory: &kvv1.Memory{Guest: &memory},
				// Less than a machine needs, since the node is small and the
				// guests do nothing.
				Resources: kvv1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}},
			},
		}},
	}}
	vm.Name = spec.Name
	if spec.Running != nil {
		vm.Spec.RunStrategy, vm.Spec.Running = nil, spec.Running
	}
	template := vm.Spec.Template
	template.ObjectMeta.Annotations = map[string]string{
		"guest.kubevirtbmc.dev/ignore-acpi": strconv.FormatBool(spec.IgnoreACPI),
		"guest.kubevirtbmc.dev/agent":       strconv.FormatBool(spec.Agent),
	}
	domain := &template.Spec.Domain
	// A container less to start for each machine.
	domain.Devices.LogSerialConsole = new(false)
	if spec.KernelBoot {
		domain.Firmware = &kvv1.Firmware{KernelBoot: &kvv1.KernelBoot{Container: &kvv1.KernelBootContainer{
			Image: "kubevirtbmc.test/kernel:1", KernelPath: "/vmlinuz",
		}}}
	}
	if spec.NoSerialConsole {
		no := false
		domain.Devices.AutoattachSerialConsole = &no
	}
	devices := spec.Devices
	if devices == nil {
		devices = contract.Devices()
	}
	for _, d := range devices {
		var order *uint
		if d.Order > 0 {
			n := uint(d.Order)
			order = &n
		}
		if d.Kind == hypervisor.DeviceInterface {
			address := mac()
			if spec.NoMAC {
				address = ""
			}
			domain.Devices.Interfaces = append(domain.Devices.Interfaces, kvv1.Interface{
				Name: d.Name, BootOrder: order, MacAddress: address,
				InterfaceBindingMethod: kvv1.InterfaceBindingMethod{Masquerade: &kvv1.InterfaceMasquerade{}},
			})
			template.Spec.Networks = append(template.Spec.Networks, kvv1.Network{
				Name: d.Name, NetworkSource: kvv1.NetworkSource{Pod: &kvv1.PodNetwork{}},
			})
			continue
		}
		disk := kvv1.Disk{Name: d.Name, BootOrder: order, DiskDevice: kvv1.DiskDevice{Disk: &kvv1.DiskTarget{Bus: kvv1.DiskBusVirtio}}}
		if d.Kind == hypervisor.DeviceCDROM {
			disk.DiskDevice = kvv1.DiskDevice{CDRom: &kvv1.CDRomTarget{Bus: kvv1.DiskBusSATA}}
		}
		domain.Devices.Disks = append(domain.Devices.Disks, disk)
		if d.Volume != "" {
			template.Spec.Volumes = append(template.Spec.Volumes, drive(d.Name))
		}
	}
	return vm
}

func mac() string {
	var b [4]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("02:bc:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

// bench is the cluster as the suite's bench.
func (c *cluster) bench() contract.Bench {
	b := contract.Bench{
		Name:          "KubeVirt",
		Hypervisor:    c.Hypervisor,
		NewMachine:    func(t *testing.T, spec contract.Spec) hypervisor.Ref { return c.add(t, machine(spec)) },
		DeleteMachine: c.delete,
		Template:      c.template,
		Guest:         contract.Guest{Echoes: true},
		Timeout:       3 * time.Minute,
		Quiet:         5 * time.Second,
		ShortGrace:    5 * time.Second,
	}
	// Level kubevirt has two nodes.
	if diskImage == "" || c.nodes > 1 {
		b.Migrate = c.migrate
	}
	if diskImage == "" {
		b.Guest.PowerOff = c.typing("poweroff")
		b.Guest.Crash = c.typing("crash")
		b.Guest.Reboot = c.typing("reboot")
		b.Guest.BootedFrom = c.bootedFrom
	}
	return b
}

// delete deletes a machine as a user does.
func (c *cluster) delete(ref hypervisor.Ref) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return c.client.VirtualMachines(ref.Namespace).Delete(ctx, ref.Name, metav1.DeleteOptions{})
}

// migrate has a machine moved to another node, and waits until it is there.
func (c *cluster) migrate(ref hypervisor.Ref) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	migrations := c.client.VirtualMachineInstanceMigrations(ref.Namespace)
	made, err := migrations.Create(ctx, &kvv1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: ref.Name + "-"},
		Spec:       kvv1.VirtualMachineInstanceMigrationSpec{VMIName: ref.Name},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	for {
		now, err := migrations.Get(ctx, made.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		switch now.Status.Phase {
		case kvv1.MigrationSucceeded:
			return nil
		case kvv1.MigrationFailed:
			return fmt.Errorf("migration %s has failed: %+v", now.Name, now.Status.MigrationState)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("migration %s is %s: %w", now.Name, now.Status.Phase, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// template returns the whole of a machine's spec.
func (c *cluster) template(ref hypervisor.Ref) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	vm, err := c.client.VirtualMachines(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	text, err := yaml.Marshal(vm.Spec)
	return string(text), err
}

// typing returns a function that has a guest do what is typed.
func (c *cluster) typing(command string) func(hypervisor.Ref) error {
	return func(ref hypervisor.Ref) error {
		// The connection ends before what was typed has arrived unless somebody
		// waits for the echo.
		_, err := c.typed(ref, command, regexp.MustCompile(command+"\r\n"))
		return err
	}
}

// bootedFrom asks a guest what it was booted from.
func (c *cluster) bootedFrom(ref hypervisor.Ref) (string, error) {
	answer, err := c.typed(ref, "boot", regexp.MustCompile(`boot\r\n(?s:.*)Guest booted from [a-z]+ ([^ \r]+)`))
	if err != nil {
		return "", err
	}
	return answer[1], nil
}

// typed types a line at a guest's serial console and waits for an answer.
func (c *cluster) typed(ref hypervisor.Ref, command string, answer *regexp.Regexp) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	console, err := c.OpenConsole(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer console.Close()
	stop := context.AfterFunc(ctx, func() { console.Close() })
	defer stop()
	if _, err := console.Write([]byte(command + "\r")); err != nil {
		return nil, err
	}
	seen, buffer := "", make([]byte, 1024)
	for {
		if found := answer.FindStringSubmatch(seen); found != nil {
			return found, nil
		}
		n, err := console.Read(buffer)
		if err != nil {
			return nil, fmt.Errorf("after %q: %w", seen, err)
		}
		seen += string(buffer[:n])
	}
}

// TestContract holds KubeVirt to what the services rely on.
func TestContract(t *testing.T) {
	t.Parallel()
	c := open(t)
	contract.Run(t, func(*testing.T) contract.Bench { return c.bench() })
}

// TestAcceptance holds the service on KubeVirt to what its clients rely on.
func TestAcceptance(t *testing.T) {
	t.Parallel()
	c := open(t)
	bench, machines := c.benchWithBMCs(t)
	acceptance.Suite{
		Audit: machines.Events,
		Setup: func(t *testing.T, test func(*testing.T, contract.Bench)) { test(t, bench) },
	}.Run(t)
}

// benchWithBMCs is the cluster with a VirtualMachineBMC for each machine, which
// keeps the services' state.
func (c *cluster) benchWithBMCs(t *testing.T) (contract.Bench, *kubevirt.WithBMCs) {
	t.Helper()
	bmcs := bmcresourcetest.Install(t, c.config).Namespace(c.namespace)
	machines, err := kubevirt.NewWithBMCs(kubevirt.Config{
		REST: c.service(t, c.namespace), Namespaces: []string{c.namespace}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- machines.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	for end := time.Now().Add(time.Minute); !machines.Ready(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not ready")
		}
	}
	// One cache, so that the bench knows no less than the services.
	c.Hypervisor = machines.Hypervisor
	bench := c.bench()
	bench.Hypervisor = machines
	bench.NewMachine = func(t *testing.T, spec contract.Spec) hypervisor.Ref {
		t.Helper()
		ref := c.add(t, machine(spec))
		if machines.BMCs.Of(ref) == nil { // A machine that is made anew finds its BMC.
			if _, err := bmcs.Create(t.Context(), bmcresourcetest.New(ref.Name, ref.Name), metav1.CreateOptions{}); err != nil {
				t.Fatalf("create BMC: %v", err)
			}
		}
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			found, err := machines.BMCs.Resolve(ref.Namespace, ref.Name)
			if _, missing := machines.Get(ref); err == nil && found == ref && missing == nil {
				return ref
			}
			if time.Now().After(end) {
				t.Fatalf("the BMC of %s is not known: %v", ref, err)
			}
		}
	}
	return bench, machines
}

// TestRunning is about machines with the deprecated spec.running.
func TestRunning(t *testing.T) {
	t.Parallel()
	c := open(t)
	vm := machine(contract.Spec{})
	no := false
	vm.Spec.RunStrategy, vm.Spec.Running = nil, &no
	ref := c.add(t, vm)
	ctx := t.Context()
	until := func(what string, is func(*hypervisor.Machine) bool) {
		t.Helper()
		for end := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
			m, err := c.Get(ref)
			if err != nil {
				t.Fatal(err)
			}
			if is(m) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("not %s: %+v, instance %+v", what, m, m.Instance)
			}
		}
	}
	spec := func() kvv1.VirtualMachineSpec {
		t.Helper()
		vm, err := c.client.VirtualMachines(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return vm.Spec
	}
	running := func(m *hypervisor.Machine) bool {
		return m.Instance != nil && m.Instance.Phase == hypervisor.PhaseRunning && m.RunStrategy == hypervisor.RunStrategyAlways
	}
	gone := func(m *hypervisor.Machine) bool {
		return m.Instance == nil && m.RunStrategy == hypervisor.RunStrategyHalted
	}
	until("halted", gone)
	if err := c.Start(ctx, ref); err != nil {
		t.Fatalf("start: %v", err)
	}
	until("running", running)
	if err := c.Stop(ctx, ref, new(time.Duration)); err != nil {
		t.Fatalf("stop: %v", err)
	}
	until("halted", gone)
	if err := c.SetRunStrategy(ctx, ref, hypervisor.RunStrategyHalted, hypervisor.RunStrategyAlways); err != nil {
		t.Fatalf("set Always: %v", err)
	}
	if s := spec(); s.Running == nil || !*s.Running || s.RunStrategy != nil {
		t.Errorf("spec.running is %v, spec.runStrategy %v", s.Running, s.RunStrategy)
	}
	until("running", running)
	if err := c.SetRunStrategy(ctx, ref, hypervisor.RunStrategyAlways, hypervisor.RunStrategyManual); err != nil {
		t.Fatalf("set Manual: %v", err)
	}
	if s := spec(); s.Running != nil || s.RunStrategy == nil || *s.RunStrategy != kvv1.RunStrategyManual {
		t.Errorf("spec.running is %v, spec.runStrategy %v", s.Running, s.RunStrategy)
	}
}

// TestFirmwareMode changes the mode of a template and back.
func TestFirmwareMode(t *testing.T) {
	t.Parallel()
	c := open(t)
	vm := machine(contract.Spec{RunStrategy: hypervisor.RunStrategyHalted})
	persistent, smm := true, true
	vm.Spec.Template.Spec.Domain.Features = &kvv1.Features{SMM: &kvv1.FeatureState{Enabled: &smm}}
	vm.Spec.Template.Spec.Domain.Firmware = &kvv1.Firmware{Bootloader: &kvv1.Bootloader{EFI: &kvv1.EFI{Persistent: &persistent}}}
	ref := c.add(t, vm)
	for _, mode := range []hypervisor.FirmwareMode{hypervisor.FirmwareBIOS, hypervisor.FirmwareUEFI} {
		for {
			m, err := c.Get(ref)
			if err != nil {
				t.Fatal(err)
			}
			err = c.SetBoot(t.Context(), ref, m.ResourceVersion, map[string]int{"nic": 1, "disk": 2}, mode)
			if err == nil {
				break
			}
			if !errors.Is(err, hypervisor.ErrStale) {
				t.Fatalf("set mode %s: %v", mode, err)
			}
		}
		m, err := c.Get(ref)
		if err != nil || m.Firmware.Mode != mode {
			t.Errorf("mode is %+v after %s was set, %v", m.Firmware, mode, err)
		}
	}
	after, err := c.client.VirtualMachines(ref.Namespace).Get(t.Context(), ref.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b := after.Spec.Template.Spec.Domain.Firmware.Bootloader
	if b == nil || b.EFI == nil || b.EFI.Persistent == nil || !*b.EFI.Persistent || b.EFI.SecureBoot != nil {
		t.Errorf("the template's own boot loader did not come back: %+v", b)
	}
}

// TestState_of_many_writers_in_two_processes: the caches of two hypervisors see
// each other's writes with a delay, and no write is lost.
func TestState_of_many_writers_in_two_processes(t *testing.T) {
	t.Parallel()
	a := open(t)
	b := open(t)
	ref := a.add(t, machine(contract.Spec{RunStrategy: hypervisor.RunStrategyHalted}))
	const each = 10
	done := make(chan error, 2)
	for _, c := range []*cluster{a, b} {
		go func() {
			for n := 0; n < each; {
				m, err := c.Get(ref)
				if err == nil {
					err = c.SetState(t.Context(), ref, m.State, append(append([]byte{}, m.State...), 'x'))
				}
				switch {
				case err == nil:
					n++
				case !errors.Is(err, hypervisor.ErrStale) && !errors.Is(err, hypervisor.ErrNotFound):
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	vm, err := a.client.VirtualMachines(ref.Namespace).Get(t.Context(), ref.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := len(vm.Annotations["bmc.kubevirt.io/state"]); got != 2*each {
		t.Errorf("%d of %d writes are left", got, 2*each)
	}
}
