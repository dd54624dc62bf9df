//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package processes_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"kubevirtbmc.dev/pkg/bmcresource/bmcresourcetest"
	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/kubeaccess/rbactest"
	"kubevirtbmc.dev/pkg/testport"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/test/launch"
)

// Lives of the certificates: as short as a change needs that reaches a process
// within syncTime and the 5 s after which it looks at its files again, and more
// than 4 s to spare. Leaves are renewed when 10 s of their life are left.
const (
	rotatingLeaf = 24 * time.Second
	rotatingLead = 10 * time.Second
	// A third of it is for a successor's lead and the last leaf.
	rotatingCA = 3 * (rotatingLead + rotatingLeaf)
	// rotationTime bounds what takes 7 times lead and leaf, halved, and a lead more.
	rotationTime = 5 * time.Minute
)

const (
	// rotations is how often the CA is to change.
	rotations = 2
	// leastLeaves is how many certificates each server is to have had, and
	// leastLogins how often each client is to have logged in.
	leastLeaves, leastLogins = 6, 300
	// Each client's time between attempts, and how many there are of each kind.
	loginInterval, loginClients = 50 * time.Millisecond, 2
	// loginTime bounds an attempt.
	loginTime = 20 * time.Second
	// cutInterval is how often the frontends have to connect to the services anew.
	cutInterval = 3 * time.Second
)

// Names of the objects with certificates, and of the clients that see none.
const (
	controllerTLS, powerTLS, bundleName = "virtbmc-controller-tls", "virtbmc-power-tls", "virtbmc-ca-bundle"

	ipmiClients = "IPMI"
)

// tally counts what one kind of client has seen.
type tally struct {
	mu                 sync.Mutex
	attempts, failures int
	// leaves and authorities are serial numbers.
	leaves, authorities map[string]bool
	// first are the first few failures.
	first []string
}

func (c *tally) add(chain []*x509.Certificate, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attempts++
	if err != nil {
		c.failures++
		if len(c.first) < 5 {
			c.first = append(c.first, time.Now().Format("15:04:05.000 ")+err.Error())
		}
		return
	}
	if len(chain) > 0 {
		c.leaves[chain[0].SerialNumber.String()] = true
		c.authorities[chain[len(chain)-1].SerialNumber.String()] = true
	}
}

// is tells whether something is so.
func (c *tally) is(so func(*tally) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return so(c)
}

// rotation is a BMC whose services' certificates rotate.
type rotation struct {
	*testing.T
	*accounts
	began  time.Time
	bundle *volume
	// own is the services' namespace, lab the BMC's.
	own, lab, serverName string
	services             *system
	// relays are between the frontends and the services.
	relays        []*relay
	ipmi, redfish int // ports
	power, state  string
	viewerToken   string
	// pause is held by all attempts, and by who needs that there is none.
	pause sync.RWMutex
}

// pool is what a client trusts that reads the bundle whenever it connects.
func (r *rotation) pool() (*x509.CertPool, error) {
	text, err := os.ReadFile(r.bundle.path("ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("the bundle has no certificate: %q", text)
	}
	return pool, nil
}

// loginIPMI logs in and asks for the power state, with one datagram of each.
func (r *rotation) loginIPMI(ctx context.Context) ([]*x509.Certificate, error) {
	out, err := exec.CommandContext(ctx, "ipmitool", "-I", "lanplus", "-H", "127.0.0.1", "-p", fmt.Sprint(r.ipmi),
		"-U", username, "-P", password, "-N", "10", "-R", "1", "power", "status").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Chassis Power is off") {
		return nil, fmt.Errorf("ipmitool: %w: %s", err, out)
	}
	return nil, nil
}

