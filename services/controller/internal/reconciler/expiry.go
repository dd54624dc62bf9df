// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kubevirtbmc.dev/services/controller/internal/registry"
)

// maker is where a BMC's certificate comes from.
type maker string

// Makers of certificates, as the metric has them.
const (
	madeHere   maker = "controller"
	madeByUser maker = "user"
)

// expiries tells in a metric when the BMCs' certificates expire: of each maker's
// the first, so that there are as many values with 10,000 BMCs as with one.
type expiries struct {
	description *prometheus.Desc

	mu  sync.Mutex
	all map[registry.Ref]expiry
}

// expiry is when the certificate expires that a BMC is served with.
type expiry struct {
	maker maker
	at    time.Time
}

func newExpiries(metrics prometheus.Registerer) (*expiries, error) {
	e := &expiries{
		description: prometheus.NewDesc("vbmc_controller_bmc_certificate_expiry_timestamp_seconds",
			"When the first of the certificates expires that BMCs are served with, as Unix time, by who made them: the controller, or a user, in a Secret.",
			[]string{"maker"}, nil),
		all: map[registry.Ref]expiry{},
	}
	return e, metrics.Register(e)
}

// set takes note of the certificate that a BMC is served with; nil: there is none.
func (e *expiries) set(ref registry.Ref, by maker, certificate *served) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if certificate == nil {
		delete(e.all, ref)
	} else {
		e.all[ref] = expiry{by, certificate.notAfter}
	}
}

// Describe implements prometheus.Collector.
func (e *expiries) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- e.description }

// Collect implements prometheus.Collector. A maker of none has no value.
func (e *expiries) Collect(metrics chan<- prometheus.Metric) {
	e.mu.Lock()
	first := map[maker]time.Time{}
	for _, one := range e.all {
		first[one.maker] = earlier(first[one.maker], one.at)
	}
	e.mu.Unlock()
	for by, at := range first {
		metrics <- prometheus.MustNewConstMetric(e.description, prometheus.GaugeValue, float64(at.Unix()), string(by))
	}
}
