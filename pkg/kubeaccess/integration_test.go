//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubeaccess_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/timestamppb"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"kubevirtbmc.dev/pkg/access"
	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcprocess"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/kubeaccess"
	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/pkg/testport"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	consolev1 "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	mediav1 "kubevirtbmc.dev/proto/gen/go/bmc/media/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

// cluster is a real API server with the roles of deploy/rbac, under names of the
// test's own.
type cluster struct {
	t          *testing.T
	config     *rest.Config
	kubeconfig string
	client     *kubernetes.Clientset
	suffix     string
	// lab is where the BMCs are, elsewhere another namespace.
	lab, elsewhere string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, kubeconfig: os.Getenv("KUBECONFIG"), suffix: strings.ToLower(rand.Text()[:8])}
	if c.kubeconfig == "" {
		t.Fatal("KUBECONFIG names no cluster (hack/with-cluster.sh api)")
	}
	var err error
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.kubeconfig); err != nil {
		t.Fatal(err)
	}
	c.config.QPS, c.config.Burst = 200, 400
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		t.Fatal(err)
	}
	c.lab, c.elsewhere = "lab-"+c.suffix, "elsewhere-"+c.suffix
	for _, name := range []string{c.lab, c.elsewhere} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := c.client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			c.removed(c.client.CoreV1().Namespaces().Delete(context.Background(), name, metav1.DeleteOptions{}))
		})
	}
	for _, role := range readRoles(t) {
		role = role.DeepCopy()
		role.Name += "-" + c.suffix
		role.Labels = nil // They would add to the cluster's own roles.
		if _, err := c.client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			c.removed(c.client.RbacV1().ClusterRoles().Delete(context.Background(), role.Name, metav1.DeleteOptions{}))
		})
	}
	return c
}

func (c *cluster) removed(err error) {
	if err != nil && !apierrors.IsNotFound(err) {
		c.t.Error(err)
	}
}

// role is the cluster's name of a role of deploy/rbac.
func (c *cluster) role(name string) string { return access.Group + ":" + name + "-" + c.suffix }

// serviceAccount makes one in the lab.
func (c *cluster) serviceAccount(name string) rbacv1.Subject {
	c.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: c.lab, Name: name}}
	if _, err := c.client.CoreV1().ServiceAccounts(c.lab).Create(c.t.Context(), account, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: c.lab, Name: name}
}

// token asks for a token of a ServiceAccount of the lab.
func (c *cluster) token(name, audience string) string {
	c.t.Helper()
	request := &authenticationv1.TokenRequest{}
	if audience != "" {
		request.Spec.Audiences = []string{audience}
	}
	answer, err := c.client.CoreV1().ServiceAccounts(c.lab).CreateToken(c.t.Context(), name, request, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return answer.Status.Token
}

// bind gives a ServiceAccount a ClusterRole in a namespace, empty: in all, and
// returns what takes it away.
func (c *cluster) bind(subject rbacv1.Subject, role, namespace string) (unbind func()) {
	c.t.Helper()
	name := subject.Name + "-" + c.suffix
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}
	meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
	var err error
	if namespace == "" {
		_, err = c.client.RbacV1().ClusterRoleBindings().Create(c.t.Context(),
			&rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: []rbacv1.Subject{subject}, RoleRef: ref}, metav1.CreateOptions{})
		unbind = sync.OnceFunc(func() {
			c.removed(c.client.RbacV1().ClusterRoleBindings().Delete(context.Background(), name, metav1.DeleteOptions{}))
		})
	} else {
		_, err = c.client.RbacV1().RoleBindings(namespace).Create(c.t.Context(),
			&rbacv1.RoleBinding{ObjectMeta: meta, Subjects: []rbacv1.Subject{subject}, RoleRef: ref}, metav1.CreateOptions{})
		unbind = sync.OnceFunc(func() {
			c.removed(c.client.RbacV1().RoleBindings(namespace).Delete(context.Background(), name, metav1.DeleteOptions{}))
		})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(unbind)
	return unbind
}

