// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package bootoverride

import (
	"encoding/json"
	"fmt"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// RecordKey is the member of the state with the power service's record of the
// machine's override, whichever way that is carried out. It is the power
// service's own, apart from what View says of it.
const RecordKey = "boot"

// View is what there is to tell people of the override that counts for a
// machine's next instance.
type View struct {
	// ID is another one each time that one is armed.
	ID string
	// Device is the kind of device to boot from; empty: the machine's own order.
	Device hypervisor.DeviceKind
	// Continuous tells that it counts until it is changed, and not once.
	Continuous bool
	// Mode is the firmware mode to boot in; empty: the machine's own.
	Mode hypervisor.FirmwareMode
	// ByAdmission tells that the webhook carries it out; else the machine's
	// template has it.
	ByAdmission bool
	// InstanceUID is the instance that there was when it was armed; empty: none.
	InstanceUID string
	// OwnMode is the template's own firmware mode, to be restored; empty: it is
	// not changed.
	OwnMode hypervisor.FirmwareMode
	// Own are the template's devices with their own orders, to be restored, in no
	// order; nil: those are not changed.
	Own []hypervisor.BootDevice
}

// record is the part of the power service's record that people are told of.
type record struct {
	ID          string                  `json:"id"`
	Target      string                  `json:"target"`
	Persistence string                  `json:"persistence"`
	Mode        hypervisor.FirmwareMode `json:"mode"`
	Stage       string                  `json:"stage"`
	Strategy    string                  `json:"strategy"`
	InstanceUID string                  `json:"instanceUID"`
	OwnMode     hypervisor.FirmwareMode `json:"ownMode"`
	Next        *record                 `json:"next"`

	Own   map[string]int                   `json:"own"`
	Kinds map[string]hypervisor.DeviceKind `json:"kinds"`
}

// devices are the kinds of device, by the names that records have for them.
var devices = map[string]hypervisor.DeviceKind{
	"PXE": hypervisor.DeviceInterface, "HDD": hypervisor.DeviceDisk, "CD": hypervisor.DeviceCDROM,
}

// ViewOf returns the override that a machine's state says counts for the next
// instance, and the last one that came to nothing; nil: there is none.
func ViewOf(state []byte) (*View, *Bypassed, error) {
	if len(state) == 0 {
		return nil, nil, nil
	}
	var document struct {
		Record   *record   `json:"boot"`
		Bypassed *Bypassed `json:"bypassed"`
	}
	if err := json.Unmarshal(state, &document); err != nil {
		return nil, nil, fmt.Errorf("parse state: %w", err)
	}
	r := document.Record
	if r != nil && r.Stage == "Restoring" {
		r = r.Next // The one that is being taken out of the template counts no more.
	}
	if r == nil || r.Stage == "Idle" || r.Persistence != "Once" && r.Persistence != "Continuous" {
		return nil, document.Bypassed, nil
	}
	view := &View{
		ID: r.ID, Device: devices[r.Target], Continuous: r.Persistence == "Continuous", Mode: r.Mode,
		ByAdmission: r.Strategy == "Admission", InstanceUID: r.InstanceUID, OwnMode: r.OwnMode,
	}
	for name, kind := range r.Kinds {
		view.Own = append(view.Own, hypervisor.BootDevice{Name: name, Kind: kind, Order: r.Own[name]})
	}
	return view, document.Bypassed, nil
}
