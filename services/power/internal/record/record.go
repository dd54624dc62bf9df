// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package record is what the power service keeps beside a machine: its part of
// the JSON document that hypervisor.State stores. Other services keep theirs in
// the same document; what this package does not know it leaves as it is.
package record

import (
	"encoding/json"
	"fmt"
	"time"

	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/services/power/internal/transition"
)

const (
	powerKey = "power"
	bootKey  = bootoverride.RecordKey
	seenKey  = "seen"
	toldKey  = "told"
)

// Record is the power service's state of a machine.
type Record struct {
	Power Power
	// Override is the boot override; nil when there is none.
	Override *Override
	// Leftover is an override of an earlier version that is to become Override; nil
	// when there is none.
	Leftover *bootoverride.Leftover
	// Seen is what the last instance had; nil when none was seen.
	Seen *Seen
	// Bypassed is the last override that failed since instances came without it;
	// nil when none has, or a later one was used.
	Bypassed *bootoverride.Bypassed
	// Told is what the event log has been told of the machine; nil when nothing.
	Told *Told

	// others are the document's other members.
	others map[string]json.RawMessage
}

// Power is what power actions leave behind.
type Power struct {
	// Operation is the latest action, under way or over.
	Operation *Operation `json:"operation,omitempty"`
	// RunStrategy is the user's strategy that a stop has turned into Halted;
	// empty when none was.
	RunStrategy hypervisor.RunStrategy `json:"runStrategy,omitempty"`
	// Reset is when the guest was last reset without a new instance.
	Reset time.Time `json:"reset,omitzero"`
	// UsedOverride is the last one-time boot override that was used, by the ID.
	UsedOverride string `json:"usedOverride,omitempty"`
}

// Told is how far the event log follows the machine. What differs from it is to be
// told.
type Told struct {
	// InstanceUID is the instance that was told to run; empty when none is.
	InstanceUID string `json:"instanceUID,omitempty"`
	// Node is where that runs.
	Node string `json:"node,omitempty"`
	// Moves is how often it was told to have moved.
	Moves int `json:"moves,omitempty"`
	// Reset is the last reset.
	Reset time.Time `json:"reset,omitzero"`
	// Override is the boot override in force, in words; empty when none is.
	Override string `json:"override,omitempty"`
	// OverrideID is the ID of that override.
	OverrideID string `json:"overrideID,omitempty"`
	// UsedID is the ID of the last one-time override that was used.
	UsedID string `json:"usedID,omitempty"`
}

// Seen is what only an instance shows of a machine's hardware, kept for the time
// that there is none.
type Seen struct {
	// MachineUID is the machine's: another one of its name has nothing of it.
	MachineUID string `json:"machineUID"`
	// MACs are the interfaces' addresses, by name.
	MACs map[string]string `json:"macs,omitempty"`
	// Capacities are the disks' sizes in bytes, by name.
	Capacities map[string]int64 `json:"capacities,omitempty"`
}

// Phase is how far an operation is.
type Phase string

// The phases.
const (
	UnderWay   Phase = "UnderWay"
	Succeeded  Phase = "Succeeded"
	Failed     Phase = "Failed"
	Superseded Phase = "Superseded"
)

// Operation is an accepted power action: the intent while it is under way.
type Operation struct {
	ID string `json:"id"`
	// Request is the id of the call that asked for it, for the logs.
	Request string            `json:"request,omitempty"`
	Action  transition.Action `json:"action"`
	Goal    transition.Goal   `json:"goal"`
	Phase   Phase             `json:"phase"`
	// InstanceUID is the instance that there was at acceptance; empty when
	// there was none.
	InstanceUID string    `json:"instanceUID,omitempty"`
	Start       time.Time `json:"start"`
	End         time.Time `json:"end,omitzero"`
	// Deadline is when the operation is given up.
	Deadline time.Time `json:"deadline,omitzero"`
	// Holder carries it out. After Lease another process may take over.
	Holder string    `json:"holder,omitempty"`
	Lease  time.Time `json:"lease,omitzero"`
	// Step is the last step that acts, written before it is taken, at StepTime.
	Step     transition.Step `json:"step,omitempty"`
	StepTime time.Time       `json:"stepTime,omitzero"`
	// StartSent is when a start was last sent, be it by an operation that this
	// one has replaced.
	StartSent time.Time `json:"startSent,omitzero"`
	Message   string    `json:"message,omitempty"`
	// EndsInstance says that the action, or one that it has replaced, ends the
	// instance of InstanceUID.
	EndsInstance bool `json:"endsInstance,omitempty"`
}