// proxy stands between a service and the API server. It counts what it passes on
// and can be taken down.
type proxy struct {
	*httptest.Server
	down                   atomic.Bool
	tokenReviews, sarCount atomic.Int64
	refused                atomic.Int64 // answered with 403
}

// newProxy makes a proxy that passes each caller's own token on.
func (c *cluster) newProxy() *proxy {
	c.t.Helper()
	target, err := url.Parse(c.config.Host)
	if err != nil {
		c.t.Fatal(err)
	}
	anonymous := rest.AnonymousClientConfig(c.config)
	transport, err := rest.TransportFor(anonymous)
	if err != nil {
		c.t.Fatal(err)
	}
	p := &proxy{}
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.Transport = transport
	forward.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	forward.ModifyResponse = func(r *http.Response) error {
		if r.StatusCode == http.StatusForbidden {
			p.refused.Add(1)
		}
		return nil
	}
	p.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.down.Load() {
			panic(http.ErrAbortHandler) // As a connection that breaks.
		}
		switch {
		case strings.HasSuffix(r.URL.Path, "/tokenreviews"):
			p.tokenReviews.Add(1)
		case strings.HasSuffix(r.URL.Path, "/subjectaccessreviews"):
			p.sarCount.Add(1)
		}
		forward.ServeHTTP(w, r)
	}))
	c.t.Cleanup(p.Close)
	return p
}

// asked is how many reviews were passed on.
func (p *proxy) asked() (tokens, rights int64) { return p.tokenReviews.Load(), p.sarCount.Load() }

// service is all services of the API in one process, as grpcprocess runs them,
// that do nothing but note who calls. Its callers are reviewed through a proxy.
type service struct {
	*proxy
	grpc, rest string // addresses
	tls        *tls.Config
	dir        string
	handlers   *handlers
}