// loginRedfish logs in over a connection of its own, asks for the power state and
// logs out.
func (r *rotation) loginRedfish(ctx context.Context) ([]*x509.Certificate, error) {
	roots, err := r.pool()
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", r.redfish))
		},
	}
	defer transport.CloseIdleConnections()
	var chain []*x509.Certificate
	call := func(method, path, token, body string, want int) (http.Header, []byte, error) {
		request, err := http.NewRequestWithContext(ctx, method, "https://"+r.serverName+path, bytes.NewReader([]byte(body)))
		if err != nil {
			return nil, nil, err
		}
		request.Header.Set("Content-Type", "application/json")
		if token != "" {
			request.Header.Set("X-Auth-Token", token)
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			return nil, nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode != want {
			err = fmt.Errorf("%s, want %d: %s", response.Status, want, text)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
		chain = response.TLS.VerifiedChains[0]
		return response.Header, text, nil
	}
	header, _, err := call(http.MethodPost, "/redfish/v1/SessionService/Sessions", "", `{"UserName":"`+username+`","Password":"`+password+`"}`, http.StatusCreated)
	if err != nil {
		return nil, err
	}
	token := header.Get("X-Auth-Token")
	_, text, err := call(http.MethodGet, "/redfish/v1/Systems/1", token, "", http.StatusOK)
	if err != nil {
		return nil, err
	}
	var system struct{ PowerState string }
	if err := json.Unmarshal(text, &system); err != nil || system.PowerState != "Off" {
		return nil, fmt.Errorf("power state %q: %w", text, err)
	}
	_, _, err = call(http.MethodDelete, header.Get("Location"), token, "", http.StatusNoContent)
	return chain, err
}

// call makes a gRPC call over a connection of its own, which is not repeated.
func (r *rotation) call(ctx context.Context, address string, roots *certs.Roots, one func(context.Context, *grpc.ClientConn, ...grpc.CallOption) error) ([]*x509.Certificate, error) {
	conn, err := grpc.NewClient(address, grpc.WithDisableRetry(),
		grpc.WithTransportCredentials(grpccredentials.NewTLS(&tls.Config{RootCAs: roots.Pool(), MinVersion: tls.VersionTLS13})))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var server peer.Peer
	if err := one(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+r.viewerToken), conn, grpc.Peer(&server)); err != nil {
		return nil, err
	}
	return server.AuthInfo.(grpccredentials.TLSInfo).State.VerifiedChains[0], nil
}

func (r *rotation) bmc() *referencev1.BMCReference {
	return &referencev1.BMCReference{Namespace: r.lab, Name: "vm-0"}
}

// load has clients of each kind log in until the returned function is called.
func (r *rotation) load() (map[string]*tally, func()) {
	r.Helper()
	// As a service does, which looks at the file every 5 s.
	roots, err := certs.LoadRoots(r.bundle.path("ca.crt"))
	if err != nil {
		r.Fatal(err)
	}
	kinds := map[string]func(context.Context) ([]*x509.Certificate, error){
		ipmiClients: r.loginIPMI,
		"Redfish":   r.loginRedfish,
		"gRPC of the power service": func(ctx context.Context) ([]*x509.Certificate, error) {
			return r.call(ctx, r.power, roots, func(ctx context.Context, conn *grpc.ClientConn, options ...grpc.CallOption) error {
				_, err := powerv1.NewPowerServiceClient(conn).GetPower(ctx, &powerv1.GetPowerRequest{Bmc: r.bmc()}, options...)
				return err
			})
		},
		"gRPC of the controller": func(ctx context.Context) ([]*x509.Certificate, error) {
			return r.call(ctx, r.state, roots, func(ctx context.Context, conn *grpc.ClientConn, options ...grpc.CallOption) error {
				_, err := statev1.NewStateServiceClient(conn).ListEvents(ctx, &statev1.ListEventsRequest{Bmc: r.bmc()}, options...)
				return err
			})
		},
	}
	tallies := map[string]*tally{}
	var running sync.WaitGroup
	over, end := context.WithCancel(context.Background())
	for kind, attempt := range kinds {
		count := &tally{leaves: map[string]bool{}, authorities: map[string]bool{}}
		tallies[kind] = count
		for range loginClients {
			running.Go(func() {
				ticker := time.NewTicker(loginInterval)
				defer ticker.Stop()
				for {
					select {
					case <-over.Done():
						return
					case <-ticker.C:
					}
					r.pause.RLock()
					ctx, cancel := context.WithTimeout(context.Background(), loginTime)
					count.add(attempt(ctx))
					cancel()
					r.pause.RUnlock()
				}
			})
		}
	}
	stop := sync.OnceFunc(func() {
		end()
		running.Wait()
	})
	r.Cleanup(stop)
	return tallies, stop
}

