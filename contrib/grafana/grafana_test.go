package grafana_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/contrib/grafana"
)

// dashboard is the part of Grafana's format that is checked.
type dashboard struct {
	Panels     []panel
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

type panel struct {
	ID      int
	Type    string
	Title   string
	GridPos struct{ X, Y, W, H int }
	Targets []struct {
		Expr, LegendFormat string
		Datasource         struct{ Type, UID string }
	}
}

func load(t *testing.T) (d dashboard) {
	t.Helper()
	require.NoError(t, json.Unmarshal(grafana.Dashboard, &d))
	require.NotEmpty(t, d.Panels)
	return d
}

// query is a parsed expression of the dashboard and where it stands.
type query struct {
	where, legend string
	expr          parser.Expr
}

// queries parses every expression as Prometheus does. Of Grafana's variables only
// the interval stands outside of strings.
func queries(t *testing.T) (all []query) {
	promql := parser.NewParser(parser.Options{})
	for _, p := range load(t).Panels {
		for _, target := range p.Targets {
			expr, err := promql.ParseExpr(strings.ReplaceAll(target.Expr, "$__rate_interval", "5m"))
			require.NoError(t, err, "%s: %s", p.Title, target.Expr)
			all = append(all, query{where: p.Title + ": " + target.Expr, legend: target.LegendFormat, expr: expr})
		}
	}
	require.Greater(t, len(all), 20)
	return all
}

// Every name, label and label value that is asked for is exported, and every
// metric that is exported is on the dashboard.
func TestQueriesMatchWhatIsExported(t *testing.T) {
	exported := prometheusExport(t)
	used := map[string]bool{}
	for _, q := range queries(t) {
		for _, s := range selectors(q.expr) {
			m, ok := exported[s.Name]
			require.True(t, ok, "%s: %s is not exported", q.where, s.Name)
			used[m.family] = true
			for _, match := range s.LabelMatchers {
				checkMatcher(t, q.where, m, match)
			}
		}
	}
	for name, m := range exported {
		assert.True(t, used[m.family], "%s is not on the dashboard", name)
	}
}

func selectors(e parser.Expr) (all []*parser.VectorSelector) {
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			all = append(all, s)
		}
		return nil
	})
	return all
}

func checkMatcher(t *testing.T, where string, m series, match *labels.Matcher) {
	t.Helper()
	if match.Name == model.MetricNameLabel {
		return
	}
	values, ok := m.labels[match.Name]
	assert.True(t, ok, "%s: no label %s", where, match.Name)
	if !strings.HasPrefix(match.Value, "$") {
		assert.Contains(t, values, match.Value, where)
	}
}

// Results are grouped by labels that are there, legends show those that are left,
// and rates are of what only grows.
func TestQueriesMakeSense(t *testing.T) {
	exported := prometheusExport(t)
	for _, q := range queries(t) {
		grouped := map[string]bool{}
		parser.Inspect(q.expr, func(n parser.Node, _ []parser.Node) error {
			switch n := n.(type) {
			case *parser.AggregateExpr:
				assert.False(t, n.Without, q.where)
				for _, label := range n.Grouping {
					grouped[label] = true
					for _, s := range selectors(n.Expr) {
						assert.Contains(t, exported[s.Name].labels, label, q.where)
					}
				}
			case *parser.Call:
				checkCall(t, q.where, exported, n)
			}
			return nil
		})
		for _, m := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(q.legend, -1) {
			assert.True(t, grouped[m[1]], "%s: legend %s", q.where, q.legend)
		}
	}
}

func checkCall(t *testing.T, where string, exported map[string]series, call *parser.Call) {
	t.Helper()
	for _, arg := range call.Args {
		for _, s := range selectors(arg) {
			switch call.Func.Name {
			case "rate", "increase":
				assert.NotEqual(t, "GAUGE", exported[s.Name].kind, where)
			case "histogram_quantile":
				assert.True(t, strings.HasSuffix(s.Name, "_bucket"), where)
			}
		}
	}
}

// What is not under rate or increase is a gauge: totals since the start mean
// nothing on a chart.
func TestCountersAreRates(t *testing.T) {
	exported := prometheusExport(t)
	for _, q := range queries(t) {
		parser.Inspect(q.expr, func(n parser.Node, path []parser.Node) error {
			if s, ok := n.(*parser.VectorSelector); ok {
				_, ranged := path[len(path)-1].(*parser.MatrixSelector)
				assert.Equal(t, exported[s.Name].kind != "GAUGE", ranged, "%s: %s", q.where, s.Name)
			}
			return nil
		})
	}
}

var variable = regexp.MustCompile(`\$\{?(\w+)`)

func TestVariables(t *testing.T) {
	d := load(t)
	exported := prometheusExport(t)
	defined := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		defined[v.Name] = true
		if v.Type != "query" {
			continue
		}
		m := regexp.MustCompile(`^label_values\((\w+)(?:\{.*\})?, (\w+)\)$`).FindStringSubmatch(v.Definition)
		require.NotNil(t, m, v.Definition)
		assert.Contains(t, exported, m[1])
		assert.Contains(t, exported[m[1]].labels, m[2])
	}
	for _, m := range variable.FindAllSubmatch(grafana.Dashboard, -1) {
		if name := string(m[1]); name != "__all" {
			assert.True(t, defined[name], "$%s is not defined", name)
		}
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			assert.Equal(t, "${datasource}", target.Datasource.UID, p.Title)
		}
	}
}

func TestLayout(t *testing.T) {
	taken := map[string]string{}
	var ids []int
	for _, p := range load(t).Panels {
		assert.NotContains(t, ids, p.ID)
		ids = append(ids, p.ID)
		assert.NotEmpty(t, p.Title)
		assert.Equal(t, p.Type == "row", len(p.Targets) == 0, p.Title)
		at := p.GridPos
		assert.LessOrEqual(t, at.X+at.W, 24, p.Title)
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				cell := fmt.Sprint(x, ",", y)
				assert.Empty(t, taken[cell], "%s lies on %s", p.Title, taken[cell])
				taken[cell] = p.Title
			}
		}
	}
}

// OpenTelemetry's exporter makes the same names, kinds and labels, so that the
// dashboard serves both.
func TestOpenTelemetryComesOutTheSame(t *testing.T) {
	want, got := prometheusExport(t), otelExport(t)
	for name, m := range want {
		require.Contains(t, got, name)
		assert.Equal(t, m.kind, got[name].kind, name)
		assert.ElementsMatch(t, names(m), slices.DeleteFunc(names(got[name]), func(n string) bool { return strings.HasPrefix(n, "otel_scope_") }), name)
		assert.Equal(t, m.help, got[name].help, name)
	}
	assert.Len(t, got, len(want))
}
