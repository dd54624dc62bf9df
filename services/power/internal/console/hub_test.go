// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/services/power/internal/console"
)

var ref = hypervisor.Ref{Namespace: "default", Name: "vm"}

// counting counts the connections to the serial port and can fail them.
type counting struct {
	hypervisor.Console
	mu     sync.Mutex
	opened int
	open   int
	fail   error
	last   io.Writer
}

func (c *counting) OpenConsole(ctx context.Context, ref hypervisor.Ref) (io.ReadWriteCloser, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opened++
	if c.fail != nil {
		return nil, c.fail
	}
	conn, err := c.Console.OpenConsole(ctx, ref)
	if err != nil {
		return nil, err
	}
	c.open++
	c.last = conn
	return &countedConn{ReadWriteCloser: conn, closed: sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.open--
	})}, nil
}

func (c *counting) counts() (opened, open int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.opened, c.open
}

type countedConn struct {
	io.ReadWriteCloser
	closed func()
}

func (c *countedConn) Close() error {
	c.closed()
	return c.ReadWriteCloser.Close()
}

// running calls f with a hub on a machine that runs.
func running(t *testing.T, f func(t *testing.T, s *simulator.Simulator, c *counting, hub *console.Hub)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := simulator.New(simulator.Config{})
		if err := s.AddMachine(simulator.Spec{Ref: ref, RunStrategy: hypervisor.RunStrategyAlways}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		c := &counting{Console: s}
		f(t, s, c, console.New(console.Config{Machines: s, Console: c, Log: slog.New(slog.DiscardHandler)}))
		synctest.Wait()
		if _, open := c.counts(); open != 0 {
			t.Errorf("%d connections are left open", open)
		}
	})
}

func connect(t *testing.T, hub *console.Hub) *console.Client {
	t.Helper()
	client, err := hub.Connect(ref, false)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestHub_oneConnectionWhileSomebodyWatches(t *testing.T) {
	t.Parallel()
	running(t, func(t *testing.T, _ *simulator.Simulator, c *counting, hub *console.Hub) {
		if opened, _ := c.counts(); opened != 0 {
			t.Errorf("%d connections without a client", opened)
		}
		var clients []*console.Client
		for range 5 {
			clients = append(clients, connect(t, hub))
			synctest.Wait()
		}
		if opened, open := c.counts(); opened != 1 || open != 1 {
			t.Errorf("%d connections were opened, %d are open, want 1 and 1", opened, open)
		}
		for _, client := range clients {
			client.Close()
		}
		synctest.Wait()
		if _, open := c.counts(); open != 0 {
			t.Errorf("%d connections are open without a client", open)
		}
		again := connect(t, hub)
		synctest.Wait()
		if _, open := c.counts(); open != 1 {
			t.Errorf("%d connections are open, want 1", open)
		}
		again.Close()
	})
}

func TestHub_slowReaderIsEndedAlone(t *testing.T) {
	t.Parallel()
	running(t, func(t *testing.T, _ *simulator.Simulator, c *counting, hub *console.Hub) {
		slow, quick := connect(t, hub), connect(t, hub)
		defer slow.Close()
		defer quick.Close()
		synctest.Wait()
		line := bytes.Repeat([]byte("x"), 10_000)
		read := 0
		for range 50 {
			if _, err := c.last.Write(line); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			for read < len(line) {
				message, err := quick.Next(t.Context())
				if err != nil {
					t.Fatalf("the quick reader was ended: %v", err)
				}
				read += len(message.Output)
			}
			read -= len(line)
		}
		for {
			if _, err := slow.Next(t.Context()); err != nil {
				if !errors.Is(err, console.ErrTooSlow) {
					t.Errorf("the slow reader got %v, want %v", err, console.ErrTooSlow)
				}
				break
			}
		}
	})
}

func TestHub_leavesTheConsoleToWhoTookIt(t *testing.T) {
	t.Parallel()
	running(t, func(t *testing.T, s *simulator.Simulator, c *counting, hub *console.Hub) {
		for range 2 { // The second comes while the console is connected.
			client := connect(t, hub)
			defer client.Close()
			synctest.Wait()
		}
		other, err := s.OpenConsole(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		time.Sleep(time.Minute)
		synctest.Wait()
		if opened, open := c.counts(); opened != 1 || open != 0 {
			t.Errorf("%d connections were opened, %d are open, want 1 and 0", opened, open)
		}
		again := connect(t, hub)
		defer again.Close()
		synctest.Wait()
		if opened, open := c.counts(); opened != 2 || open != 1 {
			t.Errorf("after another client: %d connections were opened, %d are open, want 2 and 1", opened, open)
		}
	})
}

func TestHub_limitsClients(t *testing.T) {
	t.Parallel()
	running(t, func(t *testing.T, _ *simulator.Simulator, _ *counting, hub *console.Hub) {
		for range 1000 {
			client, err := hub.Connect(ref, false)
			if err != nil {
				if !errors.Is(err, console.ErrTooMany) {
					t.Errorf("got error %v, want %v", err, console.ErrTooMany)
				}
				return
			}
			defer client.Close()
		}
		t.Error("nothing limits the number of clients")
	})
}

func TestHub_retriesWithBackOff(t *testing.T) {
	t.Parallel()
	running(t, func(t *testing.T, _ *simulator.Simulator, c *counting, hub *console.Hub) {
		c.fail = hypervisor.ErrUnavailable
		client := connect(t, hub)
		defer client.Close()
		time.Sleep(time.Minute)
		opened, _ := c.counts()
		if opened < 5 || opened > 30 {
			t.Errorf("%d attempts in a minute", opened)
		}
		c.mu.Lock()
		c.fail = nil
		c.mu.Unlock()
		time.Sleep(10 * time.Second)
		for {
			message, err := client.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if message.State == console.Connected {
				return
			}
		}
	})
}

func TestClient_readOnly(t *testing.T) {
	t.Parallel()
	running(t, func(t *testing.T, _ *simulator.Simulator, _ *counting, hub *console.Hub) {
		client, err := hub.Connect(ref, true)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if _, err := client.Write([]byte("x")); !errors.Is(err, console.ErrReadOnly) {
			t.Errorf("got error %v, want %v", err, console.ErrReadOnly)
		}
	})
}