// newRotation starts the services, with flags of the controller that issue says,
// which may make objects in their namespace first.
func newRotation(t *testing.T, issue func(*rotation) []string) *rotation {
	t.Helper()
	needClients(t, "ipmitool")
	a := newAccounts(t)
	bmcresourcetest.Install(t, a.rest)
	programs := map[string]string{}
	for _, name := range []string{"controller", "power", "frontend-ipmi", "frontend-redfish"} {
		programs[name] = launch.Build(t, "services/"+name)
	}
	r := &rotation{T: t, accounts: a, own: "system" + a.suffix, lab: "lab" + a.suffix}
	r.serverName = "vm-0-virtbmc." + r.lab + ".svc"
	for _, name := range []string{r.own, r.lab} {
		if _, err := a.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = a.client.CoreV1().Namespaces().Delete(context.Background(), name, metav1.DeleteOptions{})
		})
	}
	o := newObjects(t, r.lab)
	o.create(machineResource, `{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm-0}, spec: {runStrategy: Halted, template: {spec: {domain: {devices: {}, memory: {guest: 64Mi}}}}}}`)
	o.create(secretResource, `{apiVersion: v1, kind: Secret, metadata: {name: vm-0}, stringData: {username: `+username+`, password: `+password+`}}`)
	o.create(bmcResource, `{apiVersion: bmc.kubevirt.io/v1beta1, kind: VirtualMachineBMC, metadata: {name: vm-0}, spec: {virtualMachineRef: {name: vm-0}, authSecretRef: {name: vm-0}, ipmi: {enabled: true}}}`)

	first := testport.FreeRow(t, 6)
	address := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", first+i) }
	r.state, r.power = address(0), address(1)
	ports := testport.FreeRow(t, 4)
	s := &system{t: t, services: map[string]*service{}}
	r.services = s
	t.Cleanup(func() {
		if t.Failed() {
			for name, sv := range s.services {
				t.Logf("%s:\n%s", name, sv.process.Stderr())
			}
		}
	})
	start := func(name string, args ...string) {
		t.Helper()
		health := address(2 + len(s.services))
		s.services[name] = &service{program: programs[name], args: append(args, "--health-listen", health, "--log-level", "warn"), health: health}
		s.start(name)
	}
	kubeconfig := func(name string) string {
		return rbactest.New(t, a.rest, name, rbactest.Where{
			Own: r.own, Serves: []string{r.lab},
			Names: map[string]string{"virtbmc-controller.kubevirtbmc-system": "virtbmc-controller." + r.own},
		}).Kubeconfig()
	}
	start("controller", append(issue(r), "--kubeconfig", kubeconfig("controller"), "--namespace", r.own, "--namespaces", r.lab, "--listen", r.state,
		"--ports", fmt.Sprintf("%d-%d", ports, ports+3),
		"--service-certificate", controllerTLS+"=127.0.0.1", "--certificate-secret", controllerTLS,
		"--service-certificate", powerTLS+"=127.0.0.1")...)
	r.bundle = a.mountConfigMap(r.own, bundleName)
	r.began = time.Now()
	r.viewerToken = a.token(a.add("viewer", a.role("viewer")), audience)
	mounted := a.mountSecret(r.own, powerTLS)
	start("power", "--kubeconfig", kubeconfig("power"), "--namespaces", r.lab, "--hypervisor", "kubevirt", "--listen", r.power,
		"--tls-cert-file", mounted.path("tls.crt"), "--tls-key-file", mounted.path("tls.key"))
	registry, power := newRelay(t, r.state), newRelay(t, r.power)
	r.relays = []*relay{registry, power}
	frontend, c := a.role("frontend"), newCredentials(t)
	for name, more := range map[string][]string{"frontend-ipmi": nil, "frontend-redfish": {"--media", power.address}} {
		token := c.write(t, name, []byte(a.token(a.add(name, frontend), audience)))
		start(name, append(more, "--listen", "127.0.0.1", "--registry", registry.address, "--power", power.address,
			"--ca-file", r.bundle.path("ca.crt"), "--token-file", token)...)
	}
	for name := range s.services {
		s.waitReady(name)
	}
	o.eventually("BMC is served", func() error {
		is, err := o.Resource(bmcResource).Namespace(r.lab).Get(t.Context(), "vm-0", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for into, path := range map[*int][]string{&r.ipmi: {"ipmi", "port"}, &r.redfish: {"redfish", "httpsPort"}} {
			port, _, _ := unstructured.NestedInt64(is.Object, append([]string{"status", "frontend"}, path...)...)
			*into = int(port)
		}
		if _, err := r.loginIPMI(t.Context()); err != nil {
			return err
		}
		_, err = r.loginRedfish(t.Context())
		return err
	})
	return r
}

