// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package main

import (
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kvv1 "kubevirt.io/api/core/v1"
)

// instance is a VMI with a disk and the given annotations.
func instance(annotations map[string]string) *kvv1.VirtualMachineInstance {
	one := uint(1)
	vmi := &kvv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}}
	vmi.Spec.Domain.Devices.Disks = []kvv1.Disk{{Name: "root", BootOrder: &one}}
	vmi.Spec.Volumes = []kvv1.Volume{{Name: "root"}}
	return vmi
}

// received takes what the client has been sent so far.
func received(p *port) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := string(p.unread)
	p.unread = nil
	return text
}

func TestBootDevices(t *testing.T) {
	order := func(n uint) *uint { return &n }
	cd := kvv1.DiskDevice{CDRom: &kvv1.CDRomTarget{}}
	for name, test := range map[string]struct {
		disks      []kvv1.Disk
		interfaces []kvv1.Interface
		want       []string
	}{
		"the lowest order comes first, whatever the kind": {
			disks:      []kvv1.Disk{{Name: "a", BootOrder: order(3)}, {Name: "b", BootOrder: order(2), DiskDevice: cd}},
			interfaces: []kvv1.Interface{{Name: "net", BootOrder: order(1)}},
			want:       []string{"network net (boot order 1)", "cdrom b (boot order 2)", "disk a (boot order 3)"},
		},
		"without any order the disks are tried as they come": {
			disks:      []kvv1.Disk{{Name: "a"}, {Name: "b", DiskDevice: cd}},
			interfaces: []kvv1.Interface{{Name: "net"}},
			want:       []string{"disk a", "cdrom b"},
		},
		"devices without an order are left out where others have one": {
			disks: []kvv1.Disk{{Name: "a"}, {Name: "b", BootOrder: order(5)}},
			want:  []string{"disk b (boot order 5)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &kvv1.VirtualMachineInstanceSpec{}
			spec.Domain.Devices.Disks, spec.Domain.Devices.Interfaces = test.disks, test.interfaces
			var got []string
			for _, d := range bootDevices(spec) {
				got = append(got, d.String())
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("bootDevices() = %q, want %q", got, test.want)
			}
		})
	}
}

func TestMachine_tells_late_clients_what_it_booted_from(t *testing.T) {
	m := newMachine(instance(nil))
	c := m.serial.connect()
	m.tick(repeatEvery)
	if got, want := received(c), "Guest booted from disk root (boot order 1)\r\n"; got != want {
		t.Errorf("received %q, want %q", got, want)
	}
}

func TestMachine_falls_through_an_empty_tray(t *testing.T) {
	one, two := uint(1), uint(2)
	vmi := instance(nil)
	vmi.Spec.Domain.Devices.Disks[0].BootOrder = &two
	vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, kvv1.Disk{Name: "tray", BootOrder: &one, DiskDevice: kvv1.DiskDevice{CDRom: &kvv1.CDRomTarget{}}})
	m := newMachine(vmi)
	if m.booted == nil || m.booted.name != "root" {
		t.Errorf("booted from %v, want root", m.booted)
	}
}

