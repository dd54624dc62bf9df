// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	kvv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
)

// parse reads an instance's spec.domain and what else is of interest.
func parse(t *testing.T, document string) *kvv1.VirtualMachineInstance {
	t.Helper()
	var vmi kvv1.VirtualMachineInstance
	if err := yaml.UnmarshalStrict([]byte(document), &vmi); err != nil {
		t.Fatalf("parse %s: %v", document, err)
	}
	return &vmi
}

// apply changes an instance as the API server does.
func apply(t *testing.T, vmi *kvv1.VirtualMachineInstance, operations any) *kvv1.VirtualMachineInstance {
	t.Helper()
	document, err := json.Marshal(operations)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(document)
	if err != nil {
		t.Fatal(err)
	}
	before, err := json.Marshal(vmi)
	if err != nil {
		t.Fatal(err)
	}
	after, err := patch.Apply(before)
	if err != nil {
		t.Fatalf("apply %s to %s: %v", document, before, err)
	}
	var changed kvv1.VirtualMachineInstance
	if err := json.Unmarshal(after, &changed); err != nil {
		t.Fatal(err)
	}
	return &changed
}

// ordersOf writes an instance's boot orders down, of disks, then of interfaces.
func ordersOf(vmi *kvv1.VirtualMachineInstance) string {
	var list []string
	note := func(name string, order *uint) {
		if order != nil {
			name = fmt.Sprintf("%s=%d", name, *order)
		}
		list = append(list, name)
	}
	for _, disk := range vmi.Spec.Domain.Devices.Disks {
		note(disk.Name, disk.BootOrder)
	}
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		note(nic.Name, nic.BootOrder)
	}
	return strings.Join(list, " ")
}

const id = "armed-id"

func TestPatch_orders(t *testing.T) {
	t.Parallel()
	const typical = `{disks: [{name: root, bootOrder: 1}, {name: data}, {name: cd, cdrom: {bus: sata}}], interfaces: [{name: first, bootOrder: 2}, {name: second}]}`
	const bare = `{disks: [{name: root}, {name: cd, cdrom: {bus: sata}}], interfaces: [{name: first}, {name: second}]}`
	for name, test := range map[string]struct {
		devices string
		first   hypervisor.DeviceKind
		want    string
	}{
		"the network keeps its number, disks move behind it":      {typical, hypervisor.DeviceInterface, "root=3 data=4 cd=5 first=2 second"},
		"a CD before disk and network":                            {typical, hypervisor.DeviceCDROM, "root=2 data=4 cd=1 first=3 second"},
		"disks before the network":                                {typical, hypervisor.DeviceDisk, "root=1 data=2 cd=4 first=3 second"},
		"the network of a machine without orders":                 {bare, hypervisor.DeviceInterface, "root=2 cd=3 first=1 second"},
		"a CD of a machine without orders":                        {bare, hypervisor.DeviceCDROM, "root=2 cd=1 first second"},
		"disks of a machine without orders":                       {bare, hypervisor.DeviceDisk, "root=1 cd=2 first second"},
		"a network that is far behind stays there":                {`{disks: [{name: root, bootOrder: 1}, {name: cd, cdrom: {}, bootOrder: 2}], interfaces: [{name: nic, bootOrder: 9}]}`, hypervisor.DeviceCDROM, "root=2 cd=1 nic=9"},
		"interfaces alone":                                        {`{interfaces: [{name: a}, {name: b}]}`, hypervisor.DeviceInterface, "a=1 b"},
		"a disk and an interface of one name":                     {`{disks: [{name: default, bootOrder: 1}], interfaces: [{name: default, bootOrder: 2}]}`, hypervisor.DeviceInterface, "default=3 default=2"},
		"a LUN is a disk":                                         {`{disks: [{name: cd, cdrom: {}, bootOrder: 1}, {name: lun, lun: {bus: scsi}}]}`, hypervisor.DeviceDisk, "cd=2 lun=1"},
		"several CDs in their own order":                          {`{disks: [{name: a, cdrom: {}, bootOrder: 5}, {name: b, cdrom: {}, bootOrder: 4}, {name: root, bootOrder: 1}]}`, hypervisor.DeviceCDROM, "a=2 b=1 root=3"},
		"what is first already keeps the interfaces' numbers":     {`{disks: [{name: root, bootOrder: 4}], interfaces: [{name: a, bootOrder: 1}, {name: b, bootOrder: 3}]}`, hypervisor.DeviceInterface, "root=4 a=1 b=3"},
		"the machine's own order where only the mode is for once": {typical, "", "root=1 data cd first=2 second"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vmi := parse(t, `{spec: {domain: {devices: `+test.devices+`}}}`)
			patch, err := Patch(vmi, &bootoverride.Armed{ID: id, Device: test.first}, false)
			if err != nil {
				t.Fatal(err)
			}
			changed := apply(t, vmi, patch)
			if got := ordersOf(changed); got != test.want {
				t.Errorf("orders are %s, want %s", got, test.want)
			}
			if got := changed.Annotations[bootoverride.InstanceAnnotation]; got != id {
				t.Errorf("annotation is %q, want %q", got, id)
			}
		})
	}
}

