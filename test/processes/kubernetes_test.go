//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package processes_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"kubevirtbmc.dev/pkg/kubeaccess/rbactest"
	"kubevirtbmc.dev/pkg/testport"
	"kubevirtbmc.dev/test/launch"
)

// audience of tokens for the services.
const audience = "bmc.kubevirt.io"

// accounts makes ServiceAccounts with roles on the API server of KUBECONFIG, for
// as long as the test.
type accounts struct {
	t      *testing.T
	suffix string
	client *kubernetes.Clientset
	rest   *rest.Config
}

func newAccounts(t *testing.T) *accounts {
	t.Helper()
	path := os.Getenv("KUBECONFIG")
	if path == "" {
		t.Fatal("KUBECONFIG names no cluster (hack/with-cluster.sh api)")
	}
	a := &accounts{t: t, suffix: "-" + strings.ToLower(rand.Text()[:8])}
	var err error
	if a.rest, err = clientcmd.BuildConfigFromFlags("", path); err != nil {
		t.Fatal(err)
	}
	a.rest.QPS, a.rest.Burst = 100, 200
	if a.client, err = kubernetes.NewForConfig(a.rest); err != nil {
		t.Fatal(err)
	}
	return a
}

// role makes a ClusterRole of deploy/rbac under a name of its own.
func (a *accounts) role(name string) string {
	a.t.Helper()
	text, err := os.ReadFile(filepath.Join("../../deploy/rbac", name+".yaml"))
	if err != nil {
		a.t.Fatal(err)
	}
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict(text, role); err != nil {
		a.t.Fatal(err)
	}
	role.Name, role.Labels = role.Name+a.suffix, nil
	roles := a.client.RbacV1().ClusterRoles()
	if _, err := roles.Create(a.t.Context(), role, metav1.CreateOptions{}); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = roles.Delete(context.Background(), role.Name, metav1.DeleteOptions{}) })
	return role.Name
}

// add makes a ServiceAccount with a ClusterRole, and returns its name.
func (a *accounts) add(name, role string) string {
	a.t.Helper()
	name += a.suffix
	serviceAccounts := a.client.CoreV1().ServiceAccounts("default")
	if _, err := serviceAccounts.Create(a.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = serviceAccounts.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	bindings := a.client.RbacV1().ClusterRoleBindings()
	if _, err := bindings.Create(a.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}, metav1.CreateOptions{}); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = bindings.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	return name
}