// until waits, at most for a time, until something has happened to the servers of
// all clients that see certificates. Meanwhile the frontends have to connect anew
// now and then.
func (r *rotation) until(limit time.Duration, tallies map[string]*tally, what string, happened func(*tally) bool) {
	r.Helper()
	cut := time.NewTicker(cutInterval)
	defer cut.Stop()
	for end := time.Now().Add(limit); ; {
		<-cut.C
		r.pause.Lock()
		for _, one := range r.relays {
			one.cut()
		}
		r.pause.Unlock()
		all := true
		for kind, count := range tallies {
			all = all && (kind == ipmiClients || count.is(happened))
		}
		if all {
			return
		}
		if time.Now().After(end) {
			r.Errorf("not within %v: %s", limit, what)
			return
		}
	}
}

// check fails where an attempt has failed, or there were too few.
func (r *rotation) check(tallies map[string]*tally, logins, leaves int) {
	r.Helper()
	for kind, count := range tallies {
		r.Logf("%s: %d logins, %d failed, %d certificates, %d CAs", kind, count.attempts, count.failures, len(count.leaves), len(count.authorities))
		if count.failures > 0 {
			r.Errorf("%s: %d of %d logins failed:\n%s", kind, count.failures, count.attempts, strings.Join(count.first, "\n"))
		}
		if count.attempts < logins {
			r.Errorf("%s: %d logins, want %d at the least", kind, count.attempts, logins)
		}
		if kind != ipmiClients && len(count.leaves) < leaves {
			r.Errorf("%s: the server has had %d certificates, want %d at the least", kind, len(count.leaves), leaves)
		}
	}
	r.Logf("%v since the first CA", time.Since(r.began).Round(time.Second))
}

// The CA and all certificates rotate while clients log in all the time, and while
// the frontends have to connect to the services anew all the time: no attempt
// fails.
//
// It runs alone, for its times are those of the certificates.
func TestRotation_underLoadOfKubernetes(t *testing.T) {
	r := newRotation(t, func(*rotation) []string {
		return []string{"--ca-lifetime", rotatingCA.String(), "--ca-lead-time", rotatingLead.String(), "--certificate-lifetime", rotatingLeaf.String()}
	})
	first := r.published()
	tallies, stop := r.load()
	r.until(rotationTime, tallies, fmt.Sprintf("%d CAs after the first", rotations), func(count *tally) bool { return len(count.authorities) > rotations })
	stop()
	r.check(tallies, leastLogins, leastLeaves)
	for i, one := range r.relays {
		if least := int(time.Since(r.began) / cutInterval / 2); one.connections() < least {
			t.Errorf("relay %d: the frontends have connected %d times, want %d at the least", i, one.connections(), least)
		}
	}
	for serial := range r.published() {
		if first[serial] {
			t.Error("the first CA is trusted still")
		}
	}
}

// published are the serial numbers of the CA certificates that clients trust.
func (r *rotation) published() map[string]bool {
	r.Helper()
	text, err := os.ReadFile(r.bundle.path("ca.crt"))
	if err != nil {
		r.Fatal(err)
	}
	serials := map[string]bool{}
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return serials
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			r.Fatal(err)
		}
		serials[certificate.SerialNumber.String()] = true
	}
}
