// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"fmt"
	"io"
	"sync"

	"kubevirtbmc.dev/pkg/hypervisor"
)

const (
	// maxUnread is how much output waits for a reader; older output goes first.
	maxUnread = 256 << 10
	// room is how much of it may wait before the guest takes no more input.
	room = maxUnread / 4
)

// consoleConn is one connection to a machine's serial port.
type consoleConn struct {
	machine *machine

	mu     sync.Mutex
	ready  *sync.Cond
	unread []byte
	closed bool
}

func newConsoleConn(m *machine) *consoleConn {
	c := &consoleConn{machine: m}
	c.ready = sync.NewCond(&c.mu)
	return c
}

// Read waits for output.
func (c *consoleConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.unread) == 0 && !c.closed {
		c.ready.Wait()
	}
	if len(c.unread) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.unread)
	c.unread = c.unread[n:]
	c.ready.Broadcast()
	return n, nil
}

// Write types at the guest, which echoes it and waits for its reader.
func (c *consoleConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	for len(c.unread) > room && !c.closed {
		c.ready.Wait()
	}
	c.mu.Unlock()
	m := c.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.console != c {
		return 0, io.ErrClosedPipe
	}
	if m.instance.paused {
		return len(p), nil
	}
	echo := make([]byte, 0, len(p))
	for _, b := range p {
		if b == '\r' || b == '\n' {
			echo = append(echo, loginPrompt(m.ref)...)
			continue
		}
		echo = append(echo, b)
	}
	c.output(echo)
	return len(p), nil
}

// Close ends the connection.
func (c *consoleConn) Close() error {
	m := c.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.console == c {
		m.hangUp()
	}
	return nil
}

func (c *consoleConn) output(p []byte) {
	c.mu.Lock()
	c.unread = append(c.unread, p...)
	if over := len(c.unread) - maxUnread; over > 0 {
		c.unread = append([]byte(nil), c.unread[over:]...)
	}
	c.mu.Unlock()
	c.ready.Broadcast()
}

// hangUp ends the connection that a machine's serial port has.
func (m *machine) hangUp() {
	c := m.console
	if c == nil {
		return
	}
	m.console = nil
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.ready.Broadcast()
}

// print is output of the guest; without a reader it is lost.
func (m *machine) print(text string) {
	if m.console != nil {
		m.console.output([]byte(text))
	}
}

func firmwareBanner(mode hypervisor.FirmwareMode) string {
	if mode == hypervisor.FirmwareBIOS {
		return "\x1b[2J\x1b[HSeaBIOS (simulated)\r\nMachine UUID, memory and devices are simulated\r\n"
	}
	return "\x1b[2J\x1b[HUEFI firmware (simulated)\r\n"
}

// bootText is what the firmware says of the device that it boots from.
func bootText(mode hypervisor.FirmwareMode, d hypervisor.BootDevice, mac string) string {
	if d.Name == "kernel" && d.Kind == "" {
		return "Booting kernel given by the machine (kernelBoot)\r\n"
	}
	if mode == hypervisor.FirmwareBIOS {
		switch d.Kind {
		case hypervisor.DeviceCDROM:
			return fmt.Sprintf("Booting from DVD/CD... [cdrom %s: %s]\r\n", d.Name, d.Volume)
		case hypervisor.DeviceInterface:
			return fmt.Sprintf("Booting from ROM... [network %s]\r\niPXE (simulated) net0: %s\r\n", d.Name, mac)
		default:
			return fmt.Sprintf("Booting from Hard Disk... [disk %s]\r\n", d.Name)
		}
	}
	const starting = "BdsDxe: starting Boot0001 "
	switch d.Kind {
	case hypervisor.DeviceCDROM:
		return fmt.Sprintf(starting+"\"UEFI DVD-ROM\" [cdrom %s: %s]\r\n", d.Name, d.Volume)
	case hypervisor.DeviceInterface:
		return fmt.Sprintf(starting+"\"UEFI PXEv4 (MAC:%s)\" [network %s]\r\n", mac, d.Name)
	default:
		return fmt.Sprintf(starting+"\"UEFI Hard Drive\" [disk %s]\r\n", d.Name)
	}
}

func noBootDevice(mode hypervisor.FirmwareMode) string {
	if mode == hypervisor.FirmwareBIOS {
		return "No bootable device.\r\n"
	}
	return "BdsDxe: No bootable option or device was found.\r\n"
}

func loginPrompt(ref hypervisor.Ref) string { return "\r\n" + ref.Name + " login: " }
