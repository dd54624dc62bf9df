// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package bootoverride is what the power service, which arms one-time boot
// overrides, and the admission webhook, which carries them out on the one
// instance that they are for, have to agree on.
package bootoverride

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// InstanceAnnotation is the annotation of an instance that the webhook has
// changed: the ID of the override. An instance that has it has used the override
// up.
const InstanceAnnotation = "bmc.kubevirt.io/boot-override"

// StateKey is the member of the services' state (hypervisor.State) that holds the
// armed override; the power service alone writes it.
const StateKey = "armed"

// BypassedKey is the member of the state that tells of the last override that
// came to nothing, since instances were made without it.
const BypassedKey = "bypassed"

// Armed is an override that waits for the machine's next instance.
type Armed struct {
	// ID is another one each time that one is armed.
	ID string `json:"id"`
	// Device is the kind of device to boot from; empty: the machine's own order.
	Device hypervisor.DeviceKind `json:"device,omitempty"`
	// Mode is the firmware mode to boot in; empty: the machine's own.
	Mode hypervisor.FirmwareMode `json:"mode,omitempty"`
}

// Bypassed is an override that came to nothing: a machine started without it, and
// again when it was made anew.
type Bypassed struct {
	// ID is the override's.
	ID string `json:"id"`
	// Time is when it was given up.
	Time time.Time `json:"time"`
}

// FromState returns the override that is armed in a machine's state; nil when
// none is.
func FromState(state []byte) (*Armed, error) {
	if len(state) == 0 {
		return nil, nil
	}
	var document map[string]json.RawMessage
	if err := json.Unmarshal(state, &document); err != nil {
		return nil, fmt.Errorf("parse state: %w", err)
	}
	raw, ok := document[StateKey]
	if !ok {
		return nil, nil
	}
	var armed *Armed
	if err := json.Unmarshal(raw, &armed); err != nil {
		return nil, fmt.Errorf("parse armed boot override: %w", err)
	}
	if armed != nil && armed.ID == "" {
		return nil, errors.New("parse armed boot override: it has no ID")
	}
	return armed, nil
}
