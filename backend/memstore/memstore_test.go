package memstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestCounters: limits of one key that differ in kind or length count apart, and Inspect shows them all.
func TestCounters(t *testing.T) {
	s, ctx := memstore.New(), t.Context()
	for _, l := range []backend.Limit{{Tokens: 5, Window: time.Hour}, {Tokens: 5, Window: time.Minute}, {Tokens: 9, Window: time.Minute}} {
		_, err := s.Sync(ctx, backend.Statement{Key: "k", Limit: l, Need: 1})
		require.NoError(t, err)
	}
	_, err := s.TakeRolling(ctx, backend.TakeRequest{Key: "k", Limit: backend.Limit{Tokens: 5, Window: time.Minute}.Rolling(), Tokens: 4})
	require.NoError(t, err)
	list, err := s.Inspect(ctx, "k")
	require.NoError(t, err)
	used := map[string]int64{}
	for _, c := range list {
		used[c.Counter] = c.Used
	}
	require.Equal(t, map[string]int64{"3600s": 1, "60s": 2, "60s:roll": 4}, used)
	list, err = s.Inspect(ctx, "other")
	require.NoError(t, err)
	require.Empty(t, list)
}
