// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kvv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// vmWith is a machine with a disk and CD-ROM drives.
func vmWith(trays ...string) *kvv1.VirtualMachine {
	vm := &kvv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{UID: "uid", ResourceVersion: "7"},
		Spec:       kvv1.VirtualMachineSpec{Template: &kvv1.VirtualMachineInstanceTemplateSpec{}},
	}
	devices := &vm.Spec.Template.Spec.Domain.Devices
	devices.Disks = append(devices.Disks, kvv1.Disk{Name: "root"})
	for _, name := range trays {
		devices.Disks = append(devices.Disks, kvv1.Disk{Name: name, DiskDevice: kvv1.DiskDevice{CDRom: &kvv1.CDRomTarget{}}})
	}
	return vm
}

// filled is a machine that has a DataVolume in a tray.
func filled(vm *kvv1.VirtualMachine, tray, dataVolume string, hotpluggable bool) *kvv1.VirtualMachine {
	volume := kvv1.Volume{Name: tray}
	volume.DataVolume = &kvv1.DataVolumeSource{Name: dataVolume, Hotpluggable: hotpluggable}
	vm.Spec.Template.Spec.Volumes = append(vm.Spec.Template.Spec.Volumes, volume)
	return vm
}

// instanceOf is the instance of a machine as it is.
func instanceOf(vm *kvv1.VirtualMachine) *kvv1.VirtualMachineInstance {
	return &kvv1.VirtualMachineInstance{Spec: *vm.Spec.Template.Spec.DeepCopy()}
}

func TestDevices(t *testing.T) {
	t.Parallel()
	ours := prefix(vmWith()) + "x"
	ownAsDisk := vmWith("cd")
	ownAsDisk.Spec.Template.Spec.Domain.Devices.Disks[0].Name = ownTray
	for name, test := range map[string]struct {
		vm   *kvv1.VirtualMachine
		vmi  *kvv1.VirtualMachineInstance
		live bool
		want []string
	}{
		"no tray":                       {vmWith(), nil, true, []string{ownTray}},
		"our own":                       {vmWith(ownTray), nil, true, []string{ownTray}},
		"off":                           {vmWith("cd"), nil, true, []string{ownTray, "cd"}},
		"running":                       {vmWith("cd"), instanceOf(vmWith("cd")), true, []string{"cd", ownTray}},
		"running, nothing is live":      {vmWith("cd"), instanceOf(vmWith("cd")), false, []string{ownTray, "cd"}},
		"running, the tray is new":      {vmWith("cd"), instanceOf(vmWith()), true, []string{ownTray, "cd"}},
		"running with our own":          {vmWith("cd", ownTray), instanceOf(vmWith("cd", ownTray)), true, []string{ownTray, "cd"}},
		"somebody else's medium":        {filled(vmWith("tools", "cd"), "tools", "virtio", false), nil, true, []string{ownTray, "cd", "tools"}},
		"our medium in the user's tray": {filled(vmWith("a", "b"), "b", ours, true), nil, true, []string{"b", ownTray, "a"}},
		"our name is a disk's":          {ownAsDisk, nil, true, []string{"cd"}},
	} {
		if diff := cmp.Diff(test.want, devices(test.vm, test.vmi, test.live)); diff != "" {
			t.Errorf("%s: trays mismatch (-want +got)\n%s", name, diff)
		}
	}
}

func TestMedium_ofAnotherMachine(t *testing.T) {
	t.Parallel()
	other := vmWith("cd")
	other.UID = "other"
	vm := filled(vmWith("cd"), "cd", prefix(other)+"x", true)
	if got := medium(vm, volumeOf(template(vm), "cd")); got != "" {
		t.Errorf("the medium of another machine is taken for ours: %s", got)
	}
}

