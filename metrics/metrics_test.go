package metrics_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gauges are the fields of Stats that may go down.
var gauges = []string{"Keys", "Unsubscribed", "Held", "Idle", "Debt"}

// Every field of Stats has a metric, once, also one that is yet to come.
func TestEveryFieldOfStatsIsAMetric(t *testing.T) {
	all := metrics.All()
	fields := reflect.TypeFor[reservoir.Stats]()
	assert.Len(t, all, fields.NumField())
	for i := range fields.NumField() {
		var s reservoir.Stats
		reflect.ValueOf(&s).Elem().Field(i).SetInt(1)
		field := fields.Field(i).Name
		shown := slices.DeleteFunc(slices.Clone(all), func(m metrics.Metric) bool { return m.Value(&s) != 1 })
		require.Len(t, shown, 1, field)
		assert.Equal(t, slices.Contains(gauges, field), shown[0].Gauge, field)
	}
}

func TestMetricsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range metrics.All() {
		assert.Regexp(t, `^[a-z]+([._][a-z]+)*$`, m.Name)
		assert.False(t, seen[m.Name], "%s is there twice", m.Name)
		seen[m.Name] = true
		assert.Contains(t, []string{"token", "call", "request", "hold", "key", "shard"}, m.Unit, m.Name)
		assert.Regexp(t, `^[A-Z].*\.$`, m.Help, m.Name)
	}
}
