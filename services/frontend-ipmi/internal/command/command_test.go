// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command_test

import (
	"context"
	"encoding/hex"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"kubevirtbmc.dev/pkg/grpcstatus"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/backend"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/command"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
)

// fakePower is the power side of one machine.
type fakePower struct {
	mu     sync.Mutex
	status *powerv1.PowerStatus
	err    error
	did    []powerv1.PowerAction
}

func (f *fakePower) Status(context.Context, *referencev1.BMCReference) (*powerv1.PowerStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status, f.err
}

func (f *fakePower) Transition(_ context.Context, _ *referencev1.BMCReference, action powerv1.PowerAction) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.did = append(f.did, action)
	return "operation", f.err
}

// actions are those that were asked for.
func (f *fakePower) actions() []powerv1.PowerAction {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.did)
}

// set changes what the machine says from now on.
func (f *fakePower) set(status *powerv1.PowerStatus, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status, f.err = status, err
}

// fakeBoot is the boot side of one machine.
type fakeBoot struct {
	mu     sync.Mutex
	status *bootv1.BootStatus
	err    error
}

func (f *fakeBoot) Status(context.Context, *referencev1.BMCReference) (*bootv1.BootStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return proto.CloneOf(f.status), f.err
}

func (f *fakeBoot) SetOverride(_ context.Context, _ *referencev1.BMCReference, override *bootv1.BootOverride) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.status.Override = override
	}
	return f.err
}

// fakeInventory is the inventory of one machine.
type fakeInventory struct {
	inventory *inventoryv1.Inventory
	err       error
}

func (f *fakeInventory) FirmwareUUID(context.Context, *referencev1.BMCReference) (string, error) {
	return f.inventory.GetFirmwareUuid(), f.err
}

func (f *fakeInventory) Get(context.Context, *referencev1.BMCReference) (*inventoryv1.Inventory, error) {
	return f.inventory, f.err
}

// fakeEvents is the event log of one machine.
type fakeEvents struct {
	mu   sync.Mutex
	log  backend.EventLog
	last uint64
	err  error
}

// entries are those of the log.
func (f *fakeEvents) entries() []*statev1.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.log.Events)
}

func (f *fakeEvents) List(context.Context, *referencev1.BMCReference) (backend.EventLog, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log, f.err
}

func (f *fakeEvents) Append(_ context.Context, _ *referencev1.BMCReference, events ...*statev1.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	for _, e := range events {
		f.last++
		e = proto.CloneOf(e)
		e.Sequence = f.last
		f.log.Events = append(f.log.Events, e)
	}
	f.log.Revision = strconv.FormatUint(f.last, 10)
	return nil
}

func (f *fakeEvents) Clear(_ context.Context, _ *referencev1.BMCReference, revision string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if revision != f.log.Revision {
		return grpcstatus.New(errorsv1.Reason_REASON_STALE_REVISION, "the log has changed")
	}
	f.log.Events = nil
	return f.err
}

// bench is a mux with a machine of its own.
type bench struct {
	events    fakeEvents
	inventory fakeInventory
	sessions  []command.SessionInfo
	power     fakePower
	boot      fakeBoot
	mux       *command.Mux
	target    command.Target
}

