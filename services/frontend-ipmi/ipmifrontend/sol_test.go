// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package ipmifrontend_test

import (
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/fakeservice"
)

// terminal is a client that runs in a terminal of its own.
type terminal struct {
	t    *testing.T
	name string
	keys io.WriteCloser
	out  *lockedBuffer
	done chan struct{}
	err  error
}

// interactive starts a program in a pseudo-terminal.
func interactive(t *testing.T, program string, args ...string) *terminal {
	t.Helper()
	script := client(t, "script")
	quoted := []string{program}
	for _, a := range args {
		quoted = append(quoted, "'"+a+"'")
	}
	cmd := exec.Command(script, "-qefc", strings.Join(quoted, " "), "/dev/null")
	s := &terminal{t: t, name: program, out: &lockedBuffer{}, done: make(chan struct{})}
	keys, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.keys, cmd.Stdout, cmd.Stderr = keys, s.out, s.out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		s.err = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-s.done
	})
	return s
}

// sees waits until the terminal shows a text.
func (s *terminal) sees(text string) {
	s.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(s.out.String(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s does not show %q but %q", s.name, text, s.out.String())
		}
	}
}

func (s *terminal) types(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.keys, text); err != nil {
		s.t.Fatal(err)
	}
}

// ends waits until the client has ended.
func (s *terminal) ends() error {
	s.t.Helper()
	select {
	case <-s.done:
		return s.err
	case <-time.After(20 * time.Second):
		s.t.Fatalf("%s does not end; it shows %q", s.name, s.out.String())
		return nil
	}
}

// solActivate starts ipmitool's console.
func (b *bench) solActivate(t *testing.T, args ...string) *terminal {
	t.Helper()
	all := []string{"-I", "lanplus", "-H", "127.0.0.1", "-p", strconv.Itoa(int(b.port())), "-U", "admin", "-P", "password", "-N", "1", "-R", "4", "sol", "activate"}
	return interactive(t, client(t, "ipmitool"), append(all, args...)...)
}

func (b *bench) serial() *fakeservice.Serial { return b.services.Serial(b.reference()) }

func (b *bench) typed(t *testing.T, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("guest gets %q", text), func() bool { return strings.Contains(b.serial().Typed(), text) })
}

func TestIpmitool_sol(t *testing.T) {
	t.Parallel()
	b := start(t)
	guest := b.serial()
	tool := b.solActivate(t)
	tool.sees("SOL Session operational")
	guest.Say("login: ")
	tool.sees("login: ")
	tool.types("root\r")
	tool.sees("root\r")
	b.typed(t, "root\r")

	// Much at once, both ways.
	var long strings.Builder
	for i := range 4000 {
		fmt.Fprintf(&long, "line %d\r\n", i)
	}
	guest.Say(long.String()[:30<<10])
	tool.sees(long.String()[:30<<10])

	// A break is acknowledged although the hypervisor has none, and the console
	// goes on.
	tool.types("\r~B")
	tool.sees("[send break]")
	tool.types("after the break\r")
	b.typed(t, "after the break\r")

	// The machine is off for a while: what is typed meanwhile goes nowhere.
	guest.SetConnected(false)
	tool.types("lost\r")
	guest.SetConnected(true)
	guest.Say("UEFI firmware")
	tool.sees("UEFI firmware")
	// A replica of the service dies.
	_, _, before := guest.Watchers()
	guest.Cut()
	eventually(t, "a new stream", func() bool {
		open, _, ever := guest.Watchers()
		return open == 1 && ever > before
	})
	guest.Say("still here")
	tool.sees("still here")
	tool.types("typed after that\r")
	b.typed(t, "typed after that\r")

	if out, ok := b.ipmitool(t, "sol", "activate"); ok || !strings.Contains(out, "SOL payload already active on another session") {
		t.Errorf("a second writer: %q, %v", out, ok)
	}
	watching := b.solActivate(t, "instance=2")
	watching.sees("SOL Session operational")
	guest.Say("for both")
	tool.sees("for both")
	watching.sees("for both")
	watching.types("not for the guest\r")
	tool.types("for the guest\r")
	b.typed(t, "for the guest\r")
	if strings.Contains(guest.Typed(), "not for the guest") {
		t.Error("one who watches types at the guest")
	}
	watching.types("\r~.")
	watching.sees("terminated ipmitool")
	if err := watching.ends(); err != nil {
		t.Errorf("the one who watches ends with %v", err)
	}
	tool.types("\r~.")
	tool.sees("terminated ipmitool")
	if err := tool.ends(); err != nil {
		t.Errorf("it ends with %v", err)
	}
	eventually(t, "no stream", func() bool { open, _, _ := guest.Watchers(); return open == 0 })
	var opened int
	for _, c := range b.services.Calls() {
		if c.What == "open console" {
			opened++
			if c.Caller.User != "admin" || c.Caller.Protocol != "ipmi" || c.Request == "" {
				t.Errorf("a console is opened without its origin: %+v", c)
			}
		}
	}
	if opened == 0 {
		t.Error("no console was opened")
	}
}

