// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	// stuck holds all input up until the connection is closed, unless it is nil.
	stuck chan struct{}
	// lost is closed when the present connection is to break.
	lost chan struct{}
	// slow is how long each write takes.
	slow time.Duration
	// typed is what the guest was sent.
	typed []byte
}

// lose breaks the present connection.
func (c *counting) lose() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.lost)
	return nil
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
	c.lost = make(chan struct{})
	counted := &countedConn{ReadWriteCloser: conn, stuck: c.stuck, slow: c.slow, lost: c.lost, over: make(chan struct{})}
	counted.took = func(p []byte) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.typed = append(c.typed, p...)
	}
	counted.closed = sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.open--
		close(counted.over)
	})
	go func() {
		select {
		case <-counted.lost:
			_ = conn.Close()
		case <-counted.over:
		}
	}()
	return counted, nil
}

func (c *counting) counts() (opened, open int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.opened, c.open
}

type countedConn struct {
	io.ReadWriteCloser
	closed            func()
	took              func([]byte)
	stuck, lost, over chan struct{}
	slow              time.Duration
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.ReadWriteCloser.Read(p)
	select {
	case <-c.lost:
		if err != nil {
			// The cause of a fault may be any error, the end of a file too.
			err = fmt.Errorf("%w: %w", hypervisor.ErrUnavailable, io.EOF)
		}
	default:
	}
	return n, err
}

func (c *countedConn) Write(p []byte) (int, error) {
	if c.stuck != nil {
		select {
		case <-c.stuck:
		case <-c.over:
			return 0, io.ErrClosedPipe
		}
	}
	select {
	case <-time.After(c.slow):
	case <-c.over:
		return 0, io.ErrClosedPipe
	}
	c.took(p)
	return c.ReadWriteCloser.Write(p)
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

// takes connects as virtctl does.
func takes(t *testing.T, s *simulator.Simulator) io.ReadWriteCloser {
	t.Helper()
	other, err := s.OpenConsole(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	return other
}

func (c *counting) want(t *testing.T, what string, opened, open int) {
	t.Helper()
	synctest.Wait()
	if gotOpened, gotOpen := c.counts(); gotOpened != opened || gotOpen != open {
		t.Fatalf("%s: %d connections were opened, %d are open, want %d and %d", what, gotOpened, gotOpen, opened, open)
	}
}

// TestHub_leavesTheConsoleToWhoTookIt: who wants the console by other means has
// it, as long as nobody here types, comes, or the machine starts anew or moves.
func TestHub_leavesTheConsoleToWhoTookIt(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]func(t *testing.T, s *simulator.Simulator, hub *console.Hub, mine *console.Client){
		"somebody types": func(t *testing.T, _ *simulator.Simulator, _ *console.Hub, mine *console.Client) {
			if err := mine.Type(t.Context(), []byte("x")); err != nil {
				t.Fatal(err)
			}
		},
		"another client comes": func(t *testing.T, _ *simulator.Simulator, hub *console.Hub, _ *console.Client) {
			another := connect(t, hub)
			time.AfterFunc(time.Second, another.Close)
		},
		"the machine moves": func(t *testing.T, s *simulator.Simulator, _ *console.Hub, _ *console.Client) {
			if err := s.Migrate(ref); err != nil {
				t.Fatal(err)
			}
			time.Sleep(simulator.RealisticDelays().Move)
		},
		"the machine starts anew": func(t *testing.T, s *simulator.Simulator, _ *console.Hub, _ *console.Client) {
			if err := s.Restart(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			running(t, func(t *testing.T, s *simulator.Simulator, c *counting, hub *console.Hub) {
				mine := connect(t, hub)
				defer mine.Close()
				second := connect(t, hub) // Comes while the console is connected.
				defer second.Close()
				c.want(t, "at first", 1, 1)
				defer takes(t, s).Close()
				time.Sleep(50 * time.Second)
				c.want(t, "taken", 1, 0)
				time.Sleep(20 * time.Second)
				c.want(t, "taken back, in case that nobody has it", 2, 1)
				time.Sleep(5 * time.Second)
				defer takes(t, s).Close()
				time.Sleep(time.Hour)
				c.want(t, "taken again", 2, 0)
				back(t, s, hub, mine)
				c.want(t, "after that", 3, 1)
				time.Sleep(time.Second)
			})
		})
	}
}

// TestHub_comesBackByItself: nobody has to type after something between has hung
// up or broken down.
func TestHub_comesBackByItself(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cut    func(s *simulator.Simulator, c *counting) error
		within time.Duration
	}{
		"hung up":                {func(s *simulator.Simulator, _ *counting) error { return s.CutConsole(ref) }, 61 * time.Second},
		"moved":                  {func(s *simulator.Simulator, _ *counting) error { return s.Migrate(ref) }, simulator.RealisticDelays().Move},
		"the connection is lost": {func(_ *simulator.Simulator, c *counting) error { return c.lose() }, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			running(t, func(t *testing.T, s *simulator.Simulator, c *counting, hub *console.Hub) {
				client := connect(t, hub)
				defer client.Close()
				for n := range 3 { // Time and again, for it is nobody else who does it.
					c.want(t, "at first", n+1, 1)
					if err := test.cut(s, c); err != nil {
						t.Fatal(err)
					}
					time.Sleep(test.within)
					c.want(t, "after that", n+2, 1)
					time.Sleep(10 * time.Minute)
				}
			})
		})
	}
}

