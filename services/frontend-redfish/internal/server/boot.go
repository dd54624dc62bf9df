// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"slices"
	"strings"

	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/message"
	"kubevirtbmc.dev/services/frontend-redfish/internal/resource"
)

// Names of the Boot properties that clients can set.
const (
	bootEnabled = "BootSourceOverrideEnabled"
	bootTarget  = "BootSourceOverrideTarget"
	bootMode    = "BootSourceOverrideMode"
	bootOrder   = "BootOrder"
)

// bootRequest is what a client wants to change of Boot; nil for what it does not
// name.
type bootRequest struct {
	persistence *bootv1.BootPersistence
	target      *bootv1.BootTarget
	mode        *bootv1.FirmwareMode
	order       []string
}

func (r bootRequest) empty() bool {
	return r.persistence == nil && r.target == nil && r.mode == nil && r.order == nil
}

// parseBoot reads the Boot object of a PATCH. Values that can't be are problems
// that refuse the whole request; properties that can't be set are only noted.
func parseBoot(boot properties, served map[string]bool, status *bootv1.BootStatus) (request bootRequest, problems, notes []message.Message) {
	order := newChange(boot, "#/Boot")
	if request.order = order.texts(bootOrder); request.order != nil {
		checkOrder(order, request.order, status)
	}
	problems = order.problems
	for name := range boot {
		pointer := "#/Boot/" + escapePointer(name)
		value, wrong := boot.text(name)
		reject := func(key message.Key) {
			shown := boot.show(name)
			if value != nil {
				shown = shorten(*value)
			}
			problems = append(problems, message.New(key, shown, name).About(pointer))
		}
		known := name == bootEnabled || name == bootTarget || name == bootMode
		switch {
		case strings.Contains(name, "@") || name == bootOrder: // Annotations are for readers.
		case !known && served[name]:
			notes = append(notes, message.New(message.PropertyNotWritable, name).About(pointer))
		case !known:
			notes = append(notes, message.New(message.PropertyUnknown, shorten(name)).About(pointer))
		case wrong:
			reject(message.PropertyValueTypeError)
		case name == bootEnabled:
			if v, ok := resource.BootPersistence(*value); ok {
				request.persistence = &v
			} else {
				reject(message.PropertyValueNotInList)
			}
		case name == bootTarget:
			v, ok := resource.BootTarget(*value)
			if ok && (v == bootv1.BootTarget_BOOT_TARGET_NONE || slices.Contains(status.GetAllowedTargets(), v)) {
				request.target = &v
			} else {
				reject(message.PropertyValueNotInList)
			}
		case name == bootMode:
			v, ok := resource.FirmwareMode(*value)
			if ok && slices.Contains(status.GetAllowedModes(), v) {
				request.mode = &v
			} else {
				reject(message.PropertyValueNotInList)
			}
		}
	}
	slices.SortFunc(problems, byArguments)
	slices.SortFunc(notes, byArguments)
	return request, problems, notes
}

// checkOrder refuses a boot order that names what there is not, or anything twice.
func checkOrder(boot *change, order []string, status *bootv1.BootStatus) {
	seen := map[string]bool{}
	for _, reference := range order {
		is := slices.ContainsFunc(status.GetDevices(), func(d *bootv1.BootDevice) bool { return d.GetName() == reference })
		if !is || seen[reference] {
			boot.reject(bootOrder, message.PropertyValueNotInList, shorten(reference), bootOrder)
			return
		}
		seen[reference] = true
	}
}

func byArguments(a, b message.Message) int { return slices.Compare(a.MessageArgs, b.MessageArgs) }

// escapePointer escapes a name for a JSON pointer (RFC 6901).
func escapePointer(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(shorten(name))
}

// changes returns what a request makes of the present boot status: the override
// and the machine's own firmware mode to set, nil and unspecified for what stays
// as it is.
//
// What a request leaves out stays as it is. A target without Enabled arms the
// override as it is armed, or for one boot when there is none: who names a
// device wants to boot from it. A mode counts as long as the override that it
// comes with; by itself, or where it comes with none, it is the machine's own
// from then on.
func (r bootRequest) changes(status *bootv1.BootStatus) (*bootv1.BootOverride, bootv1.FirmwareMode, *message.Error) {
	const (
		disabled = bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED
		once     = bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE
		none     = bootv1.BootTarget_BOOT_TARGET_NONE
		same     = bootv1.FirmwareMode_FIRMWARE_MODE_UNSPECIFIED
	)
	own := same
	if r.mode != nil && *r.mode != status.GetMode() {
		own = *r.mode
	}
	if r.persistence == nil && r.target == nil {
		if now := status.GetOverride(); r.mode != nil && isArmed(now) && now.GetMode() != same && now.GetMode() != *r.mode {
			own = *r.mode // It takes the place of the override's too.
		}
		return nil, own, nil
	}
	next := &bootv1.BootOverride{Persistence: disabled, Target: none}
	if now := status.GetOverride(); isArmed(now) {
		next.Persistence, next.Target, next.Mode = now.GetPersistence(), now.GetTarget(), now.GetMode()
	}
	if r.target != nil {
		next.Target = *r.target
		if r.persistence == nil && next.Persistence == disabled {
			next.Persistence = once
		}
	}
	if r.persistence != nil {
		next.Persistence = *r.persistence
	}
	if r.mode != nil {
		next.Mode = *r.mode
	}
	if next.GetMode() == status.GetMode() {
		next.Mode = same // The machine's own, also if that changes.
	}
	asksForDevice := r.persistence != nil && *r.persistence != disabled && r.target == nil
	switch {
	case asksForDevice && next.Target == none:
		return nil, same, conflict(bootEnabled, bootTarget)
	case next.Persistence == disabled || next.Target == none:
		return &bootv1.BootOverride{Persistence: disabled, Target: none, Mode: own}, same, nil
	}
	return next, same, nil
}

func isArmed(o *bootv1.BootOverride) bool {
	return o.GetPersistence() == bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE ||
		o.GetPersistence() == bootv1.BootPersistence_BOOT_PERSISTENCE_CONTINUOUS
}

func conflict(name, other string) *message.Error {
	return &message.Error{Status: http.StatusBadRequest, Messages: []message.Message{
		message.New(message.PropertyValueConflict, name, other).About("#/Boot/" + name),
	}}
}