func newBench() *bench {
	b := &bench{
		inventory: fakeInventory{inventory: &inventoryv1.Inventory{
			MachineName: "vm-with-a-long-name-of-its-own", Manufacturer: "KubeVirt", Product: "None", SerialNumber: "SN-1",
			GuestOperatingSystem: &inventoryv1.GuestOperatingSystem{Name: "Debian GNU/Linux", Version: "é"},
		}},
		sessions: []command.SessionInfo{
			{ID: 7, User: "gone", Level: ipmi.PrivilegeUser, Source: netip.MustParseAddrPort("[2001:db8::1]:4000")},
			{ID: 0x01020304, User: "operator", Level: ipmi.PrivilegeOperator, Source: netip.MustParseAddrPort("192.0.2.9:5000")},
		},
		events: fakeEvents{log: backend.EventLog{Capacity: 500, Revision: "0"}},
		power:  fakePower{status: &powerv1.PowerStatus{State: powerv1.PowerState_POWER_STATE_OFF}},
		boot:   fakeBoot{status: &bootv1.BootStatus{Mode: bootv1.FirmwareMode_FIRMWARE_MODE_UEFI}},
		target: command.Target{
			Reference:  &referencev1.BMCReference{Namespace: "default", Name: "a"},
			DeviceGUID: ipmi.GUID{0xD0}, SystemGUID: ipmi.GUID{0x50},
			Suites: []*rmcpplus.Suite{rmcpplus.Suite17, rmcpplus.Suite3}, State: &command.State{},
			Users: []command.User{{Name: "admin", Privilege: ipmi.PrivilegeAdministrator}, {Name: "operator", Privilege: ipmi.PrivilegeOperator}},
		},
	}
	b.mux = command.New(command.Config{
		Power: &b.power, Boot: &b.boot, Inventory: &b.inventory, Events: &b.events, Firmware: command.Firmware{Major: 1, Minor: 42},
		InterfaceOf: func(a netip.Addr) (command.Interface, bool) {
			return command.Interface{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Bits: 24}, a == local
		},
	})
	return b
}

// local is the address of the host that requests come to.
var local = netip.MustParseAddr("192.0.2.1")

func session(level ipmi.Privilege) *command.Session {
	return &command.Session{ID: 0x01020304, Level: level, Max: level}
}