// TestHub_wantedOnItsWay: who types while the guest is between two nodes gets the
// console as soon as it is there, and does not lose it by having asked too early.
func TestHub_wantedOnItsWay(t *testing.T) {
	t.Parallel()
	running(t, func(t *testing.T, s *simulator.Simulator, c *counting, hub *console.Hub) {
		client := connect(t, hub)
		defer client.Close()
		c.want(t, "at first", 1, 1)
		if err := s.Migrate(ref); err != nil {
			t.Fatal(err)
		}
		time.Sleep(simulator.RealisticDelays().Move / 2)
		c.want(t, "on its way", 1, 0)
		if err := client.Type(t.Context(), []byte("x")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if tried, open := c.counts(); tried != 2 || open != 0 {
			t.Errorf("on its way, and wanted: tried %d times, %d are open, want 2 and none", tried, open)
		}
		time.Sleep(simulator.RealisticDelays().Move / 2)
		synctest.Wait()
		tried, open := c.counts()
		if open != 1 {
			t.Errorf("there: %d connections are open, want 1", open)
		}
		time.Sleep(time.Hour)
		c.want(t, "later", tried, 1)
	})
}

// TestHub_newGuestIsNoRetake: a guest that comes later than the time to take the
// console back is nobody's but ours.
func TestHub_newGuestIsNoRetake(t *testing.T) {
	t.Parallel()
	running(t, func(t *testing.T, s *simulator.Simulator, c *counting, hub *console.Hub) {
		client := connect(t, hub)
		defer client.Close()
		c.want(t, "at first", 1, 1)
		if err := s.Stop(t.Context(), ref, new(time.Duration)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		c.want(t, "while it is off", 1, 0)
		if err := s.Start(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		c.want(t, "on again", 2, 1)
		if err := s.CutConsole(ref); err != nil {
			t.Fatal(err)
		}
		time.Sleep(61 * time.Second)
		c.want(t, "hung up", 3, 1)
	})
}

// TestHub_stuckInputHoldsUpNobodyElse: a guest that takes no input leaves output
// and the other clients alone.
func TestHub_stuckInputHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	running(t, func(t *testing.T, _ *simulator.Simulator, c *counting, hub *console.Hub) {
		c.stuck = make(chan struct{})
		one, two := connect(t, hub), connect(t, hub)
		defer two.Close()
		synctest.Wait()
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := one.Type(ctx, []byte("waits")); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want it to wait for the guest", err)
			}
		}
		one.Close()
		if _, err := c.last.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		for {
			message, err := two.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if string(message.Output) == "x" {
				return
			}
		}
	})
}

// TestHub_lastWordsOfTheLastClient: what was typed reaches the guest although
// nobody waits for an answer.
func TestHub_lastWordsOfTheLastClient(t *testing.T) {
	t.Parallel()
	running(t, func(t *testing.T, _ *simulator.Simulator, c *counting, hub *console.Hub) {
		c.slow = time.Second
		client := connect(t, hub)
		synctest.Wait()
		if err := client.Type(t.Context(), []byte("poweroff")); err != nil {
			t.Fatal(err)
		}
		client.Close()
		synctest.Wait()
		if string(c.typed) != "poweroff" {
			t.Errorf("the guest has got %q", c.typed)
		}
	})
}

// TestHub_lastWordsOfTheGuest: a machine that goes takes nothing away that it has
// said.
func TestHub_lastWordsOfTheGuest(t *testing.T) {
	t.Parallel()
	running(t, func(t *testing.T, s *simulator.Simulator, c *counting, hub *console.Hub) {
		client := connect(t, hub)
		defer client.Close()
		synctest.Wait()
		if _, err := c.last.Write([]byte("last words")); err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(ref); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		var said []byte
		for {
			message, err := client.Next(t.Context())
			if err != nil {
				if !errors.Is(err, hypervisor.ErrNotFound) {
					t.Errorf("got error %v, want %v", err, hypervisor.ErrNotFound)
				}
				break
			}
			said = append(said, message.Output...)
		}
		if string(said) != "last words" {
			t.Errorf("the guest has said %q", said)
		}
	})
}

// TestHub_boundsWhatWaits: a client that does not read is ended by changes of the
// state too.
func TestHub_boundsWhatWaits(t *testing.T) {
	t.Parallel()
	running(t, func(t *testing.T, s *simulator.Simulator, c *counting, hub *console.Hub) {
		client := connect(t, hub)
		defer client.Close()
		const changes = 10_000
		for n := range changes {
			c.want(t, "at first", n+1, 1)
			if err := s.Migrate(ref); err != nil {
				t.Fatal(err)
			}
			time.Sleep(simulator.RealisticDelays().Move)
			synctest.Wait()
		}
		if _, err := client.Next(t.Context()); !errors.Is(err, console.ErrTooSlow) {
			t.Errorf("after %d changes of the state: got error %v, want %v", changes, err, console.ErrTooSlow)
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
		if err := client.Type(t.Context(), []byte("x")); !errors.Is(err, console.ErrReadOnly) {
			t.Errorf("got error %v, want %v", err, console.ErrReadOnly)
		}
	})
}