func TestPatch_rest(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		vmi       string
		armed     bootoverride.Armed
		terminate bool
		want      string
	}{
		"UEFI is without Secure Boot": {
			`{spec: {domain: {firmware: {uuid: 5d307ca9-b3ef-428c-8861-06e72d69f223, serial: s}, devices: {}}}}`,
			bootoverride.Armed{Mode: hypervisor.FirmwareUEFI},
			false,
			`{spec: {domain: {firmware: {uuid: 5d307ca9-b3ef-428c-8861-06e72d69f223, serial: s, bootloader: {efi: {secureBoot: false}}}, devices: {}}}}`,
		},
		"UEFI in place of a BIOS": {
			`{spec: {domain: {firmware: {bootloader: {bios: {useSerial: true}}}, devices: {}}}}`,
			bootoverride.Armed{Mode: hypervisor.FirmwareUEFI},
			false,
			`{spec: {domain: {firmware: {bootloader: {efi: {secureBoot: false}}}, devices: {}}}}`,
		},
		"the machine's own UEFI stays as it is": {
			`{spec: {domain: {firmware: {bootloader: {efi: {secureBoot: true, persistent: true}}}, devices: {}}}}`,
			bootoverride.Armed{Mode: hypervisor.FirmwareUEFI},
			false,
			`{spec: {domain: {firmware: {bootloader: {efi: {secureBoot: true, persistent: true}}}, devices: {}}}}`,
		},
		"BIOS in place of UEFI": {
			`{spec: {domain: {firmware: {bootloader: {efi: {secureBoot: true}}}, devices: {}}}}`,
			bootoverride.Armed{Mode: hypervisor.FirmwareBIOS},
			false,
			`{spec: {domain: {firmware: {bootloader: {bios: {}}}, devices: {}}}}`,
		},
		"BIOS is what a machine without firmware has": {
			`{spec: {domain: {devices: {}}}}`, bootoverride.Armed{Mode: hypervisor.FirmwareBIOS}, false, `{spec: {domain: {devices: {}}}}`,
		},
		"UEFI is what arm64 has": {
			`{spec: {architecture: arm64, domain: {devices: {}}}}`,
			bootoverride.Armed{Mode: hypervisor.FirmwareUEFI},
			false,
			`{spec: {architecture: arm64, domain: {devices: {}}}}`,
		},
		"UEFI of a machine without firmware, and a CD": {
			`{spec: {domain: {devices: {disks: [{name: cd, cdrom: {}}]}}}}`,
			bootoverride.Armed{Mode: hypervisor.FirmwareUEFI, Device: hypervisor.DeviceCDROM},
			false,
			`{spec: {domain: {firmware: {bootloader: {efi: {secureBoot: false}}}, devices: {disks: [{name: cd, cdrom: {}, bootOrder: 1}]}}}}`,
		},
		"a guest's reboot ends the instance": {
			`{spec: {domain: {devices: {}}}}`, bootoverride.Armed{}, true, `{spec: {domain: {rebootPolicy: Terminate, devices: {}}}}`,
		},
		"whatever the machine's own policy": {
			`{spec: {domain: {rebootPolicy: Reboot, devices: {}}}}`, bootoverride.Armed{}, true, `{spec: {domain: {rebootPolicy: Terminate, devices: {}}}}`,
		},
		"a policy that is the machine's own stays": {
			`{spec: {domain: {rebootPolicy: Terminate, devices: {}}}}`, bootoverride.Armed{}, false, `{spec: {domain: {rebootPolicy: Terminate, devices: {}}}}`,
		},
		"other annotations stay, a forged one does not": {
			`{metadata: {annotations: {a/b: c, bmc.kubevirt.io/boot-override: forged}}, spec: {domain: {devices: {}}}}`,
			bootoverride.Armed{},
			false,
			`{metadata: {annotations: {a/b: c}}, spec: {domain: {devices: {}}}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vmi, want := parse(t, test.vmi), parse(t, test.want)
			if want.Annotations == nil {
				want.Annotations = map[string]string{}
			}
			want.Annotations[bootoverride.InstanceAnnotation] = id
			test.armed.ID = id
			patch, err := Patch(vmi, &test.armed, test.terminate)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, apply(t, vmi, patch)); diff != "" {
				t.Errorf("instance mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPatch_impossible(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spec  string
		armed bootoverride.Armed
		want  string
	}{
		"no such device": {
			`{domain: {devices: {disks: [{name: root}]}}}`, bootoverride.Armed{Device: hypervisor.DeviceCDROM}, "the machine has no cdrom",
		},
		"no devices": {`{domain: {devices: {}}}`, bootoverride.Armed{Device: hypervisor.DeviceDisk}, "the machine has no disk"},
		"a kernel of its own": {
			`{domain: {firmware: {kernelBoot: {container: {image: i, kernelPath: /k}}}, devices: {disks: [{name: root}]}}}`,
			bootoverride.Armed{Device: hypervisor.DeviceDisk},
			"the machine boots a kernel of its own (kernelBoot)",
		},
		"BIOS on arm64":  {`{architecture: arm64, domain: {devices: {}}}`, bootoverride.Armed{Mode: hypervisor.FirmwareBIOS}, "arm64 has no firmware mode BIOS"},
		"UEFI on s390x":  {`{architecture: s390x, domain: {devices: {}}}`, bootoverride.Armed{Mode: hypervisor.FirmwareUEFI}, "s390x has no firmware mode UEFI"},
		"a mode unheard": {`{domain: {devices: {}}}`, bootoverride.Armed{Mode: "Coreboot"}, `there is no firmware mode "Coreboot"`},
		"BIOS with encrypted memory": {
			`{domain: {launchSecurity: {sev: {}}, firmware: {bootloader: {efi: {secureBoot: false}}}, devices: {}}}`,
			bootoverride.Armed{Mode: hypervisor.FirmwareBIOS},
			"launchSecurity needs firmware mode UEFI",
		},
		"the network with encrypted memory": {
			`{domain: {launchSecurity: {sev: {}}, devices: {interfaces: [{name: nic}]}}}`,
			bootoverride.Armed{Device: hypervisor.DeviceInterface},
			"KubeVirt does not boot a machine with launchSecurity from the network",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.armed.ID = id
			patch, err := Patch(parse(t, `{spec: `+test.spec+`}`), &test.armed, true)
			why, ok := errors.AsType[*ImpossibleError](err)
			if !ok || why.Reason != test.want || patch != nil {
				t.Errorf("Patch = %v, %v, want %s", patch, err, test.want)
			}
		})
	}
}

func TestStrip(t *testing.T) {
	t.Parallel()
	forged := parse(t, `{metadata: {annotations: {a: b, bmc.kubevirt.io/boot-override: forged}}}`)
	if diff := cmp.Diff(map[string]string{"a": "b"}, apply(t, forged, Strip(forged)).Annotations); diff != "" {
		t.Errorf("annotations mismatch (-want +got):\n%s", diff)
	}
	if patch := Strip(parse(t, `{metadata: {annotations: {a: b}}}`)); patch != nil {
		t.Errorf("an instance without an ID is changed: %v", patch)
	}
}

// TestPatch_anyMachine: whatever a machine's devices are, the first is one of the
// wanted kind, numbers are unique, no device loses its number, and an interface
// gets one only where interfaces are what to boot from.
func TestPatch_anyMachine(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	kinds := []hypervisor.DeviceKind{hypervisor.DeviceDisk, hypervisor.DeviceCDROM, hypervisor.DeviceInterface}
	for range 5000 {
		vmi := &kvv1.VirtualMachineInstance{}
		d := &vmi.Spec.Domain.Devices
		numbers := random.Perm(12)
		have := map[hypervisor.DeviceKind]bool{}
		for n := range 1 + random.IntN(6) {
			var order *uint
			if number := max(numbers[n]-4, 0); number > 0 {
				unsigned := uint(number)
				order = &unsigned
			}
			name, kind := string(rune('a'+n)), kinds[random.IntN(3)]
			have[kind] = true
			switch kind {
			case hypervisor.DeviceDisk:
				d.Disks = append(d.Disks, kvv1.Disk{Name: name, BootOrder: order})
			case hypervisor.DeviceCDROM:
				d.Disks = append(d.Disks, kvv1.Disk{Name: name, BootOrder: order, DiskDevice: kvv1.DiskDevice{CDRom: &kvv1.CDRomTarget{}}})
			default:
				d.Interfaces = append(d.Interfaces, kvv1.Interface{Name: name, BootOrder: order})
			}
		}
		first := kinds[random.IntN(3)]
		patch, err := Patch(vmi, &bootoverride.Armed{ID: id, Device: first}, false)
		if !have[first] {
			if err == nil {
				t.Fatalf("%s: booting from a %s that is not there is said to work", ordersOf(vmi), first)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		changed := apply(t, vmi, patch)
		again, err := Patch(changed, &bootoverride.Armed{ID: id, Device: first}, false)
		if err != nil || len(again) != 0 {
			t.Fatalf("%s: what was changed already is changed again: %v, %v", ordersOf(changed), again, err)
		}
		before, after := devicesOf(&vmi.Spec), devicesOf(&changed.Spec)
		lowest, seen := -1, map[int]bool{}
		for n, device := range after {
			switch {
			case device.Order == 0 && before[n].Order > 0:
				t.Fatalf("%s: %s has lost its number: %s", ordersOf(vmi), device.Name, ordersOf(changed))
			case device.Kind == hypervisor.DeviceInterface && device.Order > 0 && before[n].Order == 0 && first != hypervisor.DeviceInterface:
				t.Fatalf("%s: %s has got a number: %s", ordersOf(vmi), device.Name, ordersOf(changed))
			case device.Order > 0 && seen[device.Order]:
				t.Fatalf("%s: a number is there twice: %s", ordersOf(vmi), ordersOf(changed))
			case device.Order > 0 && (lowest < 0 || device.Order < after[lowest].Order):
				lowest = n
			}
			seen[device.Order] = true
		}
		if lowest < 0 || after[lowest].Kind != first {
			t.Fatalf("%s: the first is no %s: %s", ordersOf(vmi), first, ordersOf(changed))
		}
	}
}

// FuzzPatch: whatever instance the API server sends, the patch applies to it.
func FuzzPatch(f *testing.F) {
	f.Add([]byte(`{"metadata":{"annotations":{}},"spec":{"domain":{"devices":{"disks":[{"name":"a","bootOrder":1},{"name":"b","cdrom":{}}],"interfaces":[{"name":"n"}]}}}}`), "cdrom", "UEFI", true)
	f.Add([]byte(`{"spec":{"domain":{"firmware":{"bootloader":{"efi":{}}},"devices":{"interfaces":[{"name":"n","bootOrder":4294967295}]}}}}`), "interface", "BIOS", false)
	f.Add([]byte(`{}`), "", "", false)
	f.Fuzz(func(t *testing.T, content []byte, device, mode string, terminate bool) {
		var vmi kvv1.VirtualMachineInstance
		if json.Unmarshal(content, &vmi) != nil {
			return
		}
		armed := &bootoverride.Armed{ID: id, Device: hypervisor.DeviceKind(device), Mode: hypervisor.FirmwareMode(mode)}
		patch, err := Patch(&vmi, armed, terminate)
		if err != nil {
			return
		}
		changed := apply(t, &vmi, patch)
		if got := changed.Annotations[bootoverride.InstanceAnnotation]; got != id {
			t.Errorf("annotation is %q", got)
		}
		if again, err := Patch(changed, armed, terminate); err != nil || len(again) != 0 {
			t.Errorf("what was changed already is changed again: %v, %v", again, err)
		}
	})
}

func TestHasRebootPolicy(t *testing.T) {
	t.Parallel()
	const with = `{"components":{"schemas":{"io.kubevirt.v1.VirtualMachineInstance":{"properties":{"spec":{"properties":{"domain":{"properties":{"rebootPolicy":{"type":"string"}}}}}}}}}}`
	for name, test := range map[string]struct {
		document string
		want     bool
	}{
		"served":           {with, true},
		"without":          {strings.ReplaceAll(with, "rebootPolicy", "other"), false},
		"no instances":     {strings.ReplaceAll(with, "Instance", ""), false},
		"nothing":          {`{}`, false},
		"of another shape": {strings.ReplaceAll(with, `{"type":"string"}`, `7`), false},
	} {
		got, err := hasRebootPolicy([]byte(test.document))
		if got != test.want {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
}