// send sends a request written as "netFn command data" in hexadecimal and
// returns the completion code and data of its answer in the same way.
func (b *bench) send(t *testing.T, s *command.Session, request string) string {
	t.Helper()
	raw, err := hex.DecodeString(strings.ReplaceAll(request, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	r := &command.Request{
		Message: ipmi.Message{ToAddress: ipmi.AddressBMC, NetFn: ipmi.NetFn(raw[0]), Command: raw[1], Data: raw[2:]},
		Target:  &b.target, Session: s, Local: local, Sessions: func() []command.SessionInfo { return b.sessions },
	}
	found, code := b.mux.Find(r)
	var data []byte
	if found != nil {
		code, data = found.Handle(t.Context(), r)
	}
	return strings.TrimSpace(code.String() + " " + hex.EncodeToString(data))
}

func TestCommands(t *testing.T) {
	t.Parallel()
	admin := func() *command.Session { return session(ipmi.PrivilegeAdministrator) }
	user := func() *command.Session { return session(ipmi.PrivilegeUser) }
	operator := func() *command.Session { return session(ipmi.PrivilegeOperator) }
	none := func() *command.Session { return nil }
	guid := strings.Repeat("00", 15)
	for name, tc := range map[string]struct {
		session func() *command.Session
		request string
		want    string
	}{
		"Get Device ID":                        {user, "06 01", "00 20010142028f0000000000" + "00000000"},
		"Get Device ID with data":              {user, "06 01 00", "c7"},
		"Get Device ID outside of a session":   {none, "06 01", "d4"},
		"Cold Reset":                           {admin, "06 02", "00"},
		"Cold Reset by an operator":            {operator, "06 02", "d4"},
		"Warm Reset":                           {admin, "06 03", "00"},
		"Get Self Test Results":                {user, "06 04", "00 5500"},
		"Get Device GUID":                      {user, "06 08", "00 d0" + guid},
		"Get System GUID":                      {user, "06 37", "00 50" + guid},
		"Get System GUID before a session":     {none, "06 37", "00 50" + guid},
		"Capabilities, for v1.5":               {none, "06 38 0e04", "00 0100040000000000"},
		"Capabilities, for v2.0":               {none, "06 38 8e04", "00 0180040200000000"},
		"Capabilities of channel 1":            {none, "06 38 8104", "00 0180040200000000"},
		"Capabilities within a session":        {user, "06 38 8e04", "00 0180040200000000"},
		"Capabilities of another channel":      {none, "06 38 8204", "cc"},
		"Capabilities for no privilege":        {none, "06 38 8e00", "cc"},
		"Capabilities without data":            {none, "06 38", "c7"},
		"Cipher suites":                        {none, "06 54 0e0080", "00 01c011034481c003014181"},
		"Cipher suites, beyond the end":        {none, "06 54 0e0081", "00 01"},
		"Cipher suites, last index":            {none, "06 54 0e00bf", "00 01"},
		"Cipher suites, by algorithm":          {none, "06 54 0e0000", "00 01034481014181"},
		"Cipher suites of another channel":     {none, "06 54 030080", "cc"},
		"Set Session Privilege, query":         {admin, "06 3b 00", "00 04"},
		"Set Session Privilege, within limit":  {admin, "06 3b 03", "00 03"},
		"Set Session Privilege, above limit":   {operator, "06 3b 04", "81"},
		"Set Session Privilege, callback":      {admin, "06 3b 01", "cc"},
		"Set Session Privilege, OEM":           {admin, "06 3b 05", "80"},
		"Set Session Privilege, reserved":      {admin, "06 3b 06", "cc"},
		"Set Session Privilege, no session":    {none, "06 3b 04", "d4"},
		"Close Session, own":                   {user, "06 3c 04030201", "00"},
		"Close Session, another's":             {admin, "06 3c 05030201", "87"},
		"Close Session, by handle":             {admin, "06 3c 0000000001", "87"},
		"Close Session, cut off":               {admin, "06 3c 040302", "c7"},
		"session challenge of v1.5":            {none, "06 39 0261646d696e0000000000000000000000", "c1"},
		"Activate Session of v1.5":             {none, "06 3a", "c1"},
		"unknown command":                      {admin, "06 7f", "c1"},
		"unknown command before a session":     {none, "06 7f", "d4"},
		"HPM.2 probe":                          {admin, "2c 3e 00", "c1"},
		"PICMG probe":                          {admin, "2c 00 00", "c1"},
		"PICMG, of which there is nothing":     {admin, "2c 00 00", "c1"},
		"VITA, of which there is nothing":      {admin, "2c 00 03", "c1"},
		"HPM.2, of which there is nothing":     {admin, "2c 3e 0002", "c1"},
		"DCMI, supported capabilities":         {user, "2c 01 dc01", "00 dc010101" + "070008"},
		"DCMI, platform attributes":            {user, "2c 01 dc02", "00 dc010101" + "f49105" + "00"},
		"DCMI, optional platform attributes":   {user, "2c 01 dc03", "00 dc010101" + "0000"},
		"DCMI, manageability access":           {user, "2c 01 dc04", "00 dc010101" + "01ffff"},
		"DCMI, power statistics":               {user, "2c 01 dc05", "00 dc010101" + "00"},
		"DCMI, no such parameter":              {user, "2c 01 dc06", "c9"},
		"DCMI, capabilities of another group":  {user, "2c 01 0001", "c1"},
		"DCMI, of another group, cut off":      {user, "2c 01 00", "c1"},
		"DCMI, capabilities cut off":           {user, "2c 01 dc", "c7"},
		"DCMI, power reading":                  {user, "2c 02 dc010000", "c1"},
		"DCMI, asset tag":                      {user, "2c 06 dc0010", "00 dc09" + "64656661756c742f61"},
		"DCMI, asset tag, its end":             {user, "2c 06 dc0802", "00 dc09" + "61"},
		"DCMI, asset tag, nothing of it":       {user, "2c 06 dc0000", "00 dc09"},
		"DCMI, asset tag, beyond the end":      {user, "2c 06 dc0a01", "c9"},
		"DCMI, asset tag, too much":            {user, "2c 06 dc0011", "c9"},
		"DCMI, asset tag cut off":              {user, "2c 06 dc00", "c7"},
		"DCMI, set asset tag":                  {admin, "2c 08 dc000141", "c1"},
		"DCMI, identifier":                     {user, "2c 09 dc0010", "00 dc02" + "6100"},
		"DCMI, set identifier":                 {admin, "2c 0a dc000141", "c1"},
		"Get ACPI Power State, off":            {user, "06 07", "00 0500"},
		"Set ACPI Power State":                 {admin, "06 06 8080", "c1"},
		"Get Global Enables":                   {user, "06 2f", "00 08"},
		"Set Global Enables, as they are":      {admin, "06 2e 08", "00"},
		"Set Global Enables, log off":          {admin, "06 2e 00", "cc"},
		"Set Global Enables, message buffer":   {admin, "06 2e 0c", "cc"},
		"Set Global Enables by an operator":    {operator, "06 2e 08", "d4"},
		"Set Global Enables cut off":           {admin, "06 2e", "c7"},
		"OEM":                                  {admin, "30 01", "c1"},
		"Get Chassis Capabilities":             {user, "00 00", "00 0020202020"},
		"Get Chassis Status":                   {user, "00 01", "00 600040"},
		"Chassis Control, off":                 {operator, "00 02 00", "00"},
		"Chassis Control by a reader":          {user, "00 02 00", "d4"},
		"Chassis Control, diagnostic":          {operator, "00 02 04", "c9"},
		"Chassis Control, reserved":            {operator, "00 02 06", "c9"},
		"Chassis Control without data":         {operator, "00 02", "c7"},
		"Chassis Control with too much":        {operator, "00 02 0000", "c7"},
		"Chassis Identify":                     {operator, "00 04", "00"},
		"Chassis Identify for 15 s":            {operator, "00 04 0f00", "00"},
		"Power restore policy, query":          {operator, "00 06 03", "00 00"},
		"Power restore policy, set":            {operator, "00 06 02", "d6"},
		"Power restore policy, reserved":       {operator, "00 06 04", "cc"},
		"Get System Restart Cause":             {user, "00 07", "00 0000"},
		"POH counter, not served":              {user, "00 0f", "c1"},
		"boot options, read by a reader":       {user, "00 09 050000", "d4"},
		"boot options, parameter 1":            {operator, "00 09 010000", "80"},
		"boot options, set parameter 7":        {operator, "00 08 0700", "80"},
		"boot options, OEM parameter":          {operator, "00 09 600000", "80"},
		"boot options, progress":               {operator, "00 09 000000", "00 010000"},
		"boot options, no override":            {operator, "00 09 050000", "00 01050000000000"},
		"boot options, flags cut off":          {operator, "00 08 05e0040000", "c7"},
		"boot options, floppy":                 {operator, "00 08 05803c000000", "cc"},
		"boot options, BIOS setup":             {operator, "00 08 058018000000", "cc"},
		"boot options, progress of two bytes":  {operator, "00 08 000100", "c7"},
		"boot options, reserved progress":      {operator, "00 08 0003", "cc"},
		"boot options, get without a selector": {operator, "00 09 05", "c7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := newBench().send(t, tc.session(), tc.request); got != tc.want {
				t.Errorf("%s = %q, want %q", tc.request, got, tc.want)
			}
		})
	}
}

