// Package grafana is a Grafana dashboard of what limiters do: reservoir.json,
// which Grafana imports as it is (Dashboards, New, Import).
//
// It asks a Prometheus data source for the metrics of contrib/promlimit, or for
// those of contrib/otellimit that came there by OpenTelemetry's Prometheus
// exporter: names and labels are the same. Limiters are told apart by the constant
// label limiter, and processes by job and instance, which Prometheus adds; without
// a label limiter all are shown as one.
//
// Programs that provision Grafana find the file in Dashboard.
package grafana

import _ "embed"

// Dashboard is reservoir.json: what Grafana's API takes as "dashboard".
//
//go:embed reservoir.json
var Dashboard []byte
