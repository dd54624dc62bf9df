// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"kubevirtbmc.dev/test/cluster"
	"kubevirtbmc.dev/test/launch"
)

// sign is what the serial console shows of what a machine boots from: at level
// real, and at level kubevirt.
type sign struct{ real, pretended string }

var (
	disk = sign{strings.TrimSpace(cluster.GuestDiskText), "Guest booted from disk root"}
	cd   = sign{strings.TrimSpace(cluster.GuestCDText), "Guest booted from cdrom installer"}
	// firmware is what comes before either.
	firmware = sign{"SeaBIOS", "Booting from"}
)

func (s sign) at(level cluster.Level) string {
	if level == cluster.LevelKubeVirt {
		return s.pretended
	}
	return s.real
}

// console is a client of ConsoleService: grpcurl, which stays connected over
// power cycles.
type console struct {
	*bed
	// heard wakes up whoever waits for more.
	heard chan struct{}

	mu     sync.Mutex
	output strings.Builder
	states []string
	err    error
}

// console connects to the machine's serial port through the BMC.
func (b *bed) console() *console {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), filepath.Join(launch.Root(), "bin", "grpcurl"),
		"-cacert", b.caFile, "-expand-headers", "-H", "authorization: Bearer ${KUBEVIRTBMC_TOKEN}", "-d", "@",
		fmt.Sprintf("127.0.0.1:%d", b.ipmiPort+2), "bmc.console.v1.ConsoleService/Connect")
	cmd.Env = append(cmd.Environ(), "KUBEVIRTBMC_TOKEN="+token)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	c := &console{bed: b, heard: make(chan struct{}, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.listen(stdout)
	}()
	b.Cleanup(func() {
		_ = stdin.Close() // The client has nothing more to say, and the call ends.
		<-ended
		if err := cmd.Wait(); err != nil && b.Context().Err() == nil {
			b.Errorf("grpcurl: %v\n%s", err, stderr.String())
		}
	})
	if _, err := fmt.Fprintf(stdin, `{"open":{"bmc":{"namespace":%q,"name":%q}}}`, b.namespace, b.name); err != nil {
		b.Fatal(err)
	}
	return c
}

// listen takes the server's messages until there are no more.
func (c *console) listen(stdout io.Reader) {
	for messages := json.NewDecoder(stdout); ; {
		var message struct {
			State  string
			Output []byte
		}
		err := messages.Decode(&message)
		c.mu.Lock()
		c.output.Write(message.Output)
		if message.State != "" {
			c.states = append(c.states, strings.TrimPrefix(message.State, "CONSOLE_STATE_"))
		}
		c.err = err
		c.mu.Unlock()
		select {
		case c.heard <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// says waits until the console shows the sign, and forgets what it has shown.
func (c *console) says(s sign) {
	c.Helper()
	want := s.at(c.cluster.Level)
	for end := time.After(patience); ; {
		c.mu.Lock()
		shown, err := c.output.String(), c.err
		_, after, found := strings.Cut(shown, want)
		if found {
			c.output.Reset()
			c.output.WriteString(after)
		}
		c.mu.Unlock()
		switch {
		case found:
			c.Logf("console: %s", want)
			return
		case err != nil && !errors.Is(err, io.EOF):
			c.Fatalf("console: %v", err)
		case err != nil:
			c.Fatalf("console ended before %q:\n%s", want, shown[max(0, len(shown)-2000):])
		}
		select {
		case <-c.heard:
		case <-end:
			c.Fatalf("console does not show %q:\n%s", want, shown[max(0, len(shown)-2000):])
		}
	}
}

// forget drops what the console has shown and told of its states.
func (c *console) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.output.Reset()
	c.states = nil
}

// connections waits until the console has told of these states, in that order.
func (c *console) connections(want ...string) {
	c.Helper()
	c.eventually("console "+strings.Join(want, ", "), func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return strings.Join(c.states, " ") == strings.Join(want, " ")
	})
	c.Logf("console: %s", strings.Join(want, ", "))
}