func TestMachine_ends(t *testing.T) {
	press := func(m *machine) { m.powerButton() }
	for name, test := range map[string]struct {
		annotations map[string]string
		act         func(*machine)
		after       time.Duration
		want        outcome
	}{
		"the power button shuts down":                        {act: press, after: shutdownDefault, want: poweredOff},
		"a shutdown takes its time":                          {act: press, after: shutdownDefault / 2, want: alive},
		"a shutdown takes as long as told":                   {annotations: map[string]string{shutdownAfterAnnotation: "1m"}, act: press, after: 59 * time.Second, want: alive},
		"a guest that ignores ACPI goes on":                  {annotations: map[string]string{ignoreACPIAnnotation: "true"}, act: press, after: time.Hour, want: alive},
		"a paused guest does not see the power button":       {act: func(m *machine) { m.setPaused(true); m.powerButton(); m.setPaused(false) }, after: time.Hour, want: alive},
		"a paused guest does not shut down further":          {act: func(m *machine) { m.powerButton(); m.setPaused(true) }, after: time.Hour, want: alive},
		"destroyed from outside":                             {act: (*machine).destroy, want: destroyed},
		"a guest powers itself off":                          {annotations: map[string]string{powerOffAfterAnnotation: "5s"}, act: func(*machine) {}, after: 5 * time.Second, want: poweredOff},
		"a guest crashes":                                    {annotations: map[string]string{crashAfterAnnotation: "5s"}, act: func(*machine) {}, after: 5 * time.Second, want: crashed},
		"a reset postpones what the guest does after a boot": {annotations: map[string]string{powerOffAfterAnnotation: "5s"}, act: func(m *machine) { m.tick(4 * time.Second); m.reset() }, after: 4 * time.Second, want: alive},
		"poweroff on the console":                            {act: func(m *machine) { m.input([]byte("poweroff\r")) }, want: poweredOff},
		"crash on the console":                               {act: func(m *machine) { m.input([]byte("crash\r")) }, want: crashed},
		"a soft reboot does not end it":                      {act: (*machine).softReboot, after: shutdownDefault, want: alive},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(instance(test.annotations))
			test.act(m)
			m.tick(test.after)
			if got, _ := m.state(); got != test.want {
				t.Errorf("outcome %d, want %d", got, test.want)
			}
		})
	}
}

func TestMachine_soft_reboot_that_was_ignored_turns_the_next_power_off_into_a_reboot(t *testing.T) {
	m := newMachine(instance(map[string]string{ignoreACPIAnnotation: "true"}))
	m.softReboot()
	m.tick(time.Minute)
	m.input([]byte("poweroff\r"))
	if got, _ := m.state(); got != alive {
		t.Fatalf("outcome %d after the first power-off, want a reboot", got)
	}
	m.input([]byte("poweroff\r"))
	if got, _ := m.state(); got != poweredOff {
		t.Errorf("outcome %d after the second power-off, want %d", got, poweredOff)
	}
}

func TestMachine_reboot_ends_it_where_the_policy_says_so(t *testing.T) {
	m := newMachine(instance(nil))
	m.terminateOnReboot = true
	m.input([]byte("reboot\r"))
	if got, _ := m.state(); got != poweredOff {
		t.Errorf("outcome %d, want %d", got, poweredOff)
	}
}

func TestMachine_input_comes_back(t *testing.T) {
	m := newMachine(instance(nil))
	c := m.serial.connect()
	m.input([]byte("hello\r"))
	m.tick(repeatEvery) // stays quiet so soon after input
	if got, want := received(c), "hello\r\n"; got != want {
		t.Errorf("received %q, want %q", got, want)
	}
}

func TestSerial_new_client_takes_the_port(t *testing.T) {
	var s serial
	first := s.connect()
	second := s.connect()
	if _, err := first.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the first connection reads %v, want %v", err, io.EOF)
	}
	s.disconnect(first) // too late to matter
	s.send("x")
	if got := received(second); got != "x" {
		t.Errorf("the second client received %q, want x", got)
	}
}

// TestPort_keeps_what_waits: a client that reads late loses nothing, and holds
// up what it has typed meanwhile.
func TestPort_keeps_what_waits(t *testing.T) {
	var s serial
	p := s.connect()
	for range room + 1 {
		s.send("x")
	}
	held := make(chan struct{})
	go func() {
		p.waitForRoom()
		close(held)
	}()
	select {
	case <-held:
		t.Error("there is room although nothing was read")
	case <-time.After(50 * time.Millisecond):
	}
	s.disconnect(nil)
	<-held
	if got, err := io.ReadAll(p); err != nil || len(got) != room+1 {
		t.Errorf("read %d bytes, %v, want %d", len(got), err, room+1)
	}
}
