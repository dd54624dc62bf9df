//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract"
	"kubevirtbmc.dev/pkg/kubeaccess/rbactest"
	"kubevirtbmc.dev/pkg/testport"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	"kubevirtbmc.dev/services/power/internal/record"
)

// program is a process of the power program.
type program struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error

	mu  sync.Mutex
	log bytes.Buffer
}

// Write implements io.Writer.
func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

// machinesWith returns the machines that a log message is about, each as often as
// it is there.
func (p *program) machinesWith(message string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var machines []string
	for line := range bytes.Lines(p.log.Bytes()) {
		var entry struct{ Msg, VM string }
		if json.Unmarshal(line, &entry) == nil && entry.Msg == message {
			machines = append(machines, entry.VM)
		}
	}
	return machines
}

// kill ends a process as a crash does.
func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop ends it as Kubernetes does.
func (p *program) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return p.err
	case <-time.After(30 * time.Second):
		p.kill()
		return fmt.Errorf("still there 30 s after SIGTERM")
	}
}

// site is two processes of the power program on the machines of one namespace.
type site struct {
	*testing.T
	*cluster
	path      string
	caFile    string
	tokenFile string
	addresses []string
	args      [][]string
	programs  []*program
}

func newSite(t *testing.T, c *cluster) *site {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	authority, err := certs.NewAuthority("test CA", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Issue([]string{"127.0.0.1"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	s := &site{
		T: t, cluster: c, path: filepath.Join(dir, "power"),
		caFile: write("ca.pem", authority.PEM()), tokenFile: write("token", []byte("secret\n")),
		programs: make([]*program, 2),
	}
	cert := write("tls.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}))
	key := write("tls.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", s.path, "kubevirtbmc.dev/services/power")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	account := rbactest.New(t, c.config, "power", rbactest.Where{Own: c.namespace, Serves: []string{c.namespace}})
	kubeconfig := account.Kubeconfig()
	for n := range s.programs {
		s.addresses = append(s.addresses, fmt.Sprintf("127.0.0.1:%d", testport.Free(t)))
		s.args = append(s.args, []string{
			"--listen", s.addresses[n], "--health-listen", "", "--tls-cert-file", cert, "--tls-key-file", key,
			"--token-file", s.tokenFile, "--replica", replicaName(n), "--hypervisor", "kubevirt", "--bmcs", "machines",
			"--kubeconfig", kubeconfig, "--namespaces", c.namespace,
		})
		s.start(n)
	}
	return s
}

func replicaName(n int) string { return fmt.Sprintf("power-%d", n) }

// start starts a process, and does not wait for it.
func (s *site) start(n int) {
	s.Helper()
	p := &program{cmd: exec.Command(s.path, s.args[n]...), done: make(chan struct{})}
	p.cmd.Stderr = p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		s.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	s.programs[n] = p
	s.Cleanup(func() {
		select {
		case <-p.done:
		default:
			if err := p.stop(); err != nil {
				s.Errorf("%s did not stop well: %v", replicaName(n), err)
			}
		}
		if s.Failed() {
			s.Logf("%s:\n%s", replicaName(n), p.log.String())
		}
	})
}

// caller returns a client that knows the processes in an order of its own.
func (s *site) caller(reversed bool) powerv1.PowerServiceClient {
	s.Helper()
	addresses := slices.Clone(s.addresses)
	if reversed {
		slices.Reverse(addresses)
	}
	var state resolver.State
	for _, address := range addresses {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address})
	}
	names := manual.NewBuilderWithScheme("replicas")
	names.InitialState(state)
	roots, err := certs.LoadRoots(s.caFile)
	if err != nil {
		s.Fatal(err)
	}
	conn, err := grpcclient.Dial("replicas:///power", grpcclient.Config{
		Roots: roots.Pool, Token: grpcclient.TokenFile(s.tokenFile),
		Options: []grpc.DialOption{grpc.WithResolvers(names), grpc.WithAuthority("127.0.0.1")},
	})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close() })
	return powerv1.NewPowerServiceClient(conn)
}

