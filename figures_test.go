package reservoir_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
)

// Every field of Stats is a figure, once, also one that is yet to come.
func TestEveryFieldOfStatsIsAFigure(t *testing.T) {
	figures := reservoir.Figures()
	fields := reflect.TypeFor[reservoir.Stats]()
	assert.Len(t, figures, fields.NumField())
	for i := range fields.NumField() {
		var s reservoir.Stats
		reflect.ValueOf(&s).Elem().Field(i).SetInt(1)
		field := fields.Field(i).Name
		shown := slices.DeleteFunc(slices.Clone(figures), func(f reservoir.Figure) bool { return f.Value(&s) != 1 })
		require.Len(t, shown, 1, field)
		assert.Equal(t, slices.Contains(gauges, field), shown[0].Gauge, field)
	}
}

func TestFiguresHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range reservoir.Figures() {
		assert.Regexp(t, `^[a-z]+([._][a-z]+)*$`, f.Name)
		assert.False(t, seen[f.Name], "%s is there twice", f.Name)
		seen[f.Name] = true
		assert.Contains(t, []string{"token", "call", "request", "key"}, f.Unit, f.Name)
		assert.Regexp(t, `^[A-Z].*\.$`, f.Help, f.Name)
	}
}