// serve runs a service under a ServiceAccount of the lab.
func (c *cluster) serve(account string, args ...string) *service {
	c.t.Helper()
	t := c.t
	s := &service{proxy: c.newProxy(), grpc: freeAddress(t), rest: freeAddress(t), dir: t.TempDir(), handlers: &handlers{}}
	authority, err := certs.NewAuthority("test CA", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Issue([]string{"127.0.0.1"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	s.tls = &tls.Config{RootCAs: authority.Pool(), MinVersion: tls.VersionTLS13}
	s.write(t, "tls.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}))
	s.write(t, "tls.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.CurrentContext = "test"
	kubeconfig.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	kubeconfig.Clusters["test"] = &clientcmdapi.Cluster{
		Server:                   s.URL,
		CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
	}
	kubeconfig.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: c.token(account, "")}
	if err := clientcmd.WriteToFile(*kubeconfig, filepath.Join(s.dir, "kubeconfig")); err != nil {
		t.Fatal(err)
	}

	flags := flag.NewFlagSet("service", flag.ContinueOnError)
	path := flags.String("kubeconfig", "", "")
	options, open := grpcprocess.AddFlags(flags, true), kubeaccess.AddFlags(flags, path)
	if err := flags.Parse(append([]string{
		"--kubeconfig", filepath.Join(s.dir, "kubeconfig"), "--listen", s.grpc, "--rest-listen", s.rest,
		"--tls-cert-file", filepath.Join(s.dir, "tls.crt"), "--tls-key-file", filepath.Join(s.dir, "tls.key"),
	}, args...)); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	running := &process.Process{Log: slog.New(slog.DiscardHandler), Registry: process.NewRegistry(), Health: process.NewHealth()}
	ended := make(chan error, 1)
	go func() {
		ended <- options.Serve(ctx, running, grpcprocess.Service{Access: open, Register: s.handlers.register, RegisterGateway: registerGateway})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the service ended with %v", err)
		}
	})
	for end := time.Now().Add(30 * time.Second); !running.Health.Ready(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the service does not get ready")
		}
	}
	return s
}

func (s *service) write(t *testing.T, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func freeAddress(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", testport.Free(t))
}

// dial connects as whoever the token is of.
func (s *service) dial(t *testing.T, token func() (string, error)) *grpc.ClientConn {
	t.Helper()
	// Calls would be sent again while the API server is down.
	conn, err := grpcclient.Dial(s.grpc, grpcclient.Config{TLS: s.tls, Token: token, Options: []grpc.DialOption{grpc.WithDisableRetry()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func fixed(token string) func() (string, error) {
	return func() (string, error) { return token, nil }
}

// handlers are the services. Whoever gets as far as one is told UNIMPLEMENTED.
type handlers struct {
	bootv1.UnimplementedBootServiceServer
	consolev1.UnimplementedConsoleServiceServer
	inventoryv1.UnimplementedInventoryServiceServer
	mediav1.UnimplementedMediaServiceServer
	powerv1.UnimplementedPowerServiceServer
	registryv1.UnimplementedRegistryServiceServer
	statev1.UnimplementedStateServiceServer

	mu     sync.Mutex
	caller callctx.Caller
}

func (h *handlers) register(r grpc.ServiceRegistrar) {
	bootv1.RegisterBootServiceServer(r, h)
	consolev1.RegisterConsoleServiceServer(r, h)
	inventoryv1.RegisterInventoryServiceServer(r, h)
	mediav1.RegisterMediaServiceServer(r, h)
	powerv1.RegisterPowerServiceServer(r, h)
	registryv1.RegisterRegistryServiceServer(r, h)
	statev1.RegisterStateServiceServer(r, h)
}

func registerGateway(ctx context.Context, mux *runtime.ServeMux, conn grpc.ClientConnInterface) error {
	return errors.Join(
		bootv1.RegisterBootServiceHandlerClient(ctx, mux, bootv1.NewBootServiceClient(conn)),
		inventoryv1.RegisterInventoryServiceHandlerClient(ctx, mux, inventoryv1.NewInventoryServiceClient(conn)),
		mediav1.RegisterMediaServiceHandlerClient(ctx, mux, mediav1.NewMediaServiceClient(conn)),
		powerv1.RegisterPowerServiceHandlerClient(ctx, mux, powerv1.NewPowerServiceClient(conn)),
		statev1.RegisterStateServiceHandlerClient(ctx, mux, statev1.NewStateServiceClient(conn)),
	)
}

// GetPower notes who calls, and works.
func (h *handlers) GetPower(ctx context.Context, _ *powerv1.GetPowerRequest) (*powerv1.GetPowerResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.caller = callctx.CallerOf(ctx)
	return nil, status.Error(codes.Unimplemented, "noted")
}

// Connect waits for its first message, as the real one does.
func (h *handlers) Connect(stream grpc.BidiStreamingServer[consolev1.ConnectRequest, consolev1.ConnectResponse]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	return status.Error(codes.Unimplemented, "opened")
}

// Subscribe waits for its first message, as the real one does.
func (h *handlers) Subscribe(stream grpc.BidiStreamingServer[registryv1.SubscribeRequest, registryv1.SubscribeResponse]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	return status.Error(codes.Unimplemented, "subscribed")
}

// requests are a valid first message for each method.
func requests(bmc *referencev1.BMCReference) []proto.Message {
	event := &statev1.Event{
		Id: "1", Time: timestamppb.Now(), Severity: statev1.EventSeverity_EVENT_SEVERITY_OK,
		Kind: statev1.EventKind_EVENT_KIND_BMC, Message: "m",
	}
	return []proto.Message{
		&bootv1.GetBootRequest{Bmc: bmc},
		&bootv1.SetBootOverrideRequest{Bmc: bmc, Override: &bootv1.BootOverride{
			Target: bootv1.BootTarget_BOOT_TARGET_PXE, Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE,
		}},
		&bootv1.SetBootOrderRequest{Bmc: bmc},
		&bootv1.SetFirmwareModeRequest{Bmc: bmc, Mode: bootv1.FirmwareMode_FIRMWARE_MODE_UEFI},
		&bootv1.WatchBootRequest{Bmc: bmc},
		&consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Open{Open: &consolev1.Open{Bmc: bmc}}},
		&inventoryv1.GetInventoryRequest{Bmc: bmc},
		&inventoryv1.WatchInventoryRequest{Bmc: bmc},
		&mediav1.ListMediaRequest{Bmc: bmc},
		&mediav1.InsertMediaRequest{Bmc: bmc, Slot: "CD1", ImageUrl: "http://images.example/a.iso"},
		&mediav1.EjectMediaRequest{Bmc: bmc, Slot: "CD1"},
		&mediav1.WatchMediaRequest{Bmc: bmc},
		&powerv1.GetPowerRequest{Bmc: bmc},
		&powerv1.TransitionPowerRequest{Bmc: bmc, Action: powerv1.PowerAction_POWER_ACTION_ON},
		&powerv1.WatchPowerRequest{Bmc: bmc},
		&registryv1.SubscribeRequest{Payload: &registryv1.SubscribeRequest_Hello{Hello: &registryv1.Hello{Protocol: registryv1.Protocol_PROTOCOL_IPMI, Replica: "r"}}},
		&statev1.ListEventsRequest{Bmc: bmc},
		&statev1.AppendEventsRequest{Bmc: bmc, Events: []*statev1.Event{event}},
		&statev1.ClearEventsRequest{Bmc: bmc},
		&statev1.WatchEventsRequest{Bmc: bmc},
		&statev1.ListAccountsRequest{Bmc: bmc},
		&statev1.CreateAccountRequest{Bmc: bmc, Username: "u", Password: "password", Role: registryv1.Role_ROLE_OPERATOR},
		&statev1.UpdateAccountRequest{Bmc: bmc, Username: "u"},
		&statev1.DeleteAccountRequest{Bmc: bmc, Username: "u"},
		&statev1.ListSubscriptionsRequest{Bmc: bmc},
		&statev1.CreateSubscriptionRequest{Bmc: bmc, Subscription: &statev1.Subscription{Destination: "https://sink.example/"}},
		&statev1.UpdateSubscriptionRequest{Bmc: bmc, Id: "1"},
		&statev1.DeleteSubscriptionRequest{Bmc: bmc, Id: "1"},
	}
}

// requestOf returns the valid request of a method.
func requestOf(t *testing.T, m method, bmc *referencev1.BMCReference) proto.Message {
	t.Helper()
	for _, request := range requests(bmc) {
		if request.ProtoReflect().Descriptor().FullName() == m.descriptor.Input().FullName() {
			return request
		}
	}
	t.Fatalf("no request for %s: add one to this test", m.name)
	return nil
}

// call makes a call over gRPC and returns how it ended.
func call(ctx context.Context, conn *grpc.ClientConn, m method, request proto.Message) error {
	output, err := protoregistry.GlobalTypes.FindMessageByName(m.descriptor.Output().FullName())
	if err != nil {
		return err
	}
	response := output.New().Interface()
	if !m.descriptor.IsStreamingServer() {
		return conn.Invoke(ctx, m.name, request, response)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: m.descriptor.IsStreamingClient()}
	stream, err := conn.NewStream(ctx, desc, m.name)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return stream.RecvMsg(response)
}

// restCall makes a call over REST and returns its HTTP status and body.
func (s *service) restCall(t *testing.T, token string, m method, request proto.Message) (int, string) {
	t.Helper()
	path := m.path
	bmc := access.BMCOf(request)
	for field, value := range map[string]string{"{bmc.namespace}": bmc.GetNamespace(), "{bmc.name}": bmc.GetName(), "{slot}": "CD1"} {
		path = strings.ReplaceAll(path, field, value)
	}
	var body io.Reader
	if m.http != http.MethodGet {
		content := request
		if m.body != "*" {
			fields := request.ProtoReflect().Descriptor().Fields()
			content = request.ProtoReflect().Get(fields.ByName(protoreflect.Name(m.body))).Message().Interface()
		}
		text, err := protojson.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(t.Context(), m.http, "https://"+s.rest+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: s.tls, ForceAttemptHTTP2: true, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// httpStatus is the REST form of a code.
var httpStatus = map[codes.Code]int{
	codes.Unimplemented: http.StatusNotImplemented, codes.PermissionDenied: http.StatusForbidden,
	codes.Unauthenticated: http.StatusUnauthorized, codes.Unavailable: http.StatusServiceUnavailable,
}

// serviceAccountToken signs a token of a ServiceAccount of the lab with the key of
// a test/cluster, which lies beside its kubeconfig. ok is false for other clusters.
func (c *cluster) serviceAccountToken(name string, expires time.Time) (token string, ok bool) {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(filepath.Dir(c.kubeconfig), "pki", "sa.key"))
	if err != nil {
		return "", false
	}
	account, err := c.client.CoreV1().ServiceAccounts(c.lab).Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			c.t.Fatal(err)
		}
		key = parsed.(*ecdsa.PrivateKey)
	}
	part := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			c.t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	signed := part(map[string]string{"alg": "ES256", "typ": "JWT"}) + "." + part(map[string]any{
		"iss": "https://kubernetes.default.svc.cluster.local", "aud": []string{kubeaccess.DefaultAudience},
		"sub": "system:serviceaccount:" + c.lab + ":" + name,
		"iat": expires.Add(-time.Hour).Unix(), "nbf": expires.Add(-time.Hour).Unix(), "exp": expires.Unix(),
		"kubernetes.io": map[string]any{"namespace": c.lab, "serviceaccount": map[string]string{"name": name, "uid": string(account.UID)}},
	})
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		c.t.Fatal(err)
	}
	signature := append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature), true
}

// TestMatrix calls every method of every service, over gRPC and over REST, as
// each kind of caller.
func TestMatrix(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	roles := readRoles(t)
	c.bind(c.serviceAccount("service"), "system:auth-delegator", "")
	s := c.serve("service")
	bmc := &referencev1.BMCReference{Namespace: c.lab, Name: "vm-1"}

	type caller struct {
		token string
		// want is how a call ends.
		want func(method) codes.Code
	}
	always := func(code codes.Code) func(method) codes.Code { return func(method) codes.Code { return code } }
	callers := map[string]caller{
		"no token": {"", always(codes.Unauthenticated)},
		"no JWT":   {"not-a-token", always(codes.Unauthenticated)},
	}
	byRole := func(role *rbacv1.ClusterRole) func(method) codes.Code {
		return func(m method) codes.Code {
			if m.granted || role != nil && allows(role, access.Resource+"/"+m.subresource, m.verb) {
				return codes.Unimplemented // It got as far as the handler.
			}
			return codes.PermissionDenied
		}
	}
	for _, name := range roleNames {
		namespace := c.lab
		if name == "frontend" {
			namespace = ""
		}
		c.bind(c.serviceAccount(name), c.role(name), namespace)
		callers[name] = caller{c.token(name, kubeaccess.DefaultAudience), byRole(roles[name])}
	}
	c.serviceAccount("nobody")
	callers["nobody"] = caller{c.token("nobody", kubeaccess.DefaultAudience), byRole(nil)}
	c.bind(c.serviceAccount("stranger"), c.role("admin"), c.elsewhere)
	callers["admin of another namespace"] = caller{c.token("stranger", kubeaccess.DefaultAudience), byRole(nil)}
	callers["admin with a token for the API server"] = caller{c.token("admin", ""), always(codes.Unauthenticated)}
	callers["admin with a token for somebody else"] = caller{c.token("admin", "vault"), always(codes.Unauthenticated)}
	if valid, ok := c.serviceAccountToken("admin", time.Now().Add(time.Hour)); ok {
		callers["admin with a token of an hour"] = caller{valid, byRole(roles["admin"])}
		expired, _ := c.serviceAccountToken("admin", time.Now().Add(-time.Minute))
		callers["admin with an expired token"] = caller{expired, always(codes.Unauthenticated)}
	} else {
		t.Log("this cluster's key is not at hand: no expired token")
	}
	gone := c.serviceAccount("gone")
	c.bind(gone, c.role("admin"), c.lab)
	token := c.token("gone", kubeaccess.DefaultAudience)
	if err := c.client.CoreV1().ServiceAccounts(c.lab).Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	callers["ServiceAccount that was deleted"] = caller{token, always(codes.Unauthenticated)}

	calls := 0
	for name, caller := range callers {
		conn := s.dial(t, fixed(caller.token))
		for _, m := range methods(t) {
			calls++
			request := requestOf(t, m, bmc)
			want := caller.want(m)
			err := call(t.Context(), conn, m, request)
			if status.Code(err) != want {
				t.Errorf("%s, %s over gRPC: %v, want %v", name, m.name, err, want)
			}
			if want == codes.PermissionDenied && !strings.Contains(err.Error(), " may not "+m.verb+" virtualmachinebmcs/"+m.subresource+" of "+c.lab+"/vm-1") {
				t.Errorf("%s, %s: the denial does not say what of: %v", name, m.name, err)
			}
			if m.http == "" {
				continue
			}
			if code, text := s.restCall(t, caller.token, m, request); code != httpStatus[want] {
				t.Errorf("%s, %s over REST: %d %s, want %d", name, m.name, code, text, httpStatus[want])
			}
		}
	}
	if refused := s.refused.Load(); refused > 0 {
		t.Errorf("the API server forbade the service %d requests", refused)
	}
	t.Logf("%d callers, %d calls over gRPC", len(callers), calls)

	// A console to watch needs less than one to type at.
	read := &consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Open{Open: &consolev1.Open{Bmc: bmc, ReadOnly: true}}}
	for _, m := range methods(t) {
		if m.name == consolev1.ConsoleService_Connect_FullMethodName {
			for role, want := range map[string]codes.Code{"viewer": codes.PermissionDenied, "operator": codes.Unimplemented} {
				if err := call(t.Context(), s.dial(t, fixed(callers[role].token)), m, read); status.Code(err) != want {
					t.Errorf("%s watches a console: %v, want %v", role, err, want)
				}
			}
		}
	}
}

// get asks for the power of a BMC.
func get(ctx context.Context, conn *grpc.ClientConn, namespace, name string) error {
	_, err := powerv1.NewPowerServiceClient(conn).GetPower(ctx, &powerv1.GetPowerRequest{Bmc: &referencev1.BMCReference{Namespace: namespace, Name: name}})
	if status.Code(err) == codes.Unimplemented {
		return nil // It got as far as the handler.
	}
	return err
}

// eventually waits until a call ends with a reason.
func eventually(t *testing.T, what string, want errorsv1.Reason, call func() error) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := call()
		if grpcstatus.ReasonOf(err) == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v, want reason %v", what, err, want)
		}
	}
}