// token returns a token of a ServiceAccount; without audiences, for the API
// server.
func (a *accounts) token(name string, audiences ...string) string {
	a.t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	answer, err := a.client.CoreV1().ServiceAccounts("default").CreateToken(a.t.Context(), name, request, metav1.CreateOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	return answer.Status.Token
}

// Services that know their callers from Kubernetes: a frontend with a
// ServiceAccount's token acts for its user, and people get what their roles say.
func TestServices_callersOfKubernetes(t *testing.T) {
	t.Parallel()
	needClients(t, "ipmitool", "curl")
	a, c := newAccounts(t), newCredentials(t)
	frontend, viewer := a.add("frontend", a.role("frontend")), a.add("viewer", a.role("viewer"))
	frontendToken := c.write(t, "frontend-token", []byte(a.token(frontend, audience)))
	viewerToken := a.token(viewer, audience)

	first := testport.FreeRow(t, 13)
	address := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", first+i) }
	simulator, power, powerREST, media, mediaREST, registry := address(0), address(1), address(2), address(3), address(4), address(5)
	s := &system{t: t, rest: powerREST, caFile: c.ca, ipmi: first + 6, services: map[string]*service{}}
	kubevirtbmc := launch.Build(t, "cmd/kubevirtbmc")
	bmcs := c.write(t, "bmcs.yaml", []byte("username: "+username+"\npassword: "+password+"\nbmcs: [{vm: sim-0}]\n"))
	reviewed := func(service, address, rest string) []string {
		account := rbactest.New(t, a.rest, service, rbactest.Where{Own: "default"})
		return []string{
			"--listen", address, "--rest-listen", rest, "--tls-cert-file", c.cert, "--tls-key-file", c.key, "--kubeconfig", account.Kubeconfig(),
			"--hypervisor", "simulator", "--simulator-address", simulator, "--simulator-ca-file", c.ca, "--simulator-token-file", c.token,
		}
	}
	for i, p := range []struct {
		name, program string
		args          []string
	}{
		{"simulator", kubevirtbmc, append([]string{"simulator", "--machines", "1"}, c.serve(simulator)...)},
		{"power", launch.Build(t, "services/power"), reviewed("power", power, powerREST)},
		{"media", launch.Build(t, "services/media"), reviewed("media", media, mediaREST)},
		{"registry", kubevirtbmc, []string{
			"registry", "--config", bmcs, "--ipmi-port", fmt.Sprint(s.ipmi), "--redfish-port", fmt.Sprint(first + 7),
			"--listen", registry, "--tls-cert-file", c.cert, "--tls-key-file", c.key, "--token-file", frontendToken,
		}},
		{"frontend-ipmi", launch.Build(t, "services/frontend-ipmi"), []string{
			"--listen", "127.0.0.1", "--registry", registry, "--power", power, "--ca-file", c.ca, "--token-file", frontendToken,
		}},
	} {
		health := address(8 + i)
		s.services[p.name] = &service{program: p.program, args: append(p.args, "--health-listen", health), health: health}
		s.start(p.name)
	}
	for name := range s.services {
		s.waitReady(name)
	}

	s.want("Up/On", "power", "on")
	s.eventually("power on", func() bool { out, _ := s.ipmitool("power", "status"); return strings.Contains(out, "is on") })
	log := s.services["power"].process.Stderr()
	for _, part := range []string{`"audit":true`, `"identity":"system:serviceaccount:default:` + frontend + `"`, `"user":"` + username + `"`, `"protocol":"ipmi"`} {
		if !strings.Contains(log, part) && !strings.Contains(log, strings.NewReplacer(`"`, "", ":", "=").Replace(part)) {
			t.Errorf("the audit log lacks %s:\n%s", part, log)
		}
	}

	const path = "/v1/namespaces/default/bmcs/sim-0/"
	for name, tc := range map[string]struct {
		address, method, path, token string
		code                         string
	}{
		"a viewer sees power":          {powerREST, "GET", path + "power", viewerToken, "200"},
		"a viewer switches off":        {powerREST, "POST", path + "power", viewerToken, "403"},
		"a viewer sees media":          {mediaREST, "GET", path + "media", viewerToken, "200"},
		"a viewer ejects":              {mediaREST, "POST", path + "media/CD1:eject", viewerToken, "403"},
		"a BMC that does not exist":    {powerREST, "POST", "/v1/namespaces/default/bmcs/nobody/power", viewerToken, "403"},
		"a token for the API server":   {powerREST, "GET", path + "power", a.token(viewer), "401"},
		"the simulator's static token": {powerREST, "GET", path + "power", token, "401"},
	} {
		args := []string{"-o", "/dev/null", "-w", "%{http_code}", "-H", "Authorization: Bearer " + tc.token, "-X", tc.method}
		if tc.method == "POST" {
			args = append(args, "-d", `{}`)
			if strings.HasSuffix(tc.path, "power") {
				args[len(args)-1] = `{"action":"POWER_ACTION_FORCE_OFF"}`
			}
		}
		if got := s.curl(append(args, "https://"+tc.address+tc.path)...); got != tc.code {
			t.Errorf("%s: %s, want %s", name, got, tc.code)
		}
	}
	s.want("is on", "power", "status") // Nobody switched it off.
	for name, sv := range s.services {
		for _, secret := range []string{viewerToken, password} {
			if strings.Contains(sv.process.Stderr(), secret) {
				t.Errorf("%s logs a secret", name)
			}
		}
	}
}
