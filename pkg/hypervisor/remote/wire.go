// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"kubevirtbmc.dev/pkg/hypervisor"
)

const (
	serviceName = "kubevirtbmc.internal.Hypervisor"

	requestMethod = "/" + serviceName + "/Request"
	watchMethod   = "/" + serviceName + "/Watch"
	consoleMethod = "/" + serviceName + "/Console"
)

// wireMessage carries JSON.
type wireMessage = wrapperspb.BytesValue

// pack makes a message of a value of this package.
func pack(value any) (*wireMessage, error) {
	b, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return wrapperspb.Bytes(b), nil
}

func unpack(message *wireMessage, value any) error {
	if err := json.Unmarshal(message.GetValue(), value); err != nil {
		return fmt.Errorf("parse message of the remote hypervisor: %w", err)
	}
	return nil
}

// verb names a method of package hypervisor's interfaces.
type verb string

const (
	verbStart          verb = "Start"
	verbStop           verb = "Stop"
	verbRestart        verb = "Restart"
	verbReset          verb = "Reset"
	verbSoftReboot     verb = "SoftReboot"
	verbPause          verb = "Pause"
	verbUnpause        verb = "Unpause"
	verbSetRunStrategy verb = "SetRunStrategy"
	verbDeleteInstance verb = "DeleteInstance"
	verbSetBoot        verb = "SetBoot"
	verbSetState       verb = "SetState"
	verbInsert         verb = "Insert"
	verbEject          verb = "Eject"
)

// request is a call of a verb with its arguments.
type request struct {
	Verb verb
	Ref  hypervisor.Ref

	Grace           *time.Duration
	From, To        hypervisor.RunStrategy
	UID             string
	ResourceVersion string
	Orders          map[string]int
	Mode            hypervisor.FirmwareMode
	Old, State      []byte
	Device          string
	Image           hypervisor.Image
}

// response answers a request.
type response struct {
	Error *wireError
	// Version is the machine's resource version after the request.
	Version string
}

// event is something new of a machine.
type event struct {
	Ref hypervisor.Ref
	// Machine is nil when there is none any more.
	Machine *hypervisor.Machine
	Trays   []hypervisor.Tray
	// Synced ends the first listing and has nothing else.
	Synced bool
}

// consoleFrame is a piece of a console stream: the client's first names the
// machine, the server's first tells whether it is open.
type consoleFrame struct {
	Ref   *hypervisor.Ref
	Error *wireError
	Data  []byte
}

// wireError is an error of package hypervisor.
type wireError struct {
	Kind    string
	Message string
}

// sentinels have a kind each.
var sentinels = map[string]error{
	"NotFound":      hypervisor.ErrNotFound,
	"NoInstance":    hypervisor.ErrNoInstance,
	"NoTray":        hypervisor.ErrNoTray,
	"Stale":         hypervisor.ErrStale,
	"Underway":      hypervisor.ErrUnderway,
	"Unavailable":   hypervisor.ErrUnavailable,
	"Unsupported":   hypervisor.ErrUnsupported,
	"ForeignMedium": hypervisor.ErrForeignMedium,
}

const (
	kindConflict = "Conflict"
	kindInvalid  = "Invalid"
)

func packError(err error) *wireError {
	if err == nil {
		return nil
	}
	e := &wireError{Message: err.Error()}
	if _, ok := errors.AsType[*hypervisor.ConflictError](err); ok {
		e.Kind = kindConflict
	} else if _, ok := errors.AsType[*hypervisor.InvalidError](err); ok {
		e.Kind = kindInvalid
	}
	for kind, sentinel := range sentinels {
		if errors.Is(err, sentinel) {
			e.Kind = kind
		}
	}
	return e
}

func (e *wireError) unpack() error {
	if e == nil {
		return nil
	}
	switch e.Kind {
	case kindConflict:
		return &hypervisor.ConflictError{Message: e.Message}
	case kindInvalid:
		return &hypervisor.InvalidError{Message: e.Message}
	}
	sentinel, ok := sentinels[e.Kind]
	switch {
	case !ok:
		return errors.New(e.Message)
	case sentinel.Error() == e.Message:
		return sentinel
	default:
		return fmt.Errorf("%w: %s", sentinel, e.Message)
	}
}

var watchStream = grpc.StreamDesc{StreamName: "Watch", ServerStreams: true}

var consoleStream = grpc.StreamDesc{StreamName: "Console", ServerStreams: true, ClientStreams: true}
