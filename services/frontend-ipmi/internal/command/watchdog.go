// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/logkey"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/backend"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/watchdog"
)

const (
	// watchdogUser is who acts when the timer runs out, for audits.
	watchdogUser = "watchdog timer"
	// What the services may take then, and how often and for how long they are
	// tried while they do not answer.
	expiryTimeout = 10 * time.Second
	expiryRetry   = 2 * time.Second
	expiryPeriod  = 2 * time.Minute
)

// dog has the watchdog timer's commands (IPMI v2.0 section 27).
type dog struct {
	power  backend.Power
	boot   backend.Boot
	events backend.Events
	log    *slog.Logger
}

func registerWatchdog(m *Mux, d dog) {
	m.Handle(ipmi.NetFnApp, 0x22, Command{
		Name: "reset_watchdog_timer", Privilege: ipmi.PrivilegeOperator, Backend: true, Mutates: true, Handle: d.reset,
	})
	m.Handle(ipmi.NetFnApp, 0x24, Command{
		Name: "set_watchdog_timer", Privilege: ipmi.PrivilegeOperator, Backend: true, Mutates: true, LogData: true,
		MinLength: 6, MaxLength: 6, Handle: d.set,
	})
	m.Handle(ipmi.NetFnApp, 0x25, Command{Name: "get_watchdog_timer", Privilege: ipmi.PrivilegeUser, Backend: true, Handle: d.get})
}

func (d dog) set(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	status, err := d.power.Status(ctx, r.Target.Reference)
	if err != nil {
		return backend.CompletionCode(err), nil
	}
	t := r.Target.watchdog(d)
	return watchdogCode(t.Set(r.Data, time.Now(), watched(status))), nil
}

func (d dog) reset(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	status, err := d.power.Status(ctx, r.Target.Reference)
	if err != nil {
		return backend.CompletionCode(err), nil
	}
	return watchdogCode(r.Target.watchdog(d).Reset(time.Now(), watched(status))), nil
}

func (d dog) get(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	status, err := d.power.Status(ctx, r.Target.Reference)
	if err != nil {
		return backend.CompletionCode(err), nil
	}
	return ipmi.OK, r.Target.watchdog(d).Get(time.Now(), watched(status))
}

func watchdogCode(err error) ipmi.CompletionCode {
	switch {
	case err == nil:
		return ipmi.OK
	case errors.Is(err, watchdog.ErrUninitialized):
		return ipmi.WatchdogUninitialized
	case errors.Is(err, watchdog.ErrOff), errors.Is(err, watchdog.ErrTooLate):
		return ipmi.NotInPresentState
	}
	return ipmi.InvalidDataField
}

// watched is what the timer has to know of a machine. One whose state is not known
// counts as on: it must not stop the countdown.
func watched(status *powerv1.PowerStatus) watchdog.Machine {
	on, known := isOn(status.GetState())
	m := watchdog.Machine{On: on || !known, Instance: status.GetInstanceId()}
	if status.GetLastResetTime().IsValid() {
		m.Reset = status.GetLastResetTime().AsTime()
	}
	return m
}

// watchdog is the BMC's timer, made on first use.
func (t *Target) watchdog(d dog) *watchdog.Timer {
	t.dogMu.Lock()
	defer t.dogMu.Unlock()
	if t.dog == nil {
		target := *t // What it names does not change while the timer lives.
		t.dog = &watchdog.Timer{Due: func(e watchdog.Expiry) {
			target.Background(func(ctx context.Context) { d.expired(ctx, &target, e) })
		}}
		if t.dogClosed {
			t.dog.Close()
		}
	}
	return t.dog
}

// Close ends what goes on between commands.
func (s *State) Close() {
	s.dogMu.Lock()
	defer s.dogMu.Unlock()
	s.dogClosed = true
	if s.dog != nil {
		s.dog.Close()
	}
}