func TestFind_otherAddressAndLUN(t *testing.T) {
	t.Parallel()
	b := newBench()
	r := &command.Request{Message: ipmi.Message{ToAddress: 0x82, NetFn: ipmi.NetFnApp, Command: 1}, Target: &b.target, Session: session(ipmi.PrivilegeUser)}
	if _, code := b.mux.Find(r); code != ipmi.DestinationNotThere {
		t.Errorf("a request to be bridged: %v", code)
	}
	r.ToAddress, r.ToLUN = ipmi.AddressBMC, 2
	if _, code := b.mux.Find(r); code != ipmi.InvalidForLUN {
		t.Errorf("a request to LUN 2: %v", code)
	}
}

func TestMux_Handle_defectsPanic(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]command.Command{
		"a second command in the same place": {Name: "b"},
		"a service for strangers":            {Name: "c", Sessionless: true, Backend: true},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was taken", name)
				}
			}()
			m := command.NewMux()
			m.Handle(ipmi.NetFnApp, 1, command.Command{Name: "a"})
			m.Handle(ipmi.NetFnApp, 1, c)
		}()
	}
}

func TestSessionCommands_changeTheSession(t *testing.T) {
	t.Parallel()
	b := newBench()
	s := session(ipmi.PrivilegeAdministrator)
	b.send(t, s, "06 3b 03")
	if s.Level != ipmi.PrivilegeOperator || s.Max != ipmi.PrivilegeAdministrator {
		t.Errorf("session after Set Session Privilege Level: %+v", s)
	}
	b.send(t, s, "06 3c 04030201")
	if !s.Closed {
		t.Error("Close Session did not close")
	}
}