const (
	noReason        = errorsv1.Reason_REASON_UNSPECIFIED
	unauthenticated = errorsv1.Reason_REASON_UNAUTHENTICATED
	denied          = errorsv1.Reason_REASON_PERMISSION_DENIED
	unavailable     = errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE
)

// TestReviews counts what calls cost at the API server.
func TestReviews(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.bind(c.serviceAccount("service"), "system:auth-delegator", "")
	s := c.serve("service", "--access-token-ttl", "1h", "--access-allow-ttl", "1h", "--access-deny-ttl", "1h")
	c.bind(c.serviceAccount("frontend"), c.role("frontend"), "")
	c.bind(c.serviceAccount("viewer"), c.role("viewer"), c.lab)
	c.serviceAccount("nobody")
	cost := func(token string, bmcs int) (tokens, rights int64) {
		t.Helper()
		tokens, rights = s.asked()
		conn := s.dial(t, fixed(token))
		for i := range 300 {
			if err := get(t.Context(), conn, c.lab, fmt.Sprintf("vm-%d", i%bmcs)); err != nil && grpcstatus.ReasonOf(err) != denied {
				t.Fatal(err)
			}
		}
		tokensNow, rightsNow := s.asked()
		return tokensNow - tokens, rightsNow - rights
	}
	for _, tc := range []struct {
		account        string
		bmcs           int
		tokens, rights int64
	}{
		{"frontend", 300, 1, 1}, // It may do so everywhere.
		{"viewer", 10, 1, 11},   // Not everywhere, but to each of ten.
		{"nobody", 10, 1, 11},
	} {
		tokens, rights := cost(c.token(tc.account, kubeaccess.DefaultAudience), tc.bmcs)
		if tokens != tc.tokens || rights != tc.rights {
			t.Errorf("300 calls of %s for %d BMCs cost %d token reviews and %d access reviews, want %d and %d",
				tc.account, tc.bmcs, tokens, rights, tc.tokens, tc.rights)
		}
	}
}