// expired does what a time that has come is for. Services that do not answer are
// asked again for a while: nobody else would reset the machine.
func (d dog) expired(ctx context.Context, target *Target, e watchdog.Expiry) {
	ctx = callctx.WithCaller(ctx, callctx.Caller{User: watchdogUser, Protocol: "ipmi"})
	ctx = callctx.WithRequestID(ctx, callctx.NewRequestID())
	var status *powerv1.PowerStatus
	if !d.try(ctx, target, "read power state", func(ctx context.Context) (err error) {
		status, err = d.power.Status(ctx, target.Reference)
		return err
	}) {
		return
	}
	now := time.Now()
	e, counts := target.dog.Expire(e, now, watched(status))
	if !counts {
		return
	}
	d.log.LogAttrs(ctx, slog.LevelWarn, "watchdog timer", append(watchdogAttrs(target),
		slog.Bool("pre_timeout", e.PreTimeout), slog.Int(logkey.Action, int(e.Action)))...)
	if d.events != nil && !e.DontLog {
		event := watchdogEvent(e, now)
		d.try(ctx, target, "write event log", func(ctx context.Context) error {
			return d.events.Append(ctx, target.Reference, event)
		})
	}
	action, acts := watchdogActions[e.Action]
	if e.PreTimeout || !acts {
		return
	}
	if !target.Options.keepsOnWatchdog() {
		d.try(ctx, target, "take boot override back", func(ctx context.Context) error { return d.clearOnce(ctx, target) })
	}
	d.try(ctx, target, "act on the machine", func(ctx context.Context) error {
		operation, err := d.power.Transition(ctx, target.Reference, action)
		if err == nil {
			target.noteWatchdog(operation)
		}
		return err
	})
}

var watchdogActions = map[watchdog.Action]powerv1.PowerAction{
	watchdog.ActionHardReset:  powerv1.PowerAction_POWER_ACTION_FORCE_RESTART,
	watchdog.ActionPowerDown:  powerv1.PowerAction_POWER_ACTION_FORCE_OFF,
	watchdog.ActionPowerCycle: powerv1.PowerAction_POWER_ACTION_POWER_CYCLE,
}

// clearOnce takes a one-time boot override back: it is for a restart that somebody
// asks for.
func (d dog) clearOnce(ctx context.Context, target *Target) error {
	status, err := d.boot.Status(ctx, target.Reference)
	if err != nil || status.GetOverride().GetPersistence() != bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE {
		return err
	}
	return d.boot.SetOverride(ctx, target.Reference, noOverride(nil))
}

// try calls f until it succeeds, or fails in a way that stays, or its time is
// over.
func (d dog) try(ctx context.Context, target *Target, what string, f func(context.Context) error) bool {
	for end := time.Now().Add(expiryPeriod); ; {
		within, cancel := context.WithTimeout(ctx, expiryTimeout)
		err := f(within)
		cancel()
		if err == nil {
			return true
		}
		code := backend.CompletionCode(err)
		passes := code == ipmi.NodeBusy || code == ipmi.Timeout
		if !passes || time.Now().After(end) || ctx.Err() != nil {
			d.log.LogAttrs(ctx, slog.LevelError, "watchdog timer without effect", append(watchdogAttrs(target),
				slog.String(logkey.Action, what), slog.String(logkey.Error, err.Error()))...)
			return false
		}
		select {
		case <-time.After(expiryRetry):
		case <-ctx.Done():
		}
	}
}

func watchdogAttrs(target *Target) []slog.Attr {
	return []slog.Attr{
		slog.String(logkey.Namespace, target.Reference.GetNamespace()), slog.String(logkey.BMC, target.Reference.GetName()),
	}
}

// watchdogEvent is the entry of a Watchdog 2 sensor (IPMI v2.0 table 42-3, type
// 23h): the offset is the action or 8 for the interrupt, event data 2 has the
// interrupt and the use.
func watchdogEvent(e watchdog.Expiry, now time.Time) *statev1.Event {
	const (
		watchdog2       = 0x23
		timerInterrupt  = 8
		extensionInData = 0xC0
	)
	offset, message := byte(e.Action), "The watchdog timer ran out."
	if e.PreTimeout {
		offset, message = timerInterrupt, "The watchdog timer is about to run out."
	}
	record := make([]byte, 3, selRecordSize)
	record[2] = selSystemEvent
	record = binary.LittleEndian.AppendUint32(record, uint32(now.Unix())) //nolint:gosec // Until 2106.
	record = append(record, ipmi.AddressBMC, 0, selEventRevision, watchdog2, 0, selSensorSpecific,
		extensionInData|offset, e.Interrupt<<4|e.Use, selUnspecified)
	return &statev1.Event{
		Id: rand.Text(), Time: timestamppb.New(now), Severity: statev1.EventSeverity_EVENT_SEVERITY_WARNING,
		Kind: statev1.EventKind_EVENT_KIND_MACHINE, Code: statev1.EventCode_EVENT_CODE_WATCHDOG_EXPIRED, Message: message,
		Actor: watchdogUser, IpmiRecord: record,
	}
}
