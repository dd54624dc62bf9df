// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"slices"

	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/backend"
	"kubevirtbmc.dev/services/frontend-redfish/internal/message"
	"kubevirtbmc.dev/services/frontend-redfish/internal/resource"
)

func (s *Server) bootOptions(ctx context.Context, c *call) ([]*resource.BootOption, error) {
	m, err := s.machine(ctx, c, backend.Boot|backend.Inventory)
	return resource.BootOptions(m.Boot, m.Inventory), err
}

func (s *Server) getBootOptions(ctx context.Context, c *call) (reply, error) {
	options, err := s.bootOptions(ctx, c)
	if err != nil {
		return reply{}, err
	}
	return allOf(resource.BootOptionsURI, "BootOption", options)
}

func (s *Server) getBootOption(ctx context.Context, c *call) (reply, error) {
	options, err := s.bootOptions(ctx, c)
	if err != nil {
		return reply{}, err
	}
	return oneOf(c, options)
}

// ofBoot answers with a resource that is made of the boot status.
func ofBoot[R resource.Resource](s *Server, make func(*bootv1.BootStatus) R) func(context.Context, *call) (reply, error) {
	return func(ctx context.Context, c *call) (reply, error) {
		m, err := s.machine(ctx, c, backend.Boot)
		if err != nil {
			return reply{}, err
		}
		return ok(make(m.Boot))
	}
}

func getBiosRegistryFile(context.Context, *call) (reply, error) {
	return ok(resource.NewBiosRegistryFile())
}

func getBiosRegistry(context.Context, *call) (reply, error) {
	return reply{status: http.StatusOK, body: resource.NewAttributeRegistry()}, nil
}

// patchBiosSettings changes the firmware settings that count from the machine's next
// start on.
func (s *Server) patchBiosSettings(ctx context.Context, c *call) (reply, error) {
	body, refusal := readChange(c)
	if refusal != nil {
		return reply{}, refusal
	}
	m, err := s.machine(ctx, c, backend.Boot)
	if err != nil {
		return reply{}, err
	}
	settings := resource.NewBiosSettings(m.Boot)
	if refusal := checkMatch(c, settings); refusal != nil {
		return reply{}, refusal
	}
	const applyTime, annotation = "ApplyTime", "@Redfish.SettingsApplyTime"
	if apply := body.object(annotation); apply != nil {
		if when := apply.text(applyTime); when != nil && *when != resource.ApplyOnReset {
			apply.reject(applyTime, message.PropertyValueNotInList, shorten(*when), applyTime)
		}
		body.join(apply)
	}
	mode := bootv1.FirmwareMode_FIRMWARE_MODE_UNSPECIFIED
	if attributes := body.object("Attributes"); attributes != nil {
		if name := attributes.text(resource.BiosBootMode); name != nil {
			wanted, ok := resource.FirmwareMode(*name)
			if ok && slices.Contains(m.Boot.GetAllowedModes(), wanted) {
				mode = wanted
			} else {
				attributes.reject(resource.BiosBootMode, message.PropertyValueNotInList, shorten(*name), resource.BiosBootMode)
			}
		}
		attributes.rest(map[string]bool{resource.BiosSecureBoot: true})
		body.join(attributes)
	}
	body.rest(servedProperties(settings))
	if refusal := body.refusal(mode != bootv1.FirmwareMode_FIRMWARE_MODE_UNSPECIFIED); refusal != nil {
		return reply{}, refusal
	}
	status, err := s.cfg.Backend.SetFirmwareMode(ctx, c.endpoint.ref, mode)
	if err != nil {
		return reply{}, err
	}
	settings = resource.NewBiosSettings(status)
	if len(body.notes) > 0 {
		settings.Messages = body.notes
	}
	return ok(settings)
}