func (s *site) ask(caller powerv1.PowerServiceClient, ref hypervisor.Ref, action powerv1.PowerAction, wait time.Duration) error {
	_, err := caller.TransitionPower(s.Context(), &powerv1.TransitionPowerRequest{
		Bmc: &referencev1.BMCReference{Namespace: ref.Namespace, Name: ref.Name}, Action: action, Wait: durationpb.New(wait),
	})
	return err
}

func (s *site) status(caller powerv1.PowerServiceClient, ref hypervisor.Ref) (*powerv1.PowerStatus, error) {
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
	defer cancel()
	response, err := caller.GetPower(ctx, &powerv1.GetPowerRequest{Bmc: &referencev1.BMCReference{Namespace: ref.Namespace, Name: ref.Name}})
	return response.GetStatus(), err
}

// settle waits until each caller is connected to both processes, and both know a
// machine.
func (s *site) settle(ref hypervisor.Ref, callers ...powerv1.PowerServiceClient) {
	s.Helper()
	for _, caller := range callers {
		end := time.Now().Add(time.Minute)
		for met := map[string]bool{}; len(met) < len(s.programs); time.Sleep(20 * time.Millisecond) {
			// Whoever is asked about a BMC that is not there says so.
			var process peer.Peer
			nobody := &referencev1.BMCReference{Namespace: s.namespace, Name: strings.ToLower(rand.Text())}
			_, err := caller.GetPower(s.Context(), &powerv1.GetPowerRequest{Bmc: nobody}, grpc.Peer(&process))
			if status.Code(err) == codes.NotFound {
				met[process.Addr.String()] = true
			}
			if time.Now().After(end) {
				s.Fatalf("a caller meets %v alone: %v", met, err)
			}
		}
		for {
			_, err := s.status(caller, ref)
			if err == nil {
				break
			}
			if time.Now().After(end) {
				s.Fatalf("read %s: %v", ref, err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// births are the instances of each machine that the API server has seen made since
// the watch began.
type births struct {
	mu   sync.Mutex
	uids map[string][]string
	// lost is why there may be more; empty while the watch goes on.
	lost string
}

func (s *site) births() *births {
	s.Helper()
	instances := s.client.VirtualMachineInstances(s.namespace)
	now, err := instances.List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	w, err := instances.Watch(s.Context(), metav1.ListOptions{ResourceVersion: now.ResourceVersion})
	if err != nil {
		s.Fatal(err)
	}
	b := &births{uids: map[string][]string{}}
	ended := make(chan struct{})
	s.Cleanup(func() {
		w.Stop()
		<-ended
	})
	go func() {
		defer close(ended)
		for event := range w.ResultChan() {
			b.mu.Lock()
			switch vmi, ok := event.Object.(*kvv1.VirtualMachineInstance); {
			case !ok:
				b.lost = fmt.Sprint(event.Object)
			case event.Type == watch.Added:
				b.uids[vmi.Name] = append(b.uids[vmi.Name], string(vmi.UID))
			}
			b.mu.Unlock()
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.lost == "" {
			b.lost = "the watch has ended"
		}
	}()
	return b
}

func (b *births) ended() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost
}

func (b *births) of(ref hypervisor.Ref) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.uids[ref.Name])
}

// operation returns what the machine's annotation says is under way.
func (s *site) operation(ref hypervisor.Ref) (*hypervisor.Machine, *record.Operation) {
	s.Helper()
	m, err := s.Get(ref)
	if err != nil {
		s.Fatal(err)
	}
	rec, err := record.Parse(m.State)
	if err != nil {
		s.Fatal(err)
	}
	return m, rec.Power.Operation
}

// TestProcesses: the process that carries out a power cycle is killed as soon as
// its stop has reached KubeVirt. Another one, or the same anew, finishes it; each
// machine gets one new instance and keeps its run strategy, and whoever reads
// meanwhile gets an answer.
func TestProcesses(t *testing.T) {
	t.Parallel()
	c := open(t)
	s := newSite(t, c)
	one, two := s.caller(false), s.caller(true)
	strategies := []hypervisor.RunStrategy{hypervisor.RunStrategyAlways, hypervisor.RunStrategyRerunOnFailure, hypervisor.RunStrategyManual}
	var refs []hypervisor.Ref
	for _, strategy := range strategies {
		ref := c.add(t, machine(contract.Spec{RunStrategy: strategy}))
		refs = append(refs, ref)
		s.settle(ref, one, two)
		if err := s.ask(one, ref, powerv1.PowerAction_POWER_ACTION_ON, 2*time.Minute); err != nil {
			t.Fatalf("switch %s on: %v", ref, err)
		}
	}
	born := s.births()
	for _, comesBack := range []bool{false, true} {
		s.killInCycle(one, two, refs, strategies, born, comesBack)
	}
}

func (s *site) killInCycle(one, two powerv1.PowerServiceClient, refs []hypervisor.Ref, strategies []hypervisor.RunStrategy, born *births, comesBack bool) {
	s.Helper()
	before, counts := map[hypervisor.Ref]string{}, map[hypervisor.Ref]int{}
	for n, ref := range refs {
		m, _ := s.operation(ref)
		if m.Instance == nil || m.RunStrategy != strategies[n] {
			s.Fatalf("%s is not on under %s: %+v", ref, strategies[n], m)
		}
		before[ref], counts[ref] = m.Instance.UID, len(born.of(ref))
	}
	for _, ref := range refs {
		if err := s.ask(one, ref, powerv1.PowerAction_POWER_ACTION_POWER_CYCLE, 0); err != nil {
			s.Fatalf("cycle %s: %v", ref, err)
		}
	}

	// The first machine is under Always: its stop shows in the run strategy.
	var killed *record.Operation
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		m, op := s.operation(refs[0])
		if m.RunStrategy == hypervisor.RunStrategyHalted {
			killed = op
			break
		}
		if time.Now().After(end) {
			s.Fatalf("%s was not stopped: %+v, %+v", refs[0], m, op)
		}
	}
	if !killed.Active() || killed.Holder != replicaName(0) && killed.Holder != replicaName(1) {
		s.Fatalf("nobody holds %+v", killed)
	}
	victim := 0
	if killed.Holder == replicaName(1) {
		victim = 1
	}
	s.programs[victim].kill()
	began := time.Now()
	goesOn := s.programs[1-victim]
	if comesBack {
		s.start(victim)
		goesOn = s.programs[victim]
	}

	// Both callers read all the time until all is over.
	var failures int
	var failure error
	for _, ref := range refs {
		for end := time.Now().Add(3 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
			_, err := s.status(one, ref)
			if err == nil {
				_, err = s.status(two, ref)
			}
			if err != nil {
				failures, failure = failures+1, err
			}
			_, op := s.operation(ref)
			if !op.Active() {
				break
			}
			if time.Now().After(end) {
				s.Fatalf("the cycle of %s does not end: %+v", ref, op)
			}
		}
	}
	if failures > 0 {
		s.Errorf("comes back %t: %d reads failed, the last with %v (%s)", comesBack, failures, failure, status.Code(failure))
	}
	s.Logf("comes back %t: all cycles over %s after the kill", comesBack, time.Since(began).Round(100*time.Millisecond))
	if !slices.Contains(goesOn.machinesWith("operation taken over"), refs[0].Name) {
		s.Errorf("comes back %t: the cycle of %s was not taken over by the right process", comesBack, refs[0])
	}

	time.Sleep(5 * time.Second) // A second start would show by then.
	if lost := born.ended(); lost != "" {
		s.Fatalf("instances are no longer counted: %s", lost)
	}
	for n, ref := range refs {
		m, op := s.operation(ref)
		if op.Phase != record.Succeeded || ref == refs[0] && op.ID != killed.ID {
			s.Errorf("%s: the cycle ended as %+v", ref, op)
		}
		if m.Instance == nil || m.Instance.UID == before[ref] || m.Instance.Phase != hypervisor.PhaseRunning {
			s.Errorf("%s: left with %+v", ref, m.Instance)
		}
		if m.RunStrategy != strategies[n] {
			s.Errorf("%s: run strategy %s, want %s", ref, m.RunStrategy, strategies[n])
		}
		if made := born.of(ref)[counts[ref]:]; len(made) != 1 {
			s.Errorf("%s: %d instances were made for one cycle: %v", ref, len(made), made)
		}
	}
	if !comesBack {
		s.start(victim)
	}
	for _, ref := range refs {
		s.settle(ref, one, two)
	}
}
