// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"bytes"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"kubevirtbmc.dev/test/launch"
)

// screen is what a client in a terminal shows.
type screen struct {
	t    *testing.T
	keys io.Writer
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

// shown counts a text.
func (s *screen) shown(text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.text.String(), text)
}

func (s *screen) types(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.keys, text); err != nil {
		s.t.Fatal(err)
	}
}

// more waits until a text is shown again, and does something beforehand.
func (s *screen) more(text string, first func()) {
	s.t.Helper()
	before := s.shown(text)
	first()
	eventually(s.t, "further "+text, func() bool { return s.shown(text) > before })
}

// inTerminal starts a client in a pseudo-terminal.
func inTerminal(c client, args ...string) *screen {
	c.t.Helper()
	script, err := exec.LookPath("script")
	if err != nil {
		c.t.Skip("script is not installed (make clients)")
	}
	var line []string
	for _, a := range append(append([]string{c.path}, c.args...), args...) {
		line = append(line, "'"+a+"'")
	}
	cmd := exec.Command(script, "-qefc", strings.Join(line, " "), "/dev/null")
	s := &screen{t: c.t}
	if s.keys, err = cmd.StdinPipe(); err != nil {
		c.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = s, s
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if c.t.Failed() {
			c.t.Logf("the terminal shows %q", s.text.String())
		}
	})
	return s
}

// A console that is opened while the machine is off sees it start, and stays
// through a reset, a power cycle with its new instance, and an end.
func TestIPMItool_solOutlivesPowerCycles(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	tool, api := ipmitool(t, s, 0), newREST(t, s, "sim-0")
	const firmware, prompt = "BdsDxe: starting Boot0001", "sim-0 login: "
	console := inTerminal(tool, "sol", "activate")
	eventually(t, "console", func() bool { return console.shown("SOL Session operational") == 1 })

	console.more(firmware, func() { tool.want("Up/On", "chassis", "power", "on") })
	first := api.waitPower("POWER_STATE_ON")
	console.more(prompt, func() { console.types("\r") })
	console.more(firmware, func() { tool.want("Reset", "chassis", "power", "reset") })
	console.more(firmware, func() { tool.want("Cycle", "chassis", "power", "cycle") })
	eventually(t, "a new instance that is on", func() bool {
		p := api.power()
		return p.State == "POWER_STATE_ON" && p.InstanceID != first.InstanceID
	})
	console.more(prompt, func() { console.types("\r") })

	watching := inTerminal(tool, "sol", "activate", "instance=2")
	eventually(t, "console to watch", func() bool { return watching.shown("SOL Session operational") == 1 })
	console.more("echoed", func() { console.types("echoed") })
	eventually(t, "echo for the one who watches", func() bool { return watching.shown("echoed") == 1 })
	tool.want("Down/Off", "chassis", "power", "off")
	api.waitPower("POWER_STATE_OFF")
	console.types("nobody hears this\r")
	console.more(firmware, func() { tool.want("Up/On", "chassis", "power", "on") })
	console.more("terminated ipmitool", func() { console.types("\r~.") })
}
