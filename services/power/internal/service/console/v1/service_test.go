// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package consolev1_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	pb "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	"kubevirtbmc.dev/services/power/internal/console"
	consolev1 "kubevirtbmc.dev/services/power/internal/service/console/v1"
)

var ref = hypervisor.Ref{Namespace: "default", Name: "vm"}

// bench is a server with a machine that runs, and a client.
type bench struct {
	*testing.T
	simulator *simulator.Simulator
	server    *grpcserver.Server
	client    pb.ConsoleServiceClient
}

// serving calls f with a bench. Nothing may be left running after it.
func serving(t *testing.T, f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := simulator.New(simulator.Config{})
		if err := s.AddMachine(simulator.Spec{Ref: ref, RunStrategy: hypervisor.RunStrategyAlways}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		var tokens grpcserver.StaticTokens
		tokens.Add("not-a-secret", "test")
		log := slog.New(slog.DiscardHandler)
		server, err := grpcserver.New(grpcserver.Config{Log: log, Authenticator: tokens, Metrics: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		hub := console.New(console.Config{Machines: s, Console: s, Log: log})
		consolev1.Register(server, consolev1.New(consolev1.Config{Hub: hub, Resolver: hypervisor.FixedNames{ref: ref}, Audit: audit.New(log, nil)}))
		listener := bufconn.Listen(1 << 16)
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		connection, err := grpcclient.Dial("passthrough:memory", grpcclient.Config{
			Token: func() (string, error) { return "not-a-secret", nil },
			Options: []grpc.DialOption{
				// Windows that do not grow: who does not read is noticed.
				grpc.WithStaticStreamWindowSize(64 << 10), grpc.WithStaticConnWindowSize(64 << 10),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
					return listener.DialContext(ctx)
				}),
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		f(&bench{t, s, server, pb.NewConsoleServiceClient(connection)})
		if err := connection.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

type stream = grpc.BidiStreamingClient[pb.ConnectRequest, pb.ConnectResponse]

// open opens the console; the stream's end is cancel's.
func (b *bench) open() (s stream, cancel func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	s, err := b.client.Connect(ctx)
	if err != nil {
		b.Fatal(err)
	}
	b.send(s, &pb.ConnectRequest{Payload: &pb.ConnectRequest_Open{Open: &pb.Open{
		Bmc: &referencev1.BMCReference{Namespace: ref.Namespace, Name: ref.Name},
	}}})
	synctest.Wait()
	return s, cancel
}

func (b *bench) send(s stream, request *pb.ConnectRequest) {
	b.Helper()
	if err := s.Send(request); err != nil {
		b.Fatal(err)
	}
}

func input(p []byte) *pb.ConnectRequest {
	return &pb.ConnectRequest{Payload: &pb.ConnectRequest_Input{Input: p}}
}

// ends reads a stream to its end.
func (b *bench) ends(s stream) error {
	b.Helper()
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
	}
}

// talk has the guest say something and one client read it.
func (b *bench) talk(s stream, size int) {
	b.Helper()
	const piece = 16 << 10
	for said := 0; said < size; {
		b.send(s, input(bytes.Repeat([]byte("x"), piece)))
		said += piece
		for heard := 0; heard < piece; {
			response, err := s.Recv()
			if err != nil {
				b.Fatal(err)
			}
			heard += len(response.GetOutput())
		}
	}
}

// TestConnect_whoDoesNotReadGoes: clients that read nothing at all, not even how
// their stream ends, give their places to others.
func TestConnect_whoDoesNotReadGoes(t *testing.T) {
	t.Parallel()
	serving(t, func(b *bench) {
		quick, cancel := b.open()
		defer cancel()
		slow := []stream{}
		for range 31 {
			s, cancel := b.open()
			defer cancel()
			slow = append(slow, s)
		}
		refused, cancel := b.open()
		defer cancel()
		if err := b.ends(refused); grpcstatus.ReasonOf(err) != errorsv1.Reason_REASON_LIMIT_REACHED {
			b.Errorf("one too many got %v", err)
		}
		b.talk(quick, 1<<20)
		synctest.Wait()
		late, cancel := b.open()
		defer cancel()
		if _, err := late.Recv(); err != nil {
			b.Errorf("those that do not read keep their places: %v", err)
		}
		if err := b.ends(slow[0]); grpcstatus.ReasonOf(err) != errorsv1.Reason_REASON_LIMIT_REACHED {
			b.Errorf("one that was too slow got %v", err)
		}
	})
}

// TestConnect_stopping: a server that stops ends the streams of those who do not
// read too.
func TestConnect_stopping(t *testing.T) {
	t.Parallel()
	serving(t, func(b *bench) {
		quick, cancel := b.open()
		defer cancel()
		slow, cancel := b.open()
		defer cancel()
		b.talk(quick, 200<<10)
		b.server.StopStreams()
		synctest.Wait()
		for name, s := range map[string]stream{"quick": quick, "slow": slow} {
			if err := b.ends(s); status.Code(err) != codes.Unavailable {
				b.Errorf("the %s reader got %v", name, err)
			}
		}
		other, err := b.simulator.OpenConsole(b.Context(), ref)
		if err != nil {
			b.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if _, err := other.Write([]byte("x")); err != nil {
			b.Errorf("somebody still watches: %v", err)
		}
		_ = other.Close()
	})
}

// TestConnect_clientLeaves: by closing its side or by cancelling.
func TestConnect_clientLeaves(t *testing.T) {
	t.Parallel()
	serving(t, func(b *bench) {
		leaving, cancel := b.open()
		defer cancel()
		if err := leaving.CloseSend(); err != nil {
			b.Fatal(err)
		}
		if err := b.ends(leaving); err != io.EOF { //nolint:errorlint // As gRPC has it.
			b.Errorf("one that closes its side got %v", err)
		}
		cancelled, cancel := b.open()
		cancel()
		if err := b.ends(cancelled); status.Code(err) != codes.Canceled {
			b.Errorf("one that cancels got %v", err)
		}
	})
}

// TestConnect_bounds: what a client may send.
func TestConnect_bounds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		request *pb.ConnectRequest
		want    errorsv1.Reason
	}{
		"too much at once": {input(make([]byte, 64<<10+1)), errorsv1.Reason_REASON_INVALID_REQUEST},
		"nothing":          {&pb.ConnectRequest{}, errorsv1.Reason_REASON_INVALID_REQUEST},
		"open again": {&pb.ConnectRequest{Payload: &pb.ConnectRequest_Open{Open: &pb.Open{
			Bmc: &referencev1.BMCReference{Namespace: ref.Namespace, Name: ref.Name},
		}}}, errorsv1.Reason_REASON_INVALID_REQUEST},
		"break": {&pb.ConnectRequest{Payload: &pb.ConnectRequest_Break{Break: &pb.Break{}}}, errorsv1.Reason_REASON_UNSUPPORTED},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			serving(t, func(b *bench) {
				s, cancel := b.open()
				defer cancel()
				b.send(s, test.request)
				if err := b.ends(s); grpcstatus.ReasonOf(err) != test.want {
					b.Errorf("got %v, want %v", err, test.want)
				}
			})
		})
	}
}