// TestRevocation takes rights and tokens away, and the API server.
func TestRevocation(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.bind(c.serviceAccount("service"), "system:auth-delegator", "")
	s := c.serve("service", "--access-token-ttl", "300ms", "--access-allow-ttl", "300ms", "--access-deny-ttl", "300ms")
	viewer := c.serviceAccount("viewer")
	unbind := c.bind(viewer, c.role("viewer"), c.lab)
	conn := s.dial(t, fixed(c.token("viewer", kubeaccess.DefaultAudience)))
	ask := func() error { return get(t.Context(), conn, c.lab, "vm-1") }

	eventually(t, "with a right", noReason, ask)
	unbind()
	eventually(t, "without the right", denied, ask)
	c.bind(viewer, c.role("viewer"), c.lab)
	eventually(t, "with the right again", noReason, ask)

	s.down.Store(true)
	eventually(t, "API server down", unavailable, ask)
	m := method{name: powerv1.PowerService_GetPower_FullMethodName, http: http.MethodGet, path: "/v1/namespaces/{bmc.namespace}/bmcs/{bmc.name}/power"}
	bmc := &referencev1.BMCReference{Namespace: c.lab, Name: "vm-1"}
	code, text := s.restCall(t, "some-token", m, &powerv1.GetPowerRequest{Bmc: bmc})
	if code != http.StatusServiceUnavailable || strings.Contains(text, s.URL) {
		t.Errorf("REST while the API server is down: %d %s, want 503 without its address", code, text)
	}
	s.down.Store(false)
	eventually(t, "API server back", noReason, ask)

	if err := c.client.CoreV1().ServiceAccounts(c.lab).Delete(t.Context(), "viewer", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "ServiceAccount gone", unauthenticated, ask)
}

