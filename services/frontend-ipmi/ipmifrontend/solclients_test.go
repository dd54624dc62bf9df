// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package ipmifrontend_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// ipmiconsole starts FreeIPMI's console.
func (b *bench) ipmiconsole(t *testing.T, args ...string) *terminal {
	t.Helper()
	all := []string{"-h", b.address(), "-u", "admin", "-p", "password", "-I", "17"}
	return interactive(t, client(t, "ipmiconsole"), append(all, args...)...)
}

func TestIpmiconsole(t *testing.T) {
	t.Parallel()
	b := start(t)
	guest := b.serial()
	guest.SetBreak(true)
	tool := b.ipmiconsole(t)
	tool.sees("[SOL established]")
	guest.Say("login: ")
	tool.sees("login: ")
	tool.types("root\r")
	tool.sees("root\r")
	b.typed(t, "root\r")
	var long strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&long, "line %d\r\n", i)
	}
	guest.Say(long.String())
	tool.sees(long.String())
	tool.types("&B")
	eventually(t, "a break", func() bool { return guest.Breaks() == 1 })
	tool.types("after the break\r")
	b.typed(t, "after the break\r")

	// Unless it is told not to, FreeIPMI takes the console from whoever has it.
	thief := b.ipmiconsole(t)
	thief.sees("[SOL established]")
	tool.sees("[SOL session stolen]")
	_ = tool.ends() // Its exit status is 0 all the same.
	polite := b.ipmiconsole(t, "--dont-steal")
	polite.sees("SOL in use")
	_ = polite.ends()
	guest.Say("the thief's")
	thief.sees("the thief's")
	thief.types("&.")
	thief.sees("[closing the connection]")
	if err := thief.ends(); err != nil {
		t.Errorf("it ends with %v", err)
	}
	eventually(t, "no stream", func() bool { open, _, _ := guest.Watchers(); return open == 0 })
}

func TestIpmiconsole_deactivate(t *testing.T) {
	t.Parallel()
	b := start(t)
	tool := b.solActivate(t)
	tool.sees("SOL Session operational")
	if out, ok := run(t, client(t, "ipmiconsole"), "-h", b.address(), "-u", "admin", "-p", "password", "-I", "17", "--deactivate"); !ok {
		t.Errorf("deactivate: %s", out)
	}
	if open, _, _ := b.serial().Watchers(); open != 0 {
		t.Errorf("%d streams are left", open)
	}
}

// pyghmiConsole shows what the guest says and types the lines that it is given.
const pyghmiConsole = `
import sys, time
from pyghmi.ipmi import console
from pyghmi.ipmi.private import session

port, force = int(sys.argv[1]), sys.argv[2] == 'force'
shown = ''
def show(data):
    global shown
    if isinstance(data, dict):
        print('event', data, flush=True)
        return
    shown += data.decode() if isinstance(data, bytes) else data

def wait(done, what):
    until = time.time() + 15
    while not done():
        if time.time() > until:
            print('no', what, repr(shown), flush=True)
            sys.exit(1)
        console.Console.wait_for_rsp(0.1)

c = console.Console(bmc='127.0.0.1', port=port, userid='admin', password='password', iohandler=show, force=force)
wait(lambda: c.connected or c.broken, 'connection')
if c.broken:
    sys.exit(2)
print('connected', flush=True)
for word in sys.argv[3:]:
    if word == 'BREAK':
        c.send_break()
    elif word == 'STAY':
        wait(lambda: c.broken, 'end')
        sys.exit(3)
    else:
        c.send_data(word)
        wait(lambda: word in shown or c.broken, word)
print('saw everything', flush=True)
c.close()
`

func (b *bench) pyghmiConsole(t *testing.T, args ...string) (string, bool) {
	t.Helper()
	return run(t, debianPython, append([]string{"-c", pyghmiConsole, fmt.Sprint(b.port())}, args...)...)
}

func needPyghmi(t *testing.T) {
	t.Helper()
	if err := exec.CommandContext(t.Context(), debianPython, "-c", "import pyghmi").Run(); err != nil {
		t.Skipf("pyghmi is not installed for %s", debianPython)
	}
}

func TestPyghmi_console(t *testing.T) {
	t.Parallel()
	needPyghmi(t)
	b := start(t)
	guest := b.serial()
	guest.SetBreak(true)
	long := strings.Repeat("0123456789abcdef", 100)
	if out, ok := b.pyghmiConsole(t, "polite", "root", long, "BREAK", "after the break"); !ok || !strings.Contains(out, "saw everything") {
		t.Errorf("pyghmi: %s", out)
	}
	if got, want := guest.Typed(), "root"+long+"after the break"; got != want {
		t.Errorf("the guest gets %q, want %q", got, want)
	}
	if guest.Breaks() != 1 {
		t.Errorf("%d breaks", guest.Breaks())
	}
	eventually(t, "no stream", func() bool { open, _, _ := guest.Watchers(); return open == 0 })

	tool := b.solActivate(t)
	tool.sees("SOL Session operational")
	if out, ok := b.pyghmiConsole(t, "polite", "x"); ok || !strings.Contains(out, "SOL Session active for another client") {
		t.Errorf("beside another writer: %s", out)
	}
	if out, ok := b.pyghmiConsole(t, "force", "mine"); !ok || !strings.Contains(out, "saw everything") {
		t.Errorf("with force: %s", out)
	}
}

// One whose console is taken is told so.
func TestPyghmi_consoleTaken(t *testing.T) {
	t.Parallel()
	needPyghmi(t)
	b := start(t)
	type result struct {
		out string
		ok  bool
	}
	done := make(chan result)
	go func() {
		out, ok := b.pyghmiConsole(t, "polite", "typed", "STAY")
		done <- result{out, ok}
	}()
	b.typed(t, "typed")
	if out, ok := b.ipmitool(t, "sol", "deactivate"); !ok {
		t.Errorf("deactivate: %s", out)
	}
	if r := <-done; r.ok || !strings.Contains(r.out, "Remote IPMI console disconnected") {
		t.Errorf("pyghmi: %s", r.out)
	}
}
