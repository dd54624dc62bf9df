// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"crypto/rand"
	"log/slog"
	"time"

	"kubevirtbmc.dev/pkg/bootorder"
	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/logkey"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

// bootMethods carries each override out by its own strategy.
type bootMethods struct {
	template  templatePatch
	admission admission
}

func (b bootMethods) of(o *record.Override) bootMethod {
	if o != nil && o.Strategy == record.Admission {
		return b.admission
	}
	return b.template
}

func (b bootMethods) arm(m *hypervisor.Machine, next, earlier *record.Override) *record.Override {
	switch {
	case next.Strategy != record.Admission:
		if !earlier.ByTemplate() {
			earlier = nil
		}
		return b.template.arm(m, next, earlier)
	case earlier.ByTemplate():
		return b.template.clear(earlier, b.admission.arm(m, next, earlier), next.ID)
	default:
		return b.admission.arm(m, next, earlier)
	}
}

func (b bootMethods) clear(earlier, rest *record.Override, id string) *record.Override {
	return b.of(earlier).clear(earlier, rest, id)
}

func (b bootMethods) takeBack(m *hypervisor.Machine, failed, earlier *record.Override) *record.Override {
	switch {
	case failed.ByTemplate() && earlier != nil && earlier.Strategy == record.Admission:
		// The template has to lose the one before the other counts again.
		return b.template.clear(failed, earlier, failed.Cleared)
	case failed.ByTemplate():
		return b.template.takeBack(m, failed, earlier)
	case earlier.ByTemplate() && earlier.Stage == record.Restoring:
		// The template is restored already.
		return earlier.Next
	case earlier.ByTemplate():
		again := *earlier
		again.Before, again.Cleared = nil, ""
		return b.template.arm(m, &again, nil)
	default:
		return earlier
	}
}

func (b bootMethods) used(m *hypervisor.Machine, o *record.Override) bool { return b.of(o).used(m, o) }

func (b bootMethods) own(m *hypervisor.Machine, o *record.Override) (map[string]int, hypervisor.FirmwareMode) {
	return b.of(o).own(m, o)
}

func (b bootMethods) rebase(m *hypervisor.Machine, o *record.Override, mode hypervisor.FirmwareMode) *record.Override {
	return b.of(o).rebase(m, o, mode)
}

func (b bootMethods) reorder(m *hypervisor.Machine, o *record.Override, orders map[string]int) *record.Override {
	return b.of(o).reorder(m, o, orders)
}

func (b bootMethods) settle(ctx context.Context, m *hypervisor.Machine, o *record.Override) (settled bool, err error) {
	return b.of(o).settle(ctx, m, o)
}

// admission has an override wait for the machine's next instance, which gets it
// as it is made (package bootoverride): the template never changes.
type admission struct{ engine *Engine }

func (admission) arm(m *hypervisor.Machine, next, _ *record.Override) *record.Override {
	next.Stage = record.Armed
	next.Time = time.Now().UTC()
	next.InstanceUID = ""
	if m.Instance != nil {
		next.InstanceUID = m.Instance.UID
	}
	return next
}

// clear leaves a mark that tells who has cleared it, should that be undone.
func (admission) clear(_, rest *record.Override, id string) *record.Override {
	if rest == nil {
		rest = &record.Override{ID: id, Target: record.TargetNone, Persistence: record.Disabled, Stage: record.Idle}
	}
	rest.Cleared = id
	return rest
}

func (admission) takeBack(_ *hypervisor.Machine, _, earlier *record.Override) *record.Override {
	return earlier
}

// used: an instance that was made with the override has a guest that runs or has
// run.
func (admission) used(m *hypervisor.Machine, o *record.Override) bool {
	i := m.Instance
	return o.Active() && i != nil && i.Override == o.ID && (i.Phase == hypervisor.PhaseSucceeded || !i.Started.IsZero())
}

func (admission) own(m *hypervisor.Machine, _ *record.Override) (map[string]int, hypervisor.FirmwareMode) {
	return bootorder.Orders(m.Devices), m.Firmware.Mode
}