// TestTokenRotation has a client whose token file is written anew.
func TestTokenRotation(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.bind(c.serviceAccount("service"), "system:auth-delegator", "")
	s := c.serve("service")
	c.bind(c.serviceAccount("frontend"), c.role("frontend"), "")
	path := s.write(t, "token", []byte(c.token("frontend", kubeaccess.DefaultAudience)+"\n"))
	conn := s.dial(t, grpcclient.TokenFile(path))
	if err := get(t.Context(), conn, c.lab, "vm-1"); err != nil {
		t.Fatal(err)
	}
	s.write(t, "token", []byte(c.token("frontend", "somebody-else")))
	if err := get(t.Context(), conn, c.lab, "vm-1"); grpcstatus.ReasonOf(err) != unauthenticated {
		t.Errorf("with another token in the file: %v, want UNAUTHENTICATED", err)
	}
	s.write(t, "token", []byte(c.token("frontend", kubeaccess.DefaultAudience)))
	if err := get(t.Context(), conn, c.lab, "vm-1"); err != nil {
		t.Errorf("with a new token in the file: %v", err)
	}
}

// TestVouching has callers that name somebody else as the one who asks.
func TestVouching(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.bind(c.serviceAccount("service"), "system:auth-delegator", "")
	s := c.serve("service")
	c.bind(c.serviceAccount("frontend"), c.role("frontend"), "")
	c.bind(c.serviceAccount("agent"), c.role("frontend"), c.lab)
	c.bind(c.serviceAccount("editor"), c.role("editor"), c.lab)
	claim := callctx.Caller{User: "root", Address: "192.0.2.1:623", Protocol: "ipmi"}
	for account, honoured := range map[string]bool{"frontend": true, "agent": true, "editor": false} {
		conn := s.dial(t, fixed(c.token(account, kubeaccess.DefaultAudience)))
		if err := get(callctx.WithCaller(t.Context(), claim), conn, c.lab, "vm-1"); err != nil {
			t.Errorf("%s: %v", account, err)
		}
		s.handlers.mu.Lock()
		got := s.handlers.caller
		s.handlers.mu.Unlock()
		if (got == claim) != honoured || !honoured && (got.User != "" || got.Protocol != "grpc") {
			t.Errorf("%s calls for %+v", account, got)
		}
	}
}

