// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

//go:build e2e

package cluster

import (
	"strings"
	"testing"
	"time"
)

func TestReal(t *testing.T) {
	c := open(t, Options{Level: LevelReal})
	if c.NodeIP != "" {
		testNetwork(t, c)
	}
	m := newMachine(t, c, "real", "Manual", GuestDiskImage, 5, "")
	m.mustPut(false, "start", "{}")
	uid, _ := m.wait("Running", 3*time.Minute)
	readUntil(t, m.console(), strings.TrimSpace(GuestDiskText))

	m.mustPut(true, "pause", "{}")
	m.waitPaused("True")
	m.mustPut(true, "unpause", "{}")
	m.waitPaused("")

	m.mustPut(true, "reset", "{}")
	readUntil(t, m.console(), strings.TrimSpace(GuestDiskText))
	if got, _ := m.wait("Running", 10*time.Second); got != uid {
		t.Errorf("the instance is %s after a reset, want still %s", got, uid)
	}

	con := m.console()
	if _, err := con.Write([]byte("#")); err != nil {
		t.Fatal(err)
	}
	readUntil(t, con, "#")

	// The boot sector knows nothing of ACPI: it is destroyed after the grace
	// period, which the real thing calls a failure.
	m.mustPut(false, "stop", "{}")
	m.wait("Failed", time.Minute)
	m.wait("", time.Minute)
}
