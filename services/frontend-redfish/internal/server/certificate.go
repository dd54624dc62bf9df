// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"

	"kubevirtbmc.dev/services/frontend-redfish/internal/resource"
)

func getCertificateService(context.Context, *call) (reply, error) {
	return ok(resource.NewCertificateService())
}

func getCertificateLocations(_ context.Context, c *call) (reply, error) {
	return ok(resource.NewCertificateLocations(c.endpoint.state.Load().ports))
}

func getHTTPSCertificates(_ context.Context, c *call) (reply, error) {
	return ok(resource.NewHTTPSCertificates(c.endpoint.state.Load().ports))
}

// getHTTPSCertificate answers with the certificate that clients are shown now.
func (s *Server) getHTTPSCertificate(_ context.Context, c *call) (reply, error) {
	state := c.endpoint.state.Load()
	if state.ports.HTTPS == 0 {
		return reply{}, missing(c)
	}
	pair, err := s.certificateFor(state)
	if err != nil {
		return reply{}, err
	}
	r, err := resource.NewCertificate(pair.Certificate)
	if err != nil {
		return reply{}, err
	}
	return ok(r)
}
