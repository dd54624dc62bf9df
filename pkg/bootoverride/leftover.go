// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package bootoverride

import (
	"encoding/json"
	"fmt"
	"strings"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// LeftoverKey is the member of the state with a one-time override that an earlier
// version has written to the machine's template. The controller, which finds it in
// the BMC's status, writes it, and the power service makes it the override that it
// keeps under RecordKey.
const LeftoverKey = "leftover"

// Leftover is a one-time override of an earlier version.
type Leftover struct {
	// ID it is to have.
	ID string `json:"id"`
	// InstanceUID is the instance that there was when it was armed; empty: none.
	InstanceUID string `json:"instanceUID,omitempty"`
	// Orders are the template's own boot orders, by DeviceKey; 0: the device had
	// none.
	Orders map[string]int `json:"orders,omitempty"`
	// Mode is the template's own firmware mode; empty: it was not changed.
	Mode hypervisor.FirmwareMode `json:"mode,omitempty"`
}

// DeviceKey is what a device is called in a VirtualMachineBMC's status.
func DeviceKey(d hypervisor.BootDevice) string {
	// An interface that has the name of a disk has another one among boot devices.
	return string(d.Kind) + ":" + strings.TrimPrefix(d.Name, "interface/")
}

// AddLeftover returns a machine's state with a leftover in it; nil where the state
// has one, or knows of an override that came later.
func AddLeftover(state []byte, leftover *Leftover) ([]byte, error) {
	document := map[string]json.RawMessage{}
	if len(state) > 0 {
		if err := json.Unmarshal(state, &document); err != nil {
			return nil, fmt.Errorf("parse state: %w", err)
		}
	}
	for _, key := range []string{LeftoverKey, RecordKey} {
		if _, ok := document[key]; ok {
			return nil, nil
		}
	}
	raw, err := json.Marshal(leftover)
	if err != nil {
		return nil, err
	}
	document[LeftoverKey] = raw
	return json.Marshal(document)
}