// Active tells whether the operation is under way; a nil one is not.
func (o *Operation) Active() bool { return o != nil && o.Phase == UnderWay }

// Target is a kind of device to boot from.
type Target string

// The targets.
const (
	TargetNone Target = "None"
	TargetPXE  Target = "PXE"
	TargetHDD  Target = "HDD"
	TargetCD   Target = "CD"
)

// Device returns the kind of device that the target is; empty for TargetNone.
func (t Target) Device() hypervisor.DeviceKind {
	switch t {
	case TargetPXE:
		return hypervisor.DeviceInterface
	case TargetHDD:
		return hypervisor.DeviceDisk
	case TargetCD:
		return hypervisor.DeviceCDROM
	default:
		return ""
	}
}

// Persistence is how long an override counts.
type Persistence string

// The persistences.
const (
	Disabled   Persistence = "Disabled"
	Once       Persistence = "Once"
	Continuous Persistence = "Continuous"
)

// Stage is how far an override is with the machine's template.
type Stage string

// The stages.
const (
	// Arming: recorded; the template may not show it yet.
	Arming Stage = "Arming"
	// Armed: the template shows it.
	Armed Stage = "Armed"
	// Restoring: used up or taken back; the template may still show it.
	Restoring Stage = "Restoring"
	// Idle: it never touches the template.
	Idle Stage = "Idle"
)

// Strategy is how an override reaches an instance.
type Strategy string

// The strategies.
const (
	// Template: the machine's template has it, and is restored afterwards.
	Template Strategy = ""
	// Admission: the instance gets it as it is made (package bootoverride). The
	// stage is Armed from the start.
	Admission Strategy = "Admission"
)

// Override is a boot override.
type Override struct {
	ID          string                  `json:"id"`
	Target      Target                  `json:"target,omitempty"`
	Persistence Persistence             `json:"persistence"`
	Mode        hypervisor.FirmwareMode `json:"mode,omitempty"`
	// Flags are the IPMI boot flags verbatim.
	Flags []byte `json:"flags,omitempty"`
	Stage Stage  `json:"stage"`
	// Strategy is how it is carried out.
	Strategy Strategy `json:"strategy,omitempty"`
	// Time is when it was armed, for Admission and where it has a Validity.
	Time time.Time `json:"time,omitzero"`
	// Validity is how long it waits without a power action; 0: for ever.
	Validity time.Duration `json:"validity,omitempty"`
	// Bypassed is the instance that came without it, by the UID, for Admission;
	// empty when none has.
	Bypassed string `json:"bypassed,omitempty"`
	// Cleared is the ID of the request that has cleared it; empty when none has.
	Cleared string `json:"cleared,omitempty"`
	// InstanceUID is the instance that there was when it was armed.
	InstanceUID string `json:"instanceUID,omitempty"`
	// Own are the template's own orders, Planned those of the override; a
	// device without an order has 0.
	Own     map[string]int `json:"own,omitempty"`
	Planned map[string]int `json:"planned,omitempty"`
	// Kinds are what the devices of Own are, for those who read of them.
	Kinds map[string]hypervisor.DeviceKind `json:"kinds,omitempty"`
	// OwnMode and PlannedMode are the same for the firmware mode; empty where the
	// override leaves it alone.
	OwnMode     hypervisor.FirmwareMode `json:"ownMode,omitempty"`
	PlannedMode hypervisor.FirmwareMode `json:"plannedMode,omitempty"`
	// Before are the template's orders when the override was recorded, as an
	// earlier override had left them; kept until it is armed.
	Before map[string]int `json:"before,omitempty"`
	// Next replaces this override once the template is restored.
	Next *Override `json:"next,omitempty"`
}

