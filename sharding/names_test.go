package sharding_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/sharding"
)

// parted is a store with parts of these names; "" is none, as a cluster has it that
// has not answered yet.
type parted struct {
	backend.Store
	parts []string
}

func (p parted) Shard(key string) string { return p.parts[len(key)%len(p.parts)] }

// within returns a store over shards that are stores themselves, or plain if nil.
func within(t *testing.T, shards map[string]backend.Store) *sharding.Store {
	t.Helper()
	for name, store := range shards {
		if store == nil {
			shards[name] = memstore.New()
		}
	}
	s, err := sharding.New(shards)
	require.NoError(t, err)
	return s
}

// places are the names that keys of s have: with so many keys, all that there are.
func places(s *sharding.Store) []string {
	seen := map[string]bool{}
	for i := range 4000 {
		seen[s.Shard(fmt.Sprint("user:", i))] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// TestNamesOfPlaces: a limiter takes places of the same name for one place, with one
// breaker, so each has its own; names without parts stay what they are.
func TestNamesOfPlaces(t *testing.T) {
	parts := func(names ...string) backend.Store { return parted{memstore.New(), names} }
	for what, row := range map[string]struct {
		shards map[string]backend.Store
		want   []string
	}{
		"plain":         {map[string]backend.Store{"h:1": nil, "h:1/2": nil, "a%": nil, "a%/": nil}, []string{"a%", "a%/", "h:1", "h:1/2"}},
		"parts":         {map[string]backend.Store{"a": over(t, "b", "c/d"), "b": nil}, []string{"a/b", "a/c/d", "b"}},
		"both joined":   {map[string]backend.Store{"a": over(t, "b/c"), "a/b": over(t, "c")}, []string{"a%/b/c", "a%2Fb/c"}},
		"one is plain":  {map[string]backend.Store{"a": over(t, "b"), "a/b": nil}, []string{"a%/b", "a/b"}},
		"both as plain": {map[string]backend.Store{"a": over(t, "b"), "a/b": nil, "a%/b": nil}, []string{"a%%/b", "a%/b", "a/b"}},
		"escaped":       {map[string]backend.Store{"a/b": over(t, "c"), "a%2Fb": over(t, "c")}, []string{"a%252Fb/c", "a%2Fb/c"}},
		"as escaped":    {map[string]backend.Store{"a/b": over(t, "c"), "a%2Fb/c": nil}, []string{"a%2Fb%/c", "a%2Fb/c"}},
		"slashes":       {map[string]backend.Store{"a": over(t, "/b"), "a/": over(t, "b")}, []string{"a%//b", "a%2F/b"}},
		"a cluster":     {map[string]backend.Store{"h:1": parts("", "h:2"), "h:1/2": parts("", "h:2")}, []string{"h:1", "h:1%/h:2", "h:1%2F2/h:2", "h:1/2"}},
		"three deep":    {map[string]backend.Store{"a": within(t, map[string]backend.Store{"b/c": over(t, "d"), "b": over(t, "c/d")}), "e": nil}, []string{"a/b%/c/d", "a/b%2Fc/d", "e"}},
	} {
		t.Run(what, func(t *testing.T) {
			require.Equal(t, row.want, places(within(t, row.shards)))
		})
	}
}
