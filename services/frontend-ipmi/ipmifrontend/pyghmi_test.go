// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package ipmifrontend_test

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Debian's pyghmi belongs to Debian's Python.
const debianPython = "/usr/bin/python3"

const pyghmiProgram = `
import sys
import pyghmi.ipmi.command as command

def connect(user, password, level):
    return command.Command(bmc="127.0.0.1", userid=user, password=password, port=int(sys.argv[1]), privlevel=level)

bmc = connect("admin", "password", 4)
print(bmc.get_power()["powerstate"])
print(bmc.set_power("on", wait=10)["powerstate"])
print(bmc.set_bootdev("network", persist=True, uefiboot=True)["bootdev"])
boot = bmc.get_bootdev()
print(boot["bootdev"], boot["persistent"], boot["uefimode"])
print(bmc.set_power("off", wait=10)["powerstate"])
print(connect("operator", "password2", 3).get_power()["powerstate"])
for user in "admin", "nobody":
    try:
        connect(user, "wrong", 4).get_power()
        print("logged in")
    except Exception as e:
        print(e)
`

func TestPyghmi(t *testing.T) {
	t.Parallel()
	if err := exec.CommandContext(t.Context(), debianPython, "-c", "import pyghmi").Run(); err != nil {
		t.Skipf("pyghmi is not installed for %s", debianPython)
	}
	b := start(t)
	program := t.TempDir() + "/client.py"
	if err := os.WriteFile(program, []byte(pyghmiProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _ := run(t, debianPython, program, strconv.Itoa(int(b.port())))
	want := []string{"off", "on", "network", "network True True", "off", "off", "Incorrect password provided", "Incorrect password provided"}
	if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(out), "\n")); diff != "" {
		t.Errorf("output mismatch (-want +got)\n%s", diff)
	}
}
