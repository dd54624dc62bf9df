// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Results of a datagram, a label of a metric.
const (
	datagramServed      = "served"
	datagramMalformed   = "malformed"
	datagramIgnored     = "ignored"
	datagramUnauthentic = "unauthentic"
	datagramReplayed    = "replayed"
	datagramLimited     = "limited"
	datagramPanic       = "panic"
)

// Results of a login, a label of a metric.
const (
	loginSucceeded = "succeeded"
	loginFailed    = "failed"
	loginBackoff   = "backoff"
	loginFull      = "full"
)

type metrics struct {
	bmcs      prometheus.Gauge
	sessions  prometheus.Gauge
	consoles  prometheus.Gauge
	datagrams *prometheus.CounterVec
	logins    *prometheus.CounterVec
	commands  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		bmcs:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "vbmc_ipmi_bmcs", Help: "BMCs that are served."}),
		sessions: prometheus.NewGauge(prometheus.GaugeOpts{Name: "vbmc_ipmi_sessions", Help: "Active sessions."}),
		consoles: prometheus.NewGauge(prometheus.GaugeOpts{Name: "vbmc_ipmi_consoles", Help: "Active SOL payload instances."}),
		datagrams: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vbmc_ipmi_datagrams_total", Help: "Datagrams that came, by what became of them.",
		}, []string{"result"}),
		logins: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vbmc_ipmi_logins_total", Help: "Logins, by result.",
		}, []string{"result"}),
		commands: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vbmc_ipmi_commands_total", Help: "Commands, by name and completion code.",
		}, []string{"command", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "vbmc_ipmi_command_duration_seconds", Help: "Time that commands of other services took.",
			Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5},
		}, []string{"command"}),
	}
	if registerer == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.bmcs, m.sessions, m.consoles, m.datagrams, m.logins, m.commands, m.duration} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}
