// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of a server. Labels have few values each: a route is a pattern.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	logins   *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer, s *Server) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vbmc_redfish_requests_total", Help: "Redfish requests by route, method and HTTP status.",
		}, []string{"route", "method", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "vbmc_redfish_request_duration_seconds", Help: "Time to answer a Redfish request.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 10, 30, 60},
		}, []string{"route", "method"}),
		logins: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vbmc_redfish_logins_total", Help: "Checks of a user name and password by result: accepted, refused, held_back.",
		}, []string{"result"}),
	}
	if registerer == nil {
		return m, nil
	}
	gauges := []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "vbmc_redfish_bmcs_count", Help: "BMCs that this replica serves over Redfish.",
		}, func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return float64(len(s.bmcs))
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "vbmc_redfish_sessions_count", Help: "Redfish sessions.",
		}, func() float64 {
			n := 0
			s.each(func(e *endpoint) { n += e.sessions.Expire() })
			return float64(n)
		}),
	}
	for _, c := range append(gauges, m.requests, m.duration, m.logins) {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) observe(route, method string, status int, took time.Duration) {
	switch method {
	case "GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS":
	default:
		method = "other"
	}
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
	m.duration.WithLabelValues(route, method).Observe(took.Seconds())
}
