// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"github.com/prometheus/client_golang/prometheus"

	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

// Metrics counts what an engine does; a nil one counts nothing.
type Metrics struct {
	operations *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	failures   *prometheus.CounterVec
	takeovers  prometheus.Counter
	bypassed   prometheus.Counter
}

// NewMetrics registers an engine's metrics.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vbmc_power_operations_total",
			Help: "Power operations that have ended, by action and how.",
		}, []string{"action", "phase"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "vbmc_power_operation_duration_seconds",
			Help:    "How long power operations took that reached their goal.",
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 14),
		}, []string{"action"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vbmc_power_step_failures_total",
			Help: "Requests that the hypervisor refused, by step.",
		}, []string{"step"}),
		takeovers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "vbmc_power_takeovers_total",
			Help: "Power operations that were taken over from another process, or an earlier one of the same name.",
		}),
		bypassed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "vbmc_power_boot_override_bypasses_total",
			Help: "Instances that were made without the boot override that was armed for them, as when the admission webhook does not answer.",
		}),
	}
	for _, c := range []prometheus.Collector{m.operations, m.durations, m.failures, m.takeovers, m.bypassed} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) ended(op *record.Operation) {
	if m == nil {
		return
	}
	action := "Unknown"
	if op.Action.Known() {
		action = string(op.Action)
	}
	m.operations.WithLabelValues(action, string(op.Phase)).Inc()
	if op.Phase == record.Succeeded {
		m.durations.WithLabelValues(action).Observe(op.End.Sub(op.Start).Seconds())
	}
}

func (m *Metrics) takenOver() {
	if m != nil {
		m.takeovers.Inc()
	}
}

func (m *Metrics) overrideBypassed() {
	if m != nil {
		m.bypassed.Inc()
	}
}

func (m *Metrics) stepFailed(step transition.Step) {
	if m == nil {
		return
	}
	m.failures.WithLabelValues(string(step)).Inc()
}
