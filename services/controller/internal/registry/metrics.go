// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
)

// metrics counts what a registry does, and tells what it has when it is asked.
type metrics struct {
	registry *Registry
	moves    *prometheus.CounterVec
	strays   prometheus.Counter

	bmcs, replicas *prometheus.Desc
}

func newMetrics(registerer prometheus.Registerer, registry *Registry) (*metrics, error) {
	m := &metrics{
		registry: registry,
		moves: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vbmc_registry_moves_total", Help: "BMCs that got another owner, by protocol.",
		}, []string{"protocol"}),
		strays: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "vbmc_registry_stray_acknowledgements_total", Help: "Acknowledgements that told nothing new.",
		}),
		bmcs:     prometheus.NewDesc("vbmc_registry_bmcs", "BMCs, by protocol and how far their owners are.", []string{"protocol", "state"}, nil),
		replicas: prometheus.NewDesc("vbmc_registry_replicas", "Replicas of frontends that are connected, by protocol.", []string{"protocol"}, nil),
	}
	for _, c := range []prometheus.Collector{m.moves, m.strays, m} {
		if err := registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) moved(protocol registryv1.Protocol) { m.moves.WithLabelValues(label(protocol)).Inc() }

// Describe implements prometheus.Collector.
func (m *metrics) Describe(descs chan<- *prometheus.Desc) {
	descs <- m.bmcs
	descs <- m.replicas
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(values chan<- prometheus.Metric) {
	states := [...]string{Pending: "pending", Serving: "serving", Failed: "failed"}
	var bmcs [len(protocols)][len(states)]int
	var replicas [len(protocols)]int
	m.registry.mu.Lock()
	for _, b := range m.registry.bmcs {
		for i, s := range b.services {
			if s != nil {
				bmcs[i][s.status().State]++
			}
		}
	}
	for i, protocol := range protocols {
		for id, replica := range m.registry.replicas {
			if id.Protocol == protocol && replica.connected() {
				replicas[i]++
			}
		}
	}
	m.registry.mu.Unlock()
	for i, protocol := range protocols {
		for state, n := range bmcs[i] {
			values <- prometheus.MustNewConstMetric(m.bmcs, prometheus.GaugeValue, float64(n), label(protocol), states[state])
		}
		values <- prometheus.MustNewConstMetric(m.replicas, prometheus.GaugeValue, float64(replicas[i]), label(protocol))
	}
}

func label(protocol registryv1.Protocol) string {
	return strings.ToLower(strings.TrimPrefix(protocol.String(), "PROTOCOL_"))
}
