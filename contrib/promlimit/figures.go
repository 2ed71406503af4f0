package promlimit

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-reservoir/reservoir"
)

// figure is one of reservoir.Figures as a metric.
type figure struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(s *reservoir.Stats) int64
}

func newFigures(labels prometheus.Labels) (all []figure) {
	for _, f := range reservoir.Figures() {
		name, kind := "reservoir_"+strings.ReplaceAll(f.Name, ".", "_"), prometheus.GaugeValue
		if !f.Gauge {
			name, kind = name+"_total", prometheus.CounterValue
		}
		all = append(all, figure{prometheus.NewDesc(name, f.Help, nil, labels), kind, f.Value})
	}
	return all
}

func (f figure) metric(s reservoir.Stats) prometheus.Metric {
	return prometheus.MustNewConstMetric(f.desc, f.kind, float64(f.value(&s)))
}