func (admission) rebase(_ *hypervisor.Machine, o *record.Override, mode hypervisor.FirmwareMode) *record.Override {
	based := *o
	if based.Mode != "" {
		based.Mode = mode
	}
	return &based
}

func (admission) reorder(_ *hypervisor.Machine, o *record.Override, _ map[string]int) *record.Override {
	return o
}

// bypassed tells whether the machine's instance was made after the override was
// armed, and without it.
func (admission) bypassed(m *hypervisor.Machine, rec *record.Record, o *record.Override) bool {
	i := m.Instance
	if i == nil || i.UID == o.InstanceUID || i.Override == o.ID || i.Deleting || i.Phase.Final() {
		return false
	}
	// Creation times are in whole seconds. Within one, an instance that one of our
	// operations has brought is later than an override that was there before it.
	op := rec.Power.Operation
	return i.Created.After(o.Time) || op.Active() && op.Goal.EndsOn() && op.Start.After(o.Time) && i.UID != op.InstanceUID
}

func (a admission) settle(ctx context.Context, m *hypervisor.Machine, o *record.Override) (settled bool, err error) {
	e, ref := a.engine, m.Ref
	if a.used(m, o) {
		e.logger(ref).Info("boot override used", slog.String(logkey.Action, string(o.Target)))
		return false, e.update(ctx, ref, func(_ *hypervisor.Machine, rec *record.Record) error {
			if rec.Override == nil || rec.Override.ID != o.ID {
				return errUnchanged
			}
			rec.Override, rec.Bypassed = rec.Override.Next, nil
			rec.Power.UsedOverride = o.ID
			return nil
		})
	}
	if _, rec, err := e.read(ref); err != nil || !a.bypassed(m, rec, o) || o.Bypassed == m.Instance.UID {
		return true, err
	}
	id := rand.Text()
	settled = true
	var again *record.Operation
	e.hold(ref, id, false)
	err = e.update(ctx, ref, func(m *hypervisor.Machine, rec *record.Record) error {
		again = nil
		if rec.Override == nil || rec.Override.ID != o.ID || !a.bypassed(m, rec, rec.Override) || rec.Override.Bypassed == m.Instance.UID {
			return errUnchanged
		}
		settled = false
		now := time.Now().UTC()
		if rec.Override.Bypassed != "" {
			rec.Bypassed = &bootoverride.Bypassed{ID: o.ID, Time: now}
			rec.Override = rec.Override.Next
			return nil
		}
		rec.Override.Bypassed = m.Instance.UID
		op := rec.Power.Operation
		switch {
		case !op.Active():
			again = &record.Operation{
				ID: id, Action: transition.ActionForceRestart, Goal: transition.GoalCycle, Phase: record.UnderWay,
				Start: now, Deadline: now.Add(e.deadline(m, transition.GoalCycle)), Holder: e.holder, Lease: now.Add(e.lease),
				InstanceUID: m.Instance.UID,
			}
			rec.Power.Operation = again
		case op.Goal.EndsOn():
			// Whoever waits for it waits for an instance with the override.
			op.Goal, op.InstanceUID, op.Step = transition.GoalCycle, m.Instance.UID, ""
			op.Deadline = now.Add(e.deadline(m, transition.GoalCycle))
		}
		return nil
	})
	if again == nil {
		e.letGo(ref, id)
	} else {
		e.hold(ref, id, true)
	}
	if err == nil && !settled {
		e.metrics.overrideBypassed()
		e.logger(ref).Warn("the machine started without its boot override", slog.String(logkey.Action, string(o.Target)),
			slog.Bool("again", o.Bypassed != ""))
		message := "the machine started without it, since the admission webhook did not answer, and is made anew once"
		if o.Bypassed != "" {
			message = "the machine started without it again, since the admission webhook did not answer, and it is given up"
		}
		e.trouble(ref, string(o.Target), message)
	}
	return settled, err
}