func TestCapabilities_tellKg(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.target.HasKg = true
	if got, want := b.send(t, nil, "06 38 8e04"), "00 0180240200000000"; got != want {
		t.Errorf("capabilities = %q, want %q", got, want)
	}
}

func TestChassisStatus_states(t *testing.T) {
	t.Parallel()
	on := &powerv1.Operation{Action: powerv1.PowerAction_POWER_ACTION_ON}
	for name, tc := range map[string]struct {
		status *powerv1.PowerStatus
		want   string
	}{
		"on":             {&powerv1.PowerStatus{State: powerv1.PowerState_POWER_STATE_ON, RestorePolicy: powerv1.RestorePolicy_RESTORE_POLICY_ALWAYS_ON}, "00 410040"},
		"on by command":  {&powerv1.PowerStatus{State: powerv1.PowerState_POWER_STATE_ON, Operation: on, RestorePolicy: powerv1.RestorePolicy_RESTORE_POLICY_PREVIOUS}, "00 211040"},
		"off":            {&powerv1.PowerStatus{State: powerv1.PowerState_POWER_STATE_OFF, Operation: on, RestorePolicy: powerv1.RestorePolicy_RESTORE_POLICY_ALWAYS_OFF}, "00 000040"},
		"failed":         {&powerv1.PowerStatus{State: powerv1.PowerState_POWER_STATE_OFF, StopCause: powerv1.StopCause_STOP_CAUSE_FAILURE, RestorePolicy: powerv1.RestorePolicy_RESTORE_POLICY_ALWAYS_OFF}, "00 000840"},
		"powering on":    {&powerv1.PowerStatus{State: powerv1.PowerState_POWER_STATE_POWERING_ON}, "00 610040"},
		"powering off":   {&powerv1.PowerStatus{State: powerv1.PowerState_POWER_STATE_POWERING_OFF}, "00 610040"},
		"paused":         {&powerv1.PowerStatus{State: powerv1.PowerState_POWER_STATE_PAUSED}, "00 610040"},
		"unknown":        {&powerv1.PowerStatus{State: powerv1.PowerState_POWER_STATE_UNKNOWN}, "ce"},
		"nothing at all": {nil, "ce"},
	} {
		b := newBench()
		b.power.status = tc.status
		if got := b.send(t, session(ipmi.PrivilegeUser), "00 01"); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestChassisControl_actions(t *testing.T) {
	t.Parallel()
	b := newBench()
	for _, control := range []string{"00", "01", "02", "03", "05"} {
		b.send(t, session(ipmi.PrivilegeOperator), "00 02 "+control)
	}
	want := []powerv1.PowerAction{
		powerv1.PowerAction_POWER_ACTION_FORCE_OFF, powerv1.PowerAction_POWER_ACTION_ON, powerv1.PowerAction_POWER_ACTION_POWER_CYCLE,
		powerv1.PowerAction_POWER_ACTION_FORCE_RESTART, powerv1.PowerAction_POWER_ACTION_GRACEFUL_SHUTDOWN,
	}
	if diff := cmp.Diff(want, b.power.did); diff != "" {
		t.Errorf("actions mismatch (-want +got)\n%s", diff)
	}
	b.power.err = grpcstatus.New(errorsv1.Reason_REASON_INVALID_POWER_STATE, "off")
	if got := b.send(t, session(ipmi.PrivilegeOperator), "00 02 02"); got != "d5" {
		t.Errorf("cycle of a machine that is off: %q, want d5", got)
	}
	for _, request := range []string{"00 01", "00 07"} {
		if got := b.send(t, session(ipmi.PrivilegeOperator), request); got != "d5" {
			t.Errorf("%s with an error of the backend: %q", request, got)
		}
	}
}

func TestRestartCause(t *testing.T) {
	t.Parallel()
	for action, want := range map[powerv1.PowerAction]string{
		powerv1.PowerAction_POWER_ACTION_POWER_CYCLE:       "00 0101",
		powerv1.PowerAction_POWER_ACTION_PUSH_POWER_BUTTON: "00 0300",
		powerv1.PowerAction_POWER_ACTION_FORCE_OFF:         "00 0000",
	} {
		b := newBench()
		b.power.status.Operation = &powerv1.Operation{Action: action}
		if got := b.send(t, session(ipmi.PrivilegeUser), "00 07"); got != want {
			t.Errorf("%v: %q, want %q", action, got, want)
		}
	}
}

// Every bit of the flags that a client wrote comes back, and the override that
// they mean is set.
func TestBootFlags_writtenByIPMI(t *testing.T) {
	t.Parallel()
	once, always := bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE, bootv1.BootPersistence_BOOT_PERSISTENCE_CONTINUOUS
	off := bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED
	uefi, keep := bootv1.FirmwareMode_FIRMWARE_MODE_UEFI, bootv1.FirmwareMode_FIRMWARE_MODE_UNSPECIFIED
	none := bootv1.BootTarget_BOOT_TARGET_NONE
	for flags, want := range map[string]*bootv1.BootOverride{
		"e004000000": {Persistence: always, Target: bootv1.BootTarget_BOOT_TARGET_PXE, Mode: uefi},
		"a004000000": {Persistence: once, Target: bootv1.BootTarget_BOOT_TARGET_PXE, Mode: uefi},
		"8004000000": {Persistence: once, Target: bootv1.BootTarget_BOOT_TARGET_PXE, Mode: keep},
		"8008000000": {Persistence: once, Target: bootv1.BootTarget_BOOT_TARGET_HDD, Mode: keep},
		"e024000000": {Persistence: always, Target: bootv1.BootTarget_BOOT_TARGET_HDD, Mode: uefi},
		"802c000000": {Persistence: once, Target: bootv1.BootTarget_BOOT_TARGET_HDD, Mode: keep},
		"8014000000": {Persistence: once, Target: bootv1.BootTarget_BOOT_TARGET_CD, Mode: keep},
		"8020000000": {Persistence: once, Target: bootv1.BootTarget_BOOT_TARGET_CD, Mode: keep},
		"c104aa5581": {Persistence: always, Target: bootv1.BootTarget_BOOT_TARGET_PXE, Mode: keep},
		"8000000000": {Persistence: off, Target: none},
		"e000000000": {Persistence: off, Target: none},
		"2004000000": {Persistence: off, Target: none},
		"0000000000": {Persistence: off, Target: none},
	} {
		b := newBench()
		s := session(ipmi.PrivilegeOperator)
		if got := b.send(t, s, "00 08 05"+flags); got != "00" {
			t.Errorf("%s: set = %q", flags, got)
		}
		want.BootFlags, _ = hex.DecodeString(flags)
		if want.GetPersistence() == once {
			want.Validity = durationpb.New(time.Minute)
		}
		if diff := cmp.Diff(want, b.boot.status.GetOverride(), protocmp.Transform()); diff != "" {
			t.Errorf("%s: override mismatch (-want +got)\n%s", flags, diff)
		}
		if got := b.send(t, s, "00 09 050000"); got != "00 0105"+flags {
			t.Errorf("%s: get = %q", flags, got)
		}
	}
}

func TestBootFlags_setOtherwise(t *testing.T) {
	t.Parallel()
	once, always := bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE, bootv1.BootPersistence_BOOT_PERSISTENCE_CONTINUOUS
	pxe, hdd, cd := bootv1.BootTarget_BOOT_TARGET_PXE, bootv1.BootTarget_BOOT_TARGET_HDD, bootv1.BootTarget_BOOT_TARGET_CD
	uefi, legacy := bootv1.FirmwareMode_FIRMWARE_MODE_UEFI, bootv1.FirmwareMode_FIRMWARE_MODE_LEGACY
	for name, tc := range map[string]struct {
		machine  bootv1.FirmwareMode
		override *bootv1.BootOverride
		want     string
	}{
		"network once on a UEFI machine":   {uefi, &bootv1.BootOverride{Persistence: once, Target: pxe}, "a004000000"},
		"network once on a BIOS machine":   {legacy, &bootv1.BootOverride{Persistence: once, Target: pxe}, "8004000000"},
		"disk for good, UEFI asked for":    {legacy, &bootv1.BootOverride{Persistence: always, Target: hdd, Mode: uefi}, "e008000000"},
		"CD once, BIOS asked for":          {uefi, &bootv1.BootOverride{Persistence: once, Target: cd, Mode: legacy}, "8014000000"},
		"no override":                      {uefi, &bootv1.BootOverride{Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED, Target: bootv1.BootTarget_BOOT_TARGET_NONE}, "0000000000"},
		"flags of an impossible length":    {uefi, &bootv1.BootOverride{Persistence: once, Target: pxe, BootFlags: []byte{1}}, "a004000000"},
		"nothing said":                     {uefi, nil, "0000000000"},
		"a target of no device, mode once": {uefi, &bootv1.BootOverride{Persistence: once, Target: bootv1.BootTarget_BOOT_TARGET_NONE}, "a000000000"},
	} {
		b := newBench()
		b.boot.status = &bootv1.BootStatus{Mode: tc.machine, Override: tc.override}
		if got := b.send(t, session(ipmi.PrivilegeOperator), "00 09 050000"); got != "00 0105"+tc.want {
			t.Errorf("%s: %q, want %s", name, got, tc.want)
		}
	}
}

func TestBootFlags_backendRefuses(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.boot.err = grpcstatus.New(errorsv1.Reason_REASON_NO_BOOT_DEVICE, "no CD drive")
	s := session(ipmi.PrivilegeOperator)
	if got := b.send(t, s, "00 08 858014000000"); got != "d5" {
		t.Errorf("set = %q, want d5", got)
	}
	b.boot.err = nil
	if got := b.send(t, s, "00 09 050000"); got != "00 01050000000000" {
		t.Errorf("get after a refusal = %q", got)
	}
	b.boot.err = grpcstatus.New(errorsv1.Reason_REASON_BMC_NOT_FOUND, "gone")
	if got := b.send(t, s, "00 09 050000"); got != "d3" {
		t.Errorf("get = %q, want d3", got)
	}
}

func TestBootOptions_keptByTheFrontend(t *testing.T) {
	t.Parallel()
	b := newBench()
	s := session(ipmi.PrivilegeOperator)
	for _, step := range []struct{ request, want string }{
		{"00 08 0308", "00"}, // As Ironic sends it.
		{"00 09 030000", "00 010308"},
		{"00 08 040101", "00"}, // As ipmitool sends it.
		{"00 09 040000", "00 01040001"},
		{"00 08 041818", "00"}, // Only the bits of the mask change.
		{"00 09 040000", "00 01040019"},
		{"00 08 040100", "00"},
		{"00 09 040000", "00 01040018"},
		{"00 08 83", "00"}, // Without data: the mark alone.
		{"00 09 030000", "00 018308"},
		{"00 08 03", "00"},
		{"00 09 030000", "00 010308"},
		{"00 08 85", "00"},
		{"00 09 050000", "00 01850000000000"},
		{"00 08 058004000000", "00"},
		{"00 09 050000", "00 01058004000000"},
	} {
		if got := b.send(t, s, step.request); got != step.want {
			t.Errorf("%s = %q, want %q", step.request, got, step.want)
		}
	}
}

func TestBootOptions_setInProgress(t *testing.T) {
	t.Parallel()
	b := newBench()
	first, second := session(ipmi.PrivilegeOperator), &command.Session{ID: 2, Level: ipmi.PrivilegeOperator, Max: ipmi.PrivilegeOperator}
	for _, step := range []struct {
		session       *command.Session
		request, want string
	}{
		{first, "00 08 0001", "00"},
		{first, "00 09 000000", "00 010001"},
		{second, "00 08 0001", "81"},
		{second, "00 08 058004000000", "00"}, // Needs no progress of its own.
		{first, "00 08 0002", "00"},
		{first, "00 08 0000", "00"},
		{second, "00 08 0001", "00"},
	} {
		if got := b.send(t, step.session, step.request); got != step.want {
			t.Errorf("session %x, %s = %q, want %q", step.session.ID, step.request, got, step.want)
		}
	}
	b.target.Options.SessionEnded(first.ID) // Not the one in progress.
	if got := b.send(t, first, "00 08 0001"); got != "81" {
		t.Errorf("while another session is in progress: %q", got)
	}
	b.target.Options.SessionEnded(second.ID)
	if got := b.send(t, first, "00 08 0001"); got != "00" {
		t.Errorf("after the session in progress ended: %q", got)
	}
}

// Get Device ID names the devices that are served, and no others.
func TestGetDeviceID_support(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		config command.Config
		want   string
	}{
		"all":                {command.Config{Inventory: &fakeInventory{}, Events: &fakeEvents{}}, "8f"},
		"without inventory":  {command.Config{Events: &fakeEvents{}}, "87"},
		"without event logs": {command.Config{Inventory: &fakeInventory{}}, "8b"},
		"without either":     {command.Config{}, "83"},
	} {
		b := newBench()
		b.mux = command.New(tc.config)
		if got := b.send(t, session(user), "06 01"); got[13:15] != tc.want {
			t.Errorf("%s: %s in %q, want %s", name, got[13:15], got, tc.want)
		}
		for request, served := range map[string]bool{"0a 10 00": tc.config.Inventory != nil, "0a 40": tc.config.Events != nil} {
			if got := b.send(t, session(user), request); (got != "c1") != served {
				t.Errorf("%s: %s = %q", name, request, got)
			}
		}
	}
}

// A one-time override waits for 60 s unless parameter 3 says otherwise, in whichever
// order a client writes the two. A persistent one does not wait.
func TestBootFlags_validity(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		requests []string
		want     time.Duration
	}{
		"one-time":                        {[]string{"00 08 058004000000"}, time.Minute},
		"one-time, not to time out":       {[]string{"00 08 0308", "00 08 058004000000"}, 0},
		"in the other order":              {[]string{"00 08 058004000000", "00 08 0308"}, 0},
		"to time out after all":           {[]string{"00 08 0308", "00 08 058004000000", "00 08 0300"}, time.Minute},
		"other bits":                      {[]string{"00 08 0317", "00 08 058004000000"}, time.Minute},
		"persistent":                      {[]string{"00 08 05c004000000"}, 0},
		"parameter 3 without an override": {[]string{"00 08 0308"}, 0},
	} {
		b := newBench()
		b.boot.status.Override = noOverride
		for _, request := range tc.requests {
			if got := b.send(t, session(operator), request); got != "00" {
				t.Errorf("%s: %s = %q", name, request, got)
			}
		}
		override := b.boot.status.GetOverride()
		if got := override.GetValidity().AsDuration(); got != tc.want {
			t.Errorf("%s: valid for %s, want %s", name, got, tc.want)
		}
		if len(tc.requests) > 1 && override.GetTarget() != bootv1.BootTarget_BOOT_TARGET_PXE {
			t.Errorf("%s: the override is %v", name, override)
		}
	}
	// One that was set otherwise, as over Redfish, is not IPMI's to change.
	b := newBench()
	b.boot.status.Override = &bootv1.BootOverride{Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE, Target: bootv1.BootTarget_BOOT_TARGET_CD}
	b.send(t, session(operator), "00 08 0301")
	if b.boot.status.GetOverride().GetValidity() != nil {
		t.Error("an override that was set over Redfish expires")
	}
}

var noOverride = &bootv1.BootOverride{
	Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED, Target: bootv1.BootTarget_BOOT_TARGET_NONE,
}

// Chassis Identify shows in Get Chassis Status for as long as it was asked for.
func TestChassisIdentify(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		state := func(want string) {
			t.Helper()
			if got := b.send(t, session(user), "00 01"); got[len(got)-2:] != want {
				t.Errorf("chassis status %q, want %s at its end", got, want)
			}
		}
		identify := func(data string) {
			t.Helper()
			if got := b.send(t, session(operator), "00 04 "+data); got != "00" {
				t.Errorf("identify %s: %q", data, got)
			}
		}
		state("40")
		identify("")
		time.Sleep(14 * time.Second)
		state("50")
		time.Sleep(2 * time.Second)
		state("40")
		identify("3c")
		time.Sleep(59 * time.Second)
		state("50")
		identify("00")
		state("40")
		identify("0001")
		time.Sleep(time.Hour)
		state("60")
		identify("00")
		state("40")
	})
}
