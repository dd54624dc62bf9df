// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package remote_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract"
	"kubevirtbmc.dev/pkg/hypervisor/remote"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/pkg/hypervisor/simulator/simulatortest"
)

// pair is a server of a hypervisor and a client of it.
type pair struct {
	client *remote.Client
	// serve starts a server; another one after it is a restart.
	serve func() (stop func())
}

func newPair(t *testing.T, h hypervisor.Hypervisor) *pair {
	t.Helper()
	listeners := make(chan *bufconn.Listener, 1)
	connection, err := grpc.NewClient("passthrough:///hypervisor",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			select {
			case l := <-listeners:
				listeners <- l
				return l.DialContext(ctx)
			default:
				return nil, errors.New("no server")
			}
		}))
	if err != nil {
		t.Fatal(err)
	}
	client := remote.NewClient(connection, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- client.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run client: %v", err)
		}
		if err := connection.Close(); err != nil {
			t.Errorf("close connection: %v", err)
		}
	})
	return &pair{client: client, serve: func() func() {
		l := bufconn.Listen(1 << 16)
		server := grpc.NewServer()
		remote.Register(server, h)
		go func() { _ = server.Serve(l) }()
		listeners <- l
		return func() {
			<-listeners
			server.Stop()
		}
	}}
}

func TestContract(t *testing.T) {
	t.Parallel()
	newBench := func(t *testing.T, delays simulator.Delays) contract.Bench {
		s := simulator.New(simulator.Config{Delays: delays})
		p := newPair(t, s)
		t.Cleanup(p.serve())
		if err := p.client.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
		return simulatortest.Bench(s, p.client)
	}
	contract.Run(t, func(t *testing.T) contract.Bench {
		bench := newBench(t, simulator.FastDelays())
		bench.Isolate = func(t *testing.T, test func(*testing.T, contract.Bench)) {
			synctest.Test(t, func(t *testing.T) {
				test(t, simulatortest.Slow(newBench(t, simulator.RealisticDelays())))
			})
		}
		return bench
	})
}

func TestClient_outlivesItsServer(t *testing.T) {
	t.Parallel()
	s := simulator.New(simulator.Config{Delays: simulator.FastDelays()})
	kept := hypervisor.Ref{Namespace: "default", Name: "kept"}
	gone := hypervisor.Ref{Namespace: "default", Name: "gone"}
	for _, ref := range []hypervisor.Ref{kept, gone} {
		if err := s.AddMachine(simulator.Spec{Ref: ref}); err != nil {
			t.Fatal(err)
		}
	}
	p := newPair(t, s)
	if _, err := p.client.Get(kept); !errors.Is(err, hypervisor.ErrUnavailable) {
		t.Errorf("before the first listing: got error %v, want %v", err, hypervisor.ErrUnavailable)
	}
	stop := p.serve()
	if err := p.client.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop()

	if _, err := p.client.Get(kept); err != nil {
		t.Errorf("the cache is lost with the connection: %v", err)
	}
	if err := p.client.Start(t.Context(), kept); !errors.Is(err, hypervisor.ErrUnavailable) {
		t.Errorf("start without a server: got error %v, want %v", err, hypervisor.ErrUnavailable)
	}
	if err := s.DeleteMachine(gone); err != nil {
		t.Fatal(err)
	}
	heard := make(chan struct{}, 1)
	defer p.client.Subscribe(func(ref hypervisor.Ref) {
		if ref == gone {
			select {
			case heard <- struct{}{}:
			default:
			}
		}
	})()
	defer p.serve()()
	select {
	case <-heard:
	case <-time.After(20 * time.Second):
		t.Fatal("nobody said that the machine is gone")
	}
	if _, err := p.client.Get(gone); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Errorf("deleted machine: got error %v, want %v", err, hypervisor.ErrNotFound)
	}
}