// TestService_withoutRights has a service that may not review anybody: its callers
// are told that it can't serve, not that their tokens are wrong.
func TestService_withoutRights(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serviceAccount("service")
	s := c.serve("service")
	c.bind(c.serviceAccount("frontend"), c.role("frontend"), "")
	err := get(t.Context(), s.dial(t, fixed(c.token("frontend", kubeaccess.DefaultAudience))), c.lab, "vm-1")
	if grpcstatus.ReasonOf(err) != unavailable {
		t.Errorf("GetPower: %v, want UNAVAILABLE", err)
	}
}

// TestAggregation binds people to Kubernetes' own roles, of which ours are parts
// where a controller manager puts them together.
func TestAggregation(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	view, err := c.client.RbacV1().ClusterRoles().Get(t.Context(), "view", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(view.Rules) == 0 {
		t.Skip("no controller manager puts roles together here (level api)")
	}
	for _, role := range readRoles(t) {
		role = role.DeepCopy()
		role.Name += "-part-" + c.suffix
		if _, err := c.client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			c.removed(c.client.RbacV1().ClusterRoles().Delete(context.Background(), role.Name, metav1.DeleteOptions{}))
		})
	}
	for _, role := range []string{"view", "edit", "admin"} {
		c.bind(rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "person-" + role}, role, c.lab)
	}
	may := func(user, verb, subresource string) bool {
		t.Helper()
		review, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: c.lab, Name: "vm-1", Verb: verb, Group: access.Group, Resource: access.Resource, Subresource: subresource,
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return review.Status.Allowed
	}
	for end := time.Now().Add(time.Minute); !may("person-admin", "get", "credentials"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the role admin does not get its part")
		}
	}
	roles := readRoles(t)
	for kubernetes, ours := range map[string]string{"view": "viewer", "edit": "editor", "admin": "admin"} {
		for _, verb := range []string{"get", "update", "list", "create", "delete"} {
			for _, subresource := range []string{"", "boot", "console", "credentials", "inventory", "media", "power", "state", "status"} {
				want := allows(roles[ours], strings.TrimSuffix(access.Resource+"/"+subresource, "/"), verb)
				if got := may("person-"+kubernetes, verb, subresource); got != want {
					t.Errorf("who has the role %s may %s %q: %v, want %v", kubernetes, verb, subresource, got, want)
				}
			}
		}
	}
}