func TestIpmitool_solDeactivate(t *testing.T) {
	t.Parallel()
	b := start(t)
	if out, ok := b.ipmitool(t, "sol", "deactivate"); ok || !strings.Contains(out, "SOL payload already de-activated") {
		t.Errorf("deactivate what is not active: %q, %v", out, ok)
	}
	tool := b.solActivate(t)
	tool.sees("SOL Session operational")
	if out, ok := b.ipmitool(t, "sol", "deactivate"); !ok {
		t.Errorf("deactivate: %q", out)
	}
	again := b.solActivate(t)
	again.sees("SOL Session operational")
	tool.types("nobody reads this\r")
	tool.sees("SOL session closed by BMC")
	if err := tool.ends(); err == nil {
		t.Error("a client whose console was taken ends well")
	}
	again.types("mine now\r")
	b.typed(t, "mine now\r")
	if strings.Contains(b.serial().Typed(), "nobody reads this") {
		t.Error("a console that was taken still types")
	}
}

// github.com/ipmitool/ipmitool/issues/254: output while the console comes and
// goes must not be taken for the answer to a command.
func TestIpmitool_solLooptest(t *testing.T) {
	t.Parallel()
	b := start(t)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				b.serial().Say("noise\r\n")
			}
		}
	}()
	out, ok := b.ipmitool(t, "sol", "looptest", "200", "5")
	close(stop)
	<-done
	if !ok || strings.Count(out, "SOL Session operational") != 200 || strings.Contains(out, "rror") || strings.Contains(out, "Info:") {
		t.Errorf("looptest: %v, %d times operational", ok, strings.Count(out, "SOL Session operational"))
	}
}

func TestIpmitool_solInfo(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.bmc.Ipmi.Udp.ClientPort = 30623
	b.apply(t)
	out, ok := b.ipmitool(t, "sol", "info")
	if !ok {
		t.Error("sol info failed")
	}
	for _, want := range []string{
		"Set in progress                 : set-complete", "Enabled                         : true",
		"Force Encryption                : true", "Force Authentication            : true",
		"Privilege Level                 : OPERATOR", "Character Accumulate Level (ms) : 10",
		"Character Send Threshold        : 251", "Retry Count                     : 7",
		"Retry Interval (ms)             : 250", "Volatile Bit Rate (kbps)        : 115.2",
		"Non-Volatile Bit Rate (kbps)    : 115.2", "Payload Channel                 : 1 (0x01)",
		"Payload Port                    : 30623",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("sol info has no %q", want)
		}
	}
	// The client knows another port: it must not take SOL from there.
	tool := b.solActivate(t)
	tool.sees("BMC requests SOL session on different port")
	if err := tool.ends(); err == nil {
		t.Error("it goes on with another port")
	}
}

