// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"context"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// migrates: the guest runs on, on another node, and does not notice. Its console's
// connection ends; another one reaches it where it is, and so do all requests.
func migrates(b *bed) {
	if b.Migrate == nil {
		b.Skip("this bench has no second node")
	}
	ref, before := b.started(Spec{RunStrategy: hypervisor.RunStrategyManual})
	conn, err := b.Hypervisor.OpenConsole(b.Context(), ref)
	b.ok("open console", err)
	if b.Guest.Echoes {
		b.echo(conn)
	}
	ended := readAll(conn)
	nodes := []string{before.Instance.Node}
	for range 2 { // there and back
		b.ok("migrate", b.Migrate(ref))
		now := b.until(ref, "on another node", func(m *hypervisor.Machine) bool {
			return running(m) && m.Instance.Node != nodes[len(nodes)-1]
		})
		nodes = append(nodes, now.Instance.Node)
		if now.Instance.UID != before.Instance.UID || !now.Instance.Started.Equal(before.Instance.Started) {
			b.Errorf("instance %s runs since %s, want %s since %s", now.Instance.UID, now.Instance.Started.Format(time.RFC3339), before.Instance.UID, before.Instance.Started.Format(time.RFC3339))
		}
		b.endsWith("the console's connection to the node that the guest left", ended)
		b.ok("close console", conn.Close())
		b.retry("open console", func(ctx context.Context) error {
			conn, err = b.Hypervisor.OpenConsole(ctx, ref)
			return err
		})
		if b.Guest.Echoes {
			b.echo(conn)
		}
		ended = readAll(conn)
	}
	b.ok("pause", b.Hypervisor.Pause(b.Context(), ref))
	b.until(ref, "paused", func(m *hypervisor.Machine) bool { return running(m) && m.Instance.Paused })
	b.ok("unpause", b.Hypervisor.Unpause(b.Context(), ref))
	b.until(ref, "not paused", func(m *hypervisor.Machine) bool { return running(m) && !m.Instance.Paused })
	b.ok("reset", b.Hypervisor.Reset(b.Context(), ref))
	b.stays(ref, "the same instance", func(m *hypervisor.Machine) bool { return running(m) && m.Instance.UID == before.Instance.UID })
	b.ok("stop", b.Hypervisor.Stop(b.Context(), ref, grace(0)))
	b.endsWith("the connection of a stopped instance", ended)
	b.ok("close console", conn.Close())
	b.until(ref, "off", off)
}
