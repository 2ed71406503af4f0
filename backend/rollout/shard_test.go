package rollout_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/sharding"
)

func sharded(t *testing.T, shards map[string]backend.Store) *sharding.Store {
	t.Helper()
	s, err := sharding.New(shards)
	require.NoError(t, err)
	return s
}

func TestShard(t *testing.T) {
	plain := memstore.New()
	east := sharded(t, map[string]backend.Store{"east": memstore.New()})
	west := sharded(t, map[string]backend.Store{"west": memstore.New()})
	for _, row := range []struct {
		old, new  backend.Store
		low, high float64
		want      string
	}{
		{plain, plain, 0, 0, "old"},
		{plain, plain, 0, 100, "both"},
		{plain, plain, 100, 100, "new"},
		{east, west, 0, 0, "old/east"},
		{east, west, 0, 100, "both/east+west"},
		{east, west, 100, 100, "new/west"},
		{east, plain, 0, 100, "both/east+"},
		{plain, west, 0, 100, "both/+west"},
	} {
		s := open(t, row.old, row.new, row.low, row.high)
		require.Equal(t, row.want, s.Shard("k"))
		require.LessOrEqual(t, testing.AllocsPerRun(100, func() { s.Shard("k") }), 1.0)
	}
}

// Two places share no name, whatever the stores call theirs.
func TestShardOfAKeyInBothIsNoOthers(t *testing.T) {
	name := func(old, new string) string {
		return open(t, sharded(t, map[string]backend.Store{old: memstore.New()}),
			sharded(t, map[string]backend.Store{new: memstore.New()}), 0, 100).Shard("k")
	}
	require.Equal(t, "both/a+b+c", name("a", "b+c"))
	require.Equal(t, "both/a%2Bb+c", name("a+b", "c"))
	require.Equal(t, "both/a%252Bb+c", name("a%2Bb", "c"))
}

// The shard's name tells where the calls go, also of a key that leaves a store. The
// longest window counts, and a refund of one from elsewhere is not to make it long.
func TestShardOfAKeyThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, memstore.New(), memstore.New(), 0, 100)
		require.NoError(t, s.SetPercent(100, 100))
		require.Equal(t, "new", s.Shard("k"), "no window is known")
		for _, window := range []time.Duration{time.Second, time.Minute, time.Second, backend.MaxWindow + 1} {
			_, _ = s.Check(t.Context(), "k", backend.Limit{Tokens: 1, Window: window})
		}
		_, err := s.Refund(t.Context(), backend.RefundRequest{Key: "k", Window: 1 << 50, Client: "r", Total: 1})
		require.NoError(t, err)
		for range 62 {
			require.Equal(t, "both", s.Shard("k"))
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		require.Equal(t, "new", s.Shard("k"))
	})
}

// requireApart has a key fail until its shard is away, and another one served still.
func requireApart(t *testing.T, l *reservoir.Limiter, dead, well string, away *far) {
	t.Helper()
	for range 10 {
		_, err := l.Allow(t.Context(), dead)
		require.Error(t, err)
	}
	require.Less(t, away.calls.Load(), int64(10), "its breaker has opened")
	r, err := l.Allow(t.Context(), well)
	require.NoError(t, err)
	require.True(t, r.Allowed)
}

func direct(t *testing.T, s backend.Store) *reservoir.Limiter {
	l, err := reservoir.New(s, reservoir.PerMinute(600), reservoir.WithDirect())
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

// The old store dies while keys are leaving it: those that have long been in the
// new one alone do not hear of it.
func TestOldStoreDiesWhileKeysLeave(t *testing.T) {
	const leaves, left = "user:42", "x" // at 83 and 17
	synctest.Test(t, func(t *testing.T) {
		old, new := newFar(0), newFar(0)
		s := open(t, old, new, 50, 50)
		l := direct(t, s)
		_, err := l.Allow(t.Context(), leaves)
		require.NoError(t, err)
		require.NoError(t, s.SetPercent(50, 100))
		require.NoError(t, s.SetPercent(100, 100))
		old.gone.Store(true)
		old.calls.Store(0)
		requireApart(t, l, leaves, left, old)
		time.Sleep(70 * time.Second)
		_, err = l.Allow(t.Context(), leaves)
		require.NoError(t, err)
	})
}

// A part of the old store dies while keys are in both: those in its other part do
// not hear of it.
func TestPartDiesWhileKeysAreInBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		east, west := newFar(0), newFar(0)
		old := sharded(t, map[string]backend.Store{"east": east, "west": west})
		at := map[string]string{}
		for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			at[old.Shard(key)] = key
		}
		require.Len(t, at, 2)
		l := direct(t, open(t, old, memstore.New(), 0, 100))
		east.gone.Store(true)
		requireApart(t, l, at["east"], at["west"], east)
	})
}