func TestPending(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		vm   *kvv1.VirtualMachine
		vmi  *kvv1.VirtualMachineInstance
		live bool
		want bool
	}{
		"off":                    {filled(vmWith("cd"), "cd", "a", true), nil, false, false},
		"the same":               {filled(vmWith("cd"), "cd", "a", true), instanceOf(filled(vmWith("cd"), "cd", "a", true)), false, false},
		"live insert":            {filled(vmWith("cd"), "cd", "a", true), instanceOf(vmWith("cd")), true, false},
		"live replacement":       {filled(vmWith("cd"), "cd", "b", true), instanceOf(filled(vmWith("cd"), "cd", "a", true)), true, false},
		"live eject":             {vmWith("cd"), instanceOf(filled(vmWith("cd"), "cd", "a", true)), true, false},
		"insert":                 {filled(vmWith("cd"), "cd", "a", false), instanceOf(vmWith("cd")), false, true},
		"eject":                  {vmWith("cd"), instanceOf(filled(vmWith("cd"), "cd", "a", false)), false, true},
		"eject of what is fixed": {vmWith("cd"), instanceOf(filled(vmWith("cd"), "cd", "a", false)), true, true},
		"insert of what is":      {filled(vmWith("cd"), "cd", "a", false), instanceOf(vmWith("cd")), true, true},
		"the drive is new":       {filled(vmWith("cd"), "cd", "a", true), instanceOf(vmWith()), true, true},
	} {
		if got := pending(test.vm, test.vmi, "cd", test.live); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	failing := []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeRunning, Status: corev1.ConditionFalse, Message: "404"}}
	for name, test := range map[string]struct {
		status cdiv1.DataVolumeStatus
		want   hypervisor.Medium
	}{
		"new":         {cdiv1.DataVolumeStatus{}, hypervisor.Medium{Phase: hypervisor.MediumImporting, Message: "waiting for CDI"}},
		"waiting":     {cdiv1.DataVolumeStatus{Phase: cdiv1.PendingPopulation, Progress: "N/A"}, hypervisor.Medium{Phase: hypervisor.MediumImporting, Message: "PendingPopulation"}},
		"under way":   {cdiv1.DataVolumeStatus{Phase: cdiv1.ImportInProgress, Progress: "45.67%"}, hypervisor.Medium{Phase: hypervisor.MediumImporting, Progress: 45, Message: "importing"}},
		"nonsense":    {cdiv1.DataVolumeStatus{Phase: cdiv1.ImportInProgress, Progress: "-1e99%"}, hypervisor.Medium{Phase: hypervisor.MediumImporting, Message: "importing"}},
		"tries again": {cdiv1.DataVolumeStatus{Phase: cdiv1.ImportInProgress, RestartCount: 1, Conditions: failing}, hypervisor.Medium{Phase: hypervisor.MediumImporting, Message: "404"}},
		"given up":    {cdiv1.DataVolumeStatus{Phase: cdiv1.ImportInProgress, RestartCount: failedAttempts, Conditions: failing}, hypervisor.Medium{Phase: hypervisor.MediumFailed, Message: "404"}},
		"failed":      {cdiv1.DataVolumeStatus{Phase: cdiv1.Failed}, hypervisor.Medium{Phase: hypervisor.MediumFailed, Message: "import failed"}},
		"there":       {cdiv1.DataVolumeStatus{Phase: cdiv1.Succeeded, Progress: "100.0%", RestartCount: 9, Conditions: failing}, hypervisor.Medium{Phase: hypervisor.MediumInserted, Progress: 100}},
	} {
		if diff := cmp.Diff(&test.want, progress(&cdiv1.DataVolume{Status: test.status})); diff != "" {
			t.Errorf("%s: medium mismatch (-want +got)\n%s", name, diff)
		}
	}
}

func TestGates(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		gates []string
		want  bool
	}{
		{nil, false},
		{[]string{"DeclarativeHotplugVolumes"}, true},
		{[]string{"HotplugVolumes"}, false},
		{[]string{"DeclarativeHotplugVolumes", "HotplugVolumes"}, false},
	} {
		if got := live(test.gates); got != test.want {
			t.Errorf("gates %v: got %t", test.gates, got)
		}
	}
}

func TestPatches(t *testing.T) {
	t.Parallel()
	arm := vmWith()
	arm.Spec.Template.Spec.Architecture = "arm64"
	bare := &kvv1.VirtualMachine{Spec: kvv1.VirtualMachineSpec{Template: &kvv1.VirtualMachineInstanceTemplateSpec{}}}
	insert := func(vm *kvv1.VirtualMachine, device string, live bool) patch {
		p, err := insertPatch(vm, device, "dv", live)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for name, test := range map[string]struct {
		patch patch
		want  string
	}{
		"insert into the user's": {insert(vmWith("cd"), "cd", true), `[{"op":"add","path":"/spec/template/spec/volumes","value":[{"dataVolume":{"hotpluggable":true,"name":"dv"},"name":"cd"}]}]`},
		"insert into our own":    {insert(filled(vmWith(), "root", "a", false), ownTray, false), `[{"op":"add","path":"/spec/template/spec/domain/devices/disks/-","value":{"cdrom":{"bus":"sata","readonly":true},"name":"virtbmc-media"}},{"op":"add","path":"/spec/template/spec/volumes/-","value":{"dataVolume":{"hotpluggable":false,"name":"dv"},"name":"virtbmc-media"}}]`},
		"insert on arm64":        {insert(arm, ownTray, false)[:1], `[{"op":"add","path":"/spec/template/spec/domain/devices/disks/-","value":{"cdrom":{"bus":"scsi","readonly":true},"name":"virtbmc-media"}}]`},
		"insert into nothing":    {insert(bare, ownTray, false)[:1], `[{"op":"add","path":"/spec/template/spec/domain/devices/disks","value":[{"cdrom":{"bus":"sata","readonly":true},"name":"virtbmc-media"}]}]`},
		"replace":                {insert(filled(vmWith("cd"), "cd", "a", true), "cd", true), `[{"op":"replace","path":"/spec/template/spec/volumes/0","value":{"dataVolume":{"hotpluggable":true,"name":"dv"},"name":"cd"}}]`},
		"eject from the user's":  {ejectPatch(filled(vmWith("cd"), "cd", "a", false), "cd", false), `[{"op":"remove","path":"/spec/template/spec/volumes/0"}]`},
		"eject from our own":     {ejectPatch(filled(vmWith(ownTray), ownTray, "a", true), ownTray, true), `[{"op":"remove","path":"/spec/template/spec/volumes/0"}]`},
		"eject, not live":        {ejectPatch(filled(vmWith("cd", ownTray), ownTray, "a", true), ownTray, false), `[{"op":"remove","path":"/spec/template/spec/volumes/0"},{"op":"remove","path":"/spec/template/spec/domain/devices/disks/2"}]`},
	} {
		got, err := json.Marshal(test.patch)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, string(got)); diff != "" {
			t.Errorf("%s: patch mismatch (-want +got)\n%s", name, diff)
		}
	}
	if _, err := insertPatch(&kvv1.VirtualMachine{}, ownTray, "dv", true); err == nil {
		t.Error("a machine without a template: no error")
	}
}
