//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubeaccess_test

import (
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/kubeaccess"
	consolev1 "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
)

const (
	// recheck and remembered are how soon a stream is looked at again, and how long
	// answers count.
	recheck    = 300 * time.Millisecond
	remembered = 100 * time.Millisecond
	// apiServerTime is how long the API server itself counts a token that it has
	// seen as valid (tokenSuccessCacheTTL of k8s.io/kubernetes/pkg/kubeapiserver).
	apiServerTime = 10 * time.Second
)

// consoles sends back what is typed, and ends as the real one does.
type consoles struct {
	consolev1.UnimplementedConsoleServiceServer
}

func (consoles) Connect(stream grpc.BidiStreamingServer[consolev1.ConnectRequest, consolev1.ConnectResponse]) error {
	request, err := stream.Recv()
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		for {
			if err := stream.Send(&consolev1.ConnectResponse{Payload: &consolev1.ConnectResponse_Output{Output: request.GetInput()}}); err != nil {
				ended <- err
				return
			}
			if request, err = stream.Recv(); err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case err := <-ended:
		return err
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

// serveConsoles serves consoles to whom the API server says, and returns the
// address.
func (c *cluster) serveConsoles() string {
	c.t.Helper()
	reviewer, err := kubeaccess.New(kubeaccess.Config{
		REST: c.config, Audiences: []string{kubeaccess.DefaultAudience}, TokenTTL: remembered, AllowTTL: remembered, DenyTTL: remembered,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	server, err := grpcserver.New(grpcserver.Config{
		Log: slog.New(slog.DiscardHandler), Authenticator: reviewer, Authorizer: reviewer, Recheck: recheck, Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	consolev1.RegisterConsoleServiceServer(server, consoles{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(listener) })
	c.t.Cleanup(func() {
		server.Stop()
		group.Wait()
	})
	return listener.Addr().String()
}

// boundToken asks for a token of a ServiceAccount that ends with an object.
func (c *cluster) boundToken(account string, object authenticationv1.BoundObjectReference) string {
	c.t.Helper()
	object.APIVersion = "v1"
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{kubeaccess.DefaultAudience}, BoundObjectRef: &object}}
	answer, err := c.client.CoreV1().ServiceAccounts(c.lab).CreateToken(c.t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return answer.Status.Token
}

// secret makes a Secret, and returns what tokens are bound to and what deletes it.
func (c *cluster) secret(name string) (authenticationv1.BoundObjectReference, func()) {
	c.t.Helper()
	secret, err := c.client.CoreV1().Secrets(c.lab).Create(c.t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return authenticationv1.BoundObjectReference{Kind: "Secret", Name: name, UID: secret.UID}, func() {
		c.removed(c.client.CoreV1().Secrets(c.lab).Delete(c.t.Context(), name, metav1.DeleteOptions{}))
	}
}

// console opens a console with the token of a file, which Kubernetes is to write
// anew, and returns what types, waits for the echo, and tells how the stream ended.
func (c *cluster) console(address, tokenFile string) (typed func(string) error) {
	c.t.Helper()
	conn, err := grpcclient.Dial(address, grpcclient.Config{Token: grpcclient.TokenFile(tokenFile), Renew: 50 * time.Millisecond})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	stream, err := consolev1.NewConsoleServiceClient(conn).Connect(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	say := func(request *consolev1.ConnectRequest) error {
		_ = stream.Send(request) // What is wrong with the stream Recv says.
		_, err := stream.Recv()
		return err
	}
	bmc := &referencev1.BMCReference{Namespace: c.lab, Name: "vm-1"}
	if err := say(&consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Open{Open: &consolev1.Open{Bmc: bmc}}}); err != nil {
		c.t.Fatal(err)
	}
	return func(text string) error {
		return say(&consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Input{Input: []byte(text)}})
	}
}

// goesOn types for a while, as long as a token that has ended could count.
func goesOn(t *testing.T, typed func(string) error) {
	t.Helper()
	for end := time.Now().Add(apiServerTime + 2*recheck); time.Now().Before(end); time.Sleep(recheck / 3) {
		if err := typed("x"); err != nil {
			t.Fatalf("the stream has ended: %v", err)
		}
	}
}

// ends types until the stream ends, which it has to soon and for want of a token.
func ends(t *testing.T, typed func(string) error) {
	t.Helper()
	since := time.Now()
	var err error
	for err == nil {
		if time.Since(since) > apiServerTime+remembered+recheck+5*time.Second {
			t.Fatalf("the stream goes on after %v", time.Since(since))
		}
		time.Sleep(recheck / 3)
		err = typed("x")
	}
	if grpcstatus.ReasonOf(err) != unauthenticated {
		t.Errorf("the stream ended with %v, want UNAUTHENTICATED", err)
	}
}

// TestStream_tokenEnds: a stream ends with its caller's ServiceAccount or pod, and
// not with a token that another has taken the place of.
func TestStream_tokenEnds(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	address := c.serveConsoles()
	operator := func(name string) {
		c.bind(c.serviceAccount(name), c.role("operator"), c.lab)
	}
	for name, run := range map[string]func(t *testing.T, c *cluster, file func(token string) string){
		"ServiceAccount": func(t *testing.T, c *cluster, file func(string) string) {
			operator("deleted")
			typed := c.console(address, file(c.token("deleted", kubeaccess.DefaultAudience)))
			if err := c.client.CoreV1().ServiceAccounts(c.lab).Delete(t.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			ends(t, typed)
		},
		"pod": func(t *testing.T, c *cluster, file func(string) string) {
			operator("of-a-pod")
			pod, err := c.client.CoreV1().Pods(c.lab).Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "frontend-0"},
				Spec:       corev1.PodSpec{ServiceAccountName: "of-a-pod", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			bound := authenticationv1.BoundObjectReference{Kind: "Pod", Name: pod.Name, UID: pod.UID}
			path := file(c.boundToken("of-a-pod", bound))
			typed := c.console(address, path)
			file(c.boundToken("of-a-pod", bound)) // The next one of the same pod.
			goesOn(t, typed)
			now := int64(0)
			if err := c.client.CoreV1().Pods(c.lab).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
				t.Fatal(err)
			}
			ends(t, typed)
		},
		"token": func(t *testing.T, c *cluster, file func(string) string) {
			// One ends when its Secret does, as another by its time, which Kubernetes
			// makes ten minutes at least.
			operator("rotated")
			first, endFirst := c.secret("first")
			second, endSecond := c.secret("second")
			typed := c.console(address, file(c.boundToken("rotated", first)))
			file(c.boundToken("rotated", second))
			time.Sleep(2 * recheck)
			endFirst()
			goesOn(t, typed)
			endSecond()
			ends(t, typed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			of := *c
			of.t = t
			path := filepath.Join(t.TempDir(), "token")
			run(t, &of, func(token string) string {
				(&service{dir: filepath.Dir(path)}).write(t, "token", []byte(token))
				return path
			})
		})
	}
}
