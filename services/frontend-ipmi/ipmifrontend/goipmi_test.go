// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package ipmifrontend_test

import (
	"testing"
	"time"

	goipmi "github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/command/chassis"
	"github.com/bougou/go-ipmi/pkg/types"

	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/fakeservice"
)

func TestGoIPMI(t *testing.T) {
	t.Parallel()
	b := start(t)
	for _, suite := range []types.CipherSuiteID{3, 17} {
		c, err := goipmi.NewClient("127.0.0.1", int(b.port()), "admin", "password")
		if err != nil {
			t.Fatal(err)
		}
		c.WithCipherSuiteID(suite).WithTimeout(2 * time.Second)
		if err := c.Connect(t.Context()); err != nil {
			t.Fatalf("suite %d: %v", suite, err)
		}
		for control, wantOn := range map[chassis.ChassisControl]bool{chassis.ChassisControlPowerUp: true, chassis.ChassisControlPowerDown: false} {
			if _, err := c.ChassisControl(t.Context(), control); err != nil {
				t.Errorf("suite %d: chassis control %v: %v", suite, control, err)
			}
			status, err := c.GetChassisStatus(t.Context())
			if err != nil || status.PowerIsOn != wantOn {
				t.Errorf("suite %d: status %+v, %v, want on = %v", suite, status, err, wantOn)
			}
		}
		if err := c.SetBootDevice(t.Context(), types.BootDeviceSelectorForceCDROM, types.BIOSBootTypeEFI, true); err != nil {
			t.Errorf("suite %d: set boot device: %v", suite, err)
		}
		b.services.Change(b.reference(), func(m *fakeservice.Machine) {
			if got := m.Boot.GetOverride(); got.GetTarget() != bootv1.BootTarget_BOOT_TARGET_CD || got.GetMode() != bootv1.FirmwareMode_FIRMWARE_MODE_UEFI {
				t.Errorf("suite %d: override %v", suite, got)
			}
		})
		if _, err := c.GetDeviceID(t.Context()); err != nil {
			t.Errorf("suite %d: get device id: %v", suite, err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Errorf("suite %d: close: %v", suite, err)
		}
	}
	wrong, err := goipmi.NewClient("127.0.0.1", int(b.port()), "admin", "wrong")
	if err != nil {
		t.Fatal(err)
	}
	wrong.WithCipherSuiteID(17).WithTimeout(2 * time.Second).WithRetry(1)
	if err := wrong.Connect(t.Context()); err == nil {
		t.Error("a wrong password opens a session")
	}
}