// ByTemplate tells whether the override has an effect on the template, or may
// have.
func (o *Override) ByTemplate() bool { return o.Active() && o.Strategy == Template }

// Active tells whether the override has an effect on the machine, or may have; a
// nil one has none.
func (o *Override) Active() bool { return o != nil && o.Stage != Idle }

// Parse reads a record; nil is an empty one.
func Parse(document []byte) (*Record, error) {
	r := &Record{others: map[string]json.RawMessage{}}
	if len(document) == 0 {
		return r, nil
	}
	if err := json.Unmarshal(document, &r.others); err != nil {
		return nil, fmt.Errorf("parse state: %w", err)
	}
	if raw, ok := r.others[powerKey]; ok {
		if err := json.Unmarshal(raw, &r.Power); err != nil {
			return nil, fmt.Errorf("parse power state: %w", err)
		}
		delete(r.others, powerKey)
	}
	if raw, ok := r.others[bootKey]; ok {
		if err := json.Unmarshal(raw, &r.Override); err != nil {
			return nil, fmt.Errorf("parse boot state: %w", err)
		}
		delete(r.others, bootKey)
	}
	if raw, ok := r.others[seenKey]; ok {
		if err := json.Unmarshal(raw, &r.Seen); err != nil {
			return nil, fmt.Errorf("parse what was seen: %w", err)
		}
		delete(r.others, seenKey)
	}
	if raw, ok := r.others[toldKey]; ok {
		if err := json.Unmarshal(raw, &r.Told); err != nil {
			return nil, fmt.Errorf("parse what was told: %w", err)
		}
		delete(r.others, toldKey)
	}
	if raw, ok := r.others[bootoverride.BypassedKey]; ok {
		if err := json.Unmarshal(raw, &r.Bypassed); err != nil {
			return nil, fmt.Errorf("parse bypassed boot override: %w", err)
		}
		delete(r.others, bootoverride.BypassedKey)
	}
	if raw, ok := r.others[bootoverride.LeftoverKey]; ok {
		if err := json.Unmarshal(raw, &r.Leftover); err != nil {
			return nil, fmt.Errorf("parse boot override of an earlier version: %w", err)
		}
		delete(r.others, bootoverride.LeftoverKey)
	}
	delete(r.others, bootoverride.StateKey) // It follows from the override.
	return r, nil
}

// armed is what the next instance gets as it is made; nil when nothing.
func (r *Record) armed() *bootoverride.Armed {
	o := r.Override
	if o != nil && o.Stage == Restoring {
		o = o.Next
	}
	if !o.Active() || o.Strategy != Admission {
		return nil
	}
	return &bootoverride.Armed{ID: o.ID, Device: o.Target.Device(), Mode: o.Mode}
}

// Document returns the record as JSON; nil when there is nothing to keep.
func (r *Record) Document() ([]byte, error) {
	members := make(map[string]any, len(r.others)+7)
	for key, raw := range r.others {
		members[key] = raw
	}
	if r.Power != (Power{}) {
		members[powerKey] = r.Power
	}
	if r.Override != nil {
		members[bootKey] = r.Override
	}
	if r.Leftover != nil {
		members[bootoverride.LeftoverKey] = r.Leftover
	}
	if r.Seen != nil {
		members[seenKey] = r.Seen
	}
	if r.Told != nil {
		members[toldKey] = r.Told
	}
	if armed := r.armed(); armed != nil {
		members[bootoverride.StateKey] = armed
	}
	if r.Bypassed != nil {
		members[bootoverride.BypassedKey] = r.Bypassed
	}
	if len(members) == 0 {
		return nil, nil
	}
	return json.Marshal(members)
}