func TestIpmitool_solSet(t *testing.T) {
	t.Parallel()
	b := start(t)
	for _, tc := range []struct {
		args []string
		ok   bool
		want string // In sol info.
	}{
		{[]string{"retry-count", "3"}, true, "Retry Count                     : 3"},
		{[]string{"retry-interval", "10"}, true, "Retry Interval (ms)             : 100"},
		{[]string{"character-accumulate-level", "4"}, true, "Character Accumulate Level (ms) : 20"},
		{[]string{"character-send-threshold", "100"}, true, "Character Send Threshold        : 100"},
		{[]string{"volatile-bit-rate", "9.6"}, true, "Volatile Bit Rate (kbps)        : 9.6"},
		{[]string{"privilege-level", "admin"}, true, "Privilege Level                 : ADMINISTRATOR"},
		{[]string{"privilege-level", "user"}, false, "Privilege Level                 : ADMINISTRATOR"},
		{[]string{"force-encryption", "false"}, false, "Force Encryption                : true"},
		{[]string{"enabled", "false"}, true, "Enabled                         : false"},
	} {
		if out, ok := b.ipmitool(t, append([]string{"sol", "set"}, tc.args...)...); ok != tc.ok {
			t.Errorf("set %v: %v, want %v: %s", tc.args, ok, tc.ok, out)
		}
		if out, _ := b.ipmitool(t, "sol", "info"); !strings.Contains(out, tc.want) {
			t.Errorf("after set %v there is no %q", tc.args, tc.want)
		}
	}
	if out, ok := b.ipmitool(t, "sol", "activate"); ok || !strings.Contains(out, "SOL payload disabled") {
		t.Errorf("activate while it is disabled: %q", out)
	}
}

func TestIpmitool_solRefusals(t *testing.T) {
	t.Parallel()
	b := start(t)
	if out, ok := b.ipmitoolAs(t, []string{"-U", "reader", "-P", "password3", "-L", "USER"}, "sol", "activate"); ok || !strings.Contains(out, "Insufficient privilege level") {
		t.Errorf("a reader: %q", out)
	}
	for reason, want := range map[errorsv1.Reason]string{
		errorsv1.Reason_REASON_NO_CONSOLE:             "SOL payload disabled",
		errorsv1.Reason_REASON_LIMIT_REACHED:          "SOL payload activation limit reached",
		errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE: "Node busy",
		errorsv1.Reason_REASON_PERMISSION_DENIED:      "Insufficient privilege level",
	} {
		b.serial().Refuse(grpcstatus.New(reason, "x"))
		if out, ok := b.ipmitool(t, "sol", "activate"); ok || !strings.Contains(out, want) {
			t.Errorf("%v: %q, want %q", reason, out, want)
		}
	}
	b.serial().Refuse(nil)
	b.services.SetDelay(5 * time.Second)
	begun := time.Now()
	if out, ok := b.ipmitool(t, "sol", "activate"); ok || !strings.Contains(out, "Timeout") {
		t.Errorf("a service that does not answer: %q", out)
	}
	if took := time.Since(begun); took > 4*time.Second {
		t.Errorf("the refusal took %v", took)
	}
	b.services.SetDelay(0)
	tool := b.solActivate(t)
	tool.sees("SOL Session operational")
}

// A guest that takes no input for a while loses nothing of what is pasted: the
// console is held back by packets that are accepted in part.
func TestIpmitool_solGuestTakesNoInput(t *testing.T) {
	t.Parallel()
	b := start(t)
	guest := b.serial()
	guest.SetEcho(false)
	resume := guest.Stall()
	defer resume()
	tool := b.solActivate(t)
	tool.sees("SOL Session operational")
	var paste strings.Builder
	for i := range 30_000 {
		fmt.Fprintf(&paste, "%d,", i)
	}
	tool.types(paste.String())
	time.Sleep(3 * time.Second) // Long enough for everything on the way to fill.
	if got := len(guest.Typed()); got > 0 {
		t.Errorf("the guest gets %d characters although it takes none", got)
	}
	resume()
	eventually(t, "end of the paste", func() bool { return len(guest.Typed()) >= paste.Len() })
	if guest.Typed() != paste.String() {
		t.Errorf("of %d characters the guest gets %d, or others", paste.Len(), len(guest.Typed()))
	}
}
