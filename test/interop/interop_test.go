// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package interop_test runs real BMC clients against a running standalone
// process. Clients that are not installed skip their tests by name.
package interop_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"kubevirtbmc.dev/test/launch"
)

// patience is how long a machine may take to reach a state, and a client's
// command to end.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	status := m.Run()
	launch.CleanUp()
	os.Exit(status)
}

// client is a program to run.
type client struct {
	t    *testing.T
	path string
	// args come before those of each run.
	args []string
	env  []string
}

// need returns a client, or skips the test when its program is missing.
func need(t *testing.T, program string, args ...string) client {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + program)
	}
	if err != nil {
		t.Skipf("%s is not installed (make clients)", program)
	}
	return client{t: t, path: path, args: args}
}

// result of a run.
type result struct {
	stdout, stderr string
	exit           int
}

func (r result) String() string {
	return fmt.Sprintf("exit %d\nstdout: %s\nstderr: %s", r.exit, r.stdout, r.stderr)
}

// run runs the client once.
func (c client) run(args ...string) result {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.path, append(append([]string{}, c.args...), args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// Python clients would trust these instead of what they are told.
	for _, kv := range os.Environ() {
		switch name, _, _ := strings.Cut(kv, "="); name {
		case "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR":
		default:
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, c.env...)
	err := cmd.Run()
	if cmd.ProcessState == nil {
		c.t.Fatalf("run %s: %v", c.path, err)
	}
	return result{strings.TrimRight(stdout.String(), " \n"), strings.TrimRight(stderr.String(), " \n"), cmd.ProcessState.ExitCode()}
}

// want runs the client and fails the test unless it succeeds and prints a text.
func (c client) want(text string, args ...string) result {
	c.t.Helper()
	r := c.run(args...)
	if r.exit != 0 || !strings.Contains(r.stdout, text) {
		c.t.Errorf("%q: %v\nwant exit 0 and %q", args, r, text)
	}
	return r
}

// wantFailure runs the client and fails the test unless it fails and says why.
func (c client) wantFailure(text string, args ...string) {
	c.t.Helper()
	r := c.run(args...)
	if r.exit == 0 || !strings.Contains(r.stdout+r.stderr, text) {
		c.t.Errorf("%q: %v\nwant a failure with %q", args, r, text)
	}
}

// rest is a client of the REST API, the reference that protocols are compared
// with.
type rest struct {
	client
	base string
}

func newREST(t *testing.T, s *launch.Standalone, bmc string) rest {
	t.Helper()
	return rest{
		need(t, "curl", "-sS", "--cacert", s.CAFile, "-H", "Authorization: Bearer "+s.Token),
		fmt.Sprintf("https://%s/v1/namespaces/default/bmcs/%s", s.API(), bmc),
	}
}

type power struct {
	State      string `json:"state"`
	InstanceID string `json:"instance_id"`
}

func (r rest) get(path string, into any) {
	r.t.Helper()
	got := r.run(r.base + path)
	if err := json.Unmarshal([]byte(got.stdout), into); err != nil {
		r.t.Fatalf("GET %s: %v: %v", path, err, got)
	}
}

func (r rest) power() power {
	r.t.Helper()
	var answer struct{ Status power }
	r.get("/power", &answer)
	return answer.Status
}

// waitPower waits until the machine has a power state.
func (r rest) waitPower(state string) power {
	r.t.Helper()
	var got power
	eventually(r.t, "power state "+state, func() bool {
		got = r.power()
		return got.State == state
	})
	return got
}

type override struct {
	Persistence, Target, Mode string
}

func (r rest) override() override {
	r.t.Helper()
	var answer struct {
		Status struct{ Override override }
	}
	r.get("/boot", &answer)
	return answer.Status.Override
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within %v", what, patience)
		}
	}
}
