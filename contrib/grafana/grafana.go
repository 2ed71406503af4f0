// Package grafana has a Grafana dashboard for limiters. The dashboard is the file
// reservoir.json, which Grafana imports as it is (Dashboards, New, Import).
//
// The dashboard reads the metrics of contrib/promlimit from a Prometheus data source, or
// those of contrib/otellimit from OpenTelemetry's Prometheus exporter, because the names
// and labels are the same. The constant label limiter distinguishes limiters; without it,
// all are shown as one. Prometheus adds the labels job and instance, which distinguish
// processes.
//
// Programs that provision Grafana use [Dashboard].
package grafana

import _ "embed"

// Dashboard is the content of reservoir.json, which Grafana's API takes as "dashboard". Do
// not change it.
//
//go:embed reservoir.json
var Dashboard []byte
