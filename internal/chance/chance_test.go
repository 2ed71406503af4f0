package chance

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// With a seed the order is the same each time, and another at another instant.
func TestOrder(t *testing.T) {
	m := map[string]int{}
	for i := range 100 {
		m[string(rune('0'+i))] = i
	}
	order := func() (names []string) {
		for name, v := range Order(m) {
			require.Equal(t, m[name], v)
			names = append(names, name)
		}
		return names
	}
	synctest.Test(t, func(t *testing.T) {
		defer Seed(1)()
		first := order()
		require.Equal(t, first, order())
		require.ElementsMatch(t, slices.Collect(maps.Keys(m)), first)
		time.Sleep(time.Millisecond)
		require.NotEqual(t, first, order())
		for name := range Order(m) { // what is deleted on the way does not come
			clear(m)
			require.Contains(t, first, name)
		}
	})
	require.Empty(t, order())
}
