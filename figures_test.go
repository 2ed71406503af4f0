package reservoir_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
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

// An exporter for a monitoring system of one's own.
func ExampleFigures() {
	limiter, err := reservoir.New(memstore.New(), reservoir.PerMinute(1000))
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	limiter.AllowN(context.Background(), "user:42", 7)
	stats := limiter.Stats()
	for _, f := range reservoir.Figures() {
		if f.Name == "tokens.spent" {
			fmt.Println(f.Name, f.Value(&stats), f.Gauge)
		}
	}
	// Output: tokens.spent 7 false
}
