// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/logkey"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/backend"
	"kubevirtbmc.dev/services/frontend-redfish/internal/message"
	"kubevirtbmc.dev/services/frontend-redfish/internal/resource"
)

// resetWait is how long a reset waits for its goal before it answers. Some
// clients (redfishtool, Ansible) give up after 10 s, and would then report an
// action as failed that is being carried out.
const resetWait = 8 * time.Second

func (s *Server) getSystem(ctx context.Context, c *call) (reply, error) {
	m, err := s.machine(ctx, c, backend.Power|backend.Boot|backend.Inventory)
	if err != nil {
		return reply{}, err
	}
	return ok(resource.NewSystem(m.Power, m.Boot, m.Inventory, c.endpoint.state.Load().ports))
}

func (s *Server) machine(ctx context.Context, c *call, parts backend.Part) (backend.Machine, error) {
	if c.read != nil {
		if m, known := c.read.machines[parts]; known {
			return m, nil
		}
	}
	m, err := s.cfg.Backend.Machine(ctx, c.endpoint.ref, parts)
	if c.read != nil && err == nil {
		c.read.machines[parts] = m
	}
	return m, err
}

// patchSystem changes boot override and firmware mode, which is all that can be
// changed.
func (s *Server) patchSystem(ctx context.Context, c *call) (reply, error) {
	body, refusal := readBody(c)
	switch {
	case refusal != nil:
		return reply{}, refusal
	case body == nil:
		return reply{}, message.Errorf(http.StatusBadRequest, message.MalformedJSON)
	case len(body) == 0:
		return reply{}, message.Errorf(http.StatusBadRequest, message.EmptyJSON)
	}
	m, err := s.machine(ctx, c, backend.Power|backend.Boot|backend.Inventory)
	if err != nil {
		return reply{}, err
	}
	system := resource.NewSystem(m.Power, m.Boot, m.Inventory, c.endpoint.state.Load().ports)
	if !matches(c.r.Header.Values("If-Match"), resource.SetETag(system)) {
		return reply{}, message.Errorf(http.StatusPreconditionFailed, message.PreconditionFailed)
	}
	request, notes, refusal := s.parseSystem(body, system, m)
	if refusal != nil {
		return reply{}, refusal
	}
	override, mode, refusal := request.changes(m.Boot)
	if refusal != nil {
		return reply{}, refusal
	}
	if m.Boot, err = s.changeBoot(ctx, c, m.Boot, request.order, override, mode); err != nil {
		return reply{}, err
	}
	system = resource.NewSystem(m.Power, m.Boot, m.Inventory, c.endpoint.state.Load().ports)
	if len(notes) > 0 {
		system.Messages = notes
	}
	return ok(system)
}

// changeBoot changes the boot order, unless it is nil, and override or firmware mode.
// Where those can't be had, the order is what it was.
func (s *Server) changeBoot(ctx context.Context, c *call, now *bootv1.BootStatus, order []string, override *bootv1.BootOverride, mode bootv1.FirmwareMode) (*bootv1.BootStatus, error) {
	before, ref, client := now, c.endpoint.ref, s.cfg.Backend
	var err error
	if order != nil {
		if now, err = client.SetBootOrder(ctx, ref, order); err != nil {
			return nil, err
		}
	}
	if override != nil {
		now, err = client.SetBootOverride(ctx, ref, override)
	}
	if err == nil && mode != bootv1.FirmwareMode_FIRMWARE_MODE_UNSPECIFIED {
		now, err = client.SetFirmwareMode(ctx, ref, mode)
	}
	if err != nil && order != nil {
		if _, backErr := client.SetBootOrder(ctx, ref, resource.BootOrder(before)); backErr != nil {
			err = errors.Join(err, backErr)
		}
	}
	return now, err
}

// parseSystem reads the body of a PATCH.
func (s *Server) parseSystem(body properties, system *resource.System, m backend.Machine) (bootRequest, []message.Message, *message.Error) {
	served := servedProperties(system)
	var (
		request         bootRequest
		problems, notes []message.Message
	)
	for name := range body {
		pointer := "#/" + escapePointer(name)
		switch {
		case name == "Boot":
			var boot properties
			if err := json.Unmarshal(body[name], &boot); err != nil || boot == nil {
				problems = append(problems, message.New(message.PropertyValueTypeError, body.show(name), name).About(pointer))
				continue
			}
			var more, moreNotes []message.Message
			request, more, moreNotes = parseBoot(boot, propertiesOf(system.Boot), m.Boot)
			problems, notes = append(problems, more...), append(notes, moreNotes...)
		case strings.Contains(name, "@"): // Annotations are for readers.
		case served[name]:
			notes = append(notes, message.New(message.PropertyNotWritable, name).About(pointer))
		default:
			notes = append(notes, message.New(message.PropertyUnknown, shorten(name)).About(pointer))
		}
	}
	slices.SortFunc(notes, byArguments)
	switch {
	case len(problems) > 0:
		return request, nil, &message.Error{Status: http.StatusBadRequest, Messages: append(problems, notes...)}
	case request.empty() && len(notes) > 0:
		return request, nil, &message.Error{Status: http.StatusBadRequest, Messages: notes}
	case request.empty():
		return request, nil, message.Errorf(http.StatusBadRequest, message.NoOperation)
	}
	return request, notes, nil
}

