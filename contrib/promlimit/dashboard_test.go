package promlimit_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
)

var (
	selector   = regexp.MustCompile(`\b(reservoir_\w+)(?:\{([^}]*)\})?`)
	ofMatcher  = regexp.MustCompile(`(\w+)\s*[=!]~?\s*"`)
	grouping   = regexp.MustCompile(`\bby\s*\(([^)]*)\)`)
	ofVariable = regexp.MustCompile(`label_values\((reservoir_\w+).*, (\w+)\)`)
)

// The dashboard reads metrics and labels that are exported, and leaves out no metric.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Definition string } }
	}
	require.NoError(t, json.Unmarshal(text, &board))

	metrics := full(prometheus.Labels{"limiter": "api"})
	metrics.Hooks().ShardState(reservoir.ShardState{Shard: "a", Away: true})
	labelsOf, shown := map[string]map[string]bool{}, map[string]bool{} // by what a query calls the series
	for name, family := range scrape(t, with(t, metrics)) {
		shown[name] = false
		all := map[string]bool{"job": true, "instance": true, "le": true} // of Prometheus itself
		for label := range labels(family.Metric[0]) {
			all[label] = true
		}
		labelsOf[name] = all
		if family.GetType() == dto.MetricType_HISTOGRAM {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				labelsOf[name+suffix] = all
			}
		}
	}
	queries := 0
	check := func(where, name string, labels ...string) {
		require.Contains(t, labelsOf, name, where)
		for _, label := range labels {
			assert.True(t, labelsOf[name][strings.TrimSpace(label)], "%s: %s has no label %s", where, name, label)
		}
		for _, family := range []string{name, strings.TrimSuffix(name, "_bucket"), strings.TrimSuffix(name, "_sum"), strings.TrimSuffix(name, "_count")} {
			if _, ok := shown[family]; ok {
				shown[family] = true
			}
		}
		queries++
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			var by []string
			for _, g := range grouping.FindAllStringSubmatch(target.Expr, -1) {
				by = append(by, strings.Split(g[1], ",")...)
			}
			for _, s := range selector.FindAllStringSubmatch(target.Expr, -1) {
				check(p.Title, s[1], by...)
				for _, m := range ofMatcher.FindAllStringSubmatch(s[2], -1) {
					check(p.Title, s[1], m[1])
				}
			}
		}
	}
	for _, v := range board.Templating.List {
		if m := ofVariable.FindStringSubmatch(v.Definition); m != nil {
			check(v.Definition, m[1], m[2])
		}
	}
	require.Greater(t, queries, 20)
	for name, on := range shown {
		assert.True(t, on, "%s is not on the dashboard", name)
	}
}
