// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of a keeper.
type metrics struct {
	expiry   *prometheus.GaugeVec
	issued   prometheus.Counter
	failures prometheus.Counter
}

func newMetrics() *metrics {
	return &metrics{
		expiry: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "vbmc_controller_certificate_expiry_timestamp_seconds",
			Help: "When a certificate expires, as Unix time: that of the CA that signs (ca), of the CA to come (ca-next), or of a service, by its Secret. There is no value where there is no certificate.",
		}, []string{"certificate"}),
		issued: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "vbmc_controller_certificates_issued_total", Help: "Certificates of services that this controller has issued.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "vbmc_controller_certificate_failures_total", Help: "Attempts to keep the certificates that failed.",
		}),
	}
}

func (m *metrics) register(registry prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{m.expiry, m.issued, m.failures} {
		if err := registry.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func (m *metrics) expires(name string, at time.Time) {
	m.expiry.WithLabelValues(name).Set(float64(at.Unix()))
}

// gone says that a certificate is not there. Its last value would tell of one that
// nobody has.
func (m *metrics) gone(name string) { m.expiry.DeleteLabelValues(name) }

func (m *metrics) authorities(s *state) {
	for name, one := range map[string]*member{"ca": s.current, "ca-next": s.next} {
		if one == nil {
			m.gone(name)
		} else {
			m.expires(name, one.certificate.NotAfter)
		}
	}
}