// servedProperties returns the names of a resource's properties.
func servedProperties(r resource.Resource) map[string]bool { return propertiesOf(r) }

func propertiesOf(object any) map[string]bool {
	names := map[string]bool{}
	raw, err := json.Marshal(object)
	if err != nil {
		return names
	}
	var p properties
	if err := json.Unmarshal(raw, &p); err != nil {
		return names
	}
	for name := range p {
		names[name] = true
	}
	return names
}

// resetSystem carries out a ComputerSystem.Reset. It answers 204 when the goal
// is reached, and also when the action was accepted and takes longer: clients
// then poll the power state, while 202 makes some look for a task.
func (s *Server) resetSystem(ctx context.Context, c *call) (reply, error) {
	const name = "ComputerSystem.Reset"
	resetType, refusal := readResetType(c, name, resource.SystemResetTypes())
	if refusal != nil {
		return reply{}, refusal
	}
	action, _ := resource.SystemResetAction(resetType)
	status, err := s.cfg.Backend.Transition(ctx, c.endpoint.ref, action, resetWait)
	if restarts[action] && grpcstatus.ReasonOf(err) == errorsv1.Reason_REASON_INVALID_POWER_STATE && s.isOff(ctx, c) {
		action = powerv1.PowerAction_POWER_ACTION_ON
		status, err = s.cfg.Backend.Transition(ctx, c.endpoint.ref, action, resetWait)
	}
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "power action failed", logkey.Request, c.id, logkey.Action, resetType, logkey.Error, err.Error())
		return reply{}, backend.Explain(err, backend.Subject{URI: c.r.URL.Path, Action: name})
	}
	s.cfg.Log.InfoContext(ctx, "power action accepted", logkey.Request, c.id,
		logkey.Namespace, c.endpoint.ref.GetNamespace(), logkey.BMC, c.endpoint.ref.GetName(),
		logkey.User, c.account.Username, logkey.Action, resetType, logkey.Operation, status.GetOperation().GetId(),
		logkey.State, status.GetOperation().GetPhase().String())
	if refusal := operationFailed(status.GetOperation()); refusal != nil {
		return reply{}, refusal
	}
	return reply{status: http.StatusNoContent}, nil
}

// restarts are the actions that end with a machine that runs, wherever they begin: of
// one that is off, nothing is left to do but to switch it on. The DMTF's use case
// checkers expect that.
var restarts = map[powerv1.PowerAction]bool{
	powerv1.PowerAction_POWER_ACTION_FORCE_RESTART: true,
	powerv1.PowerAction_POWER_ACTION_POWER_CYCLE:   true,
}

func (s *Server) isOff(ctx context.Context, c *call) bool {
	m, err := s.cfg.Backend.Machine(ctx, c.endpoint.ref, backend.Power)
	return err == nil && m.Power.GetState() == powerv1.PowerState_POWER_STATE_OFF
}

// operationFailed returns the answer for an operation that ended without its
// goal; nil for others.
func operationFailed(operation *powerv1.Operation) *message.Error {
	var e *message.Error
	switch operation.GetPhase() {
	case powerv1.OperationPhase_OPERATION_PHASE_FAILED:
		e = message.Errorf(http.StatusInternalServerError, message.OperationFailed)
		e.Text = operation.GetMessage()
	case powerv1.OperationPhase_OPERATION_PHASE_SUPERSEDED:
		e = message.Errorf(http.StatusConflict, message.ResourceInUse)
		e.Text = "The action was accepted, and then replaced by a later one."
	}
	return e
}

// readResetType returns the ResetType of a reset action. Parameters that are
// not known are ignored: some clients add their vendor's.
func readResetType(c *call, action string, allowed []string) (string, *message.Error) {
	const name = "ResetType"
	body, refusal := readBody(c)
	if refusal != nil {
		return "", refusal
	}
	value, wrong := body.text(name)
	var m message.Message
	switch {
	case wrong:
		m = message.New(message.ActionParameterValueTypeError, body.show(name), name, action)
	case value == nil:
		m = message.New(message.ActionParameterMissing, action, name)
	case !slices.Contains(allowed, *value):
		m = message.New(message.ActionParameterValueNotInList, shorten(*value), name, action)
	default:
		return *value, nil
	}
	return "", &message.Error{Status: http.StatusBadRequest, Messages: []message.Message{m.About("#/" + name)}}
}

// matches tells whether an If-Match header admits a change of the resource with
// an ETag. Weak tags count as strong ones, and a tag may carry the suffix that
// compressing proxies add.
func matches(header []string, etag string) bool {
	if len(header) == 0 {
		return true
	}
	bare := func(tag string) string {
		tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/")
		tag = strings.ReplaceAll(tag, `"`, "")
		for _, suffix := range [...]string{"--gzip", "-gzip", ";gzip"} {
			tag = strings.TrimSuffix(tag, suffix)
		}
		return tag
	}
	for _, line := range header {
		for tag := range strings.SplitSeq(line, ",") {
			if t := bare(tag); t == "*" || t == bare(etag) {
				return true
			}
		}
	}
	return false
}
