package redisstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/sharding"
)

// TestShard: a cluster's masters are parts of the store, once they are known.
func TestShard(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	s := redisstore.New(c.Client())
	outer, err := sharding.New(map[string]backend.Store{"eu": s})
	require.NoError(t, err)
	c.ResetStats()
	require.Empty(t, s.Shard("k"))
	require.Equal(t, "eu", outer.Shard("k"))
	require.Zero(t, c.Calls("cluster|slots"), "it asked nobody")
	take(t, s, "k", 1)
	for _, key := range []string{"foo", "bar", "k", "hello"} {
		require.Equal(t, c.NodeOf(key).Addr(), s.Shard(key))
		require.Equal(t, "eu/"+c.NodeOf(key).Addr(), outer.Shard(key))
	}

	one := redisstore.New(redistest.Start(t).Client())
	require.Empty(t, one.Shard("k"))
	take(t, one, "k", 1)
	require.Empty(t, one.Shard("k"))
	require.Empty(t, redisstore.New(nil).Shard("k"))
}

// TestBreakerIsPerNode: while a master hangs its keys get the failure policy's
// answer at once, and those of the others are served.
func TestBreakerIsPerNode(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	sick := sickCluster{c, c.NodeOf("sick")}
	states := make(chan reservoir.ShardState, 100)
	l, err := reservoir.New(redisstore.New(c.Client()), reservoir.PerHour(1000), reservoir.WithDirect(),
		reservoir.WithFetchTimeout(time.Second), // of a busy machine
		reservoir.WithHooks(reservoir.Hooks{ShardState: func(s reservoir.ShardState) { states <- s }}))
	require.NoError(t, err)
	defer func() { assert.NoError(t, l.Close(context.Background())) }()
	for _, node := range c.Nodes {
		require.NoError(t, node.Client().ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err())
	}
	allow := func(key string) error { _, err := l.Allow(context.Background(), key); return err }
	require.Eventually(t, func() bool { return allow("first") == nil }, 10*time.Second, time.Millisecond)
	ill, well := sick.keys(true, 8), sick.keys(false, 8)
	sick.sick.Pause()
	open := false
	for range 1000 {
		for i := range ill {
			require.Error(t, allow(ill[i]))
			require.NoError(t, allow(well[i]))
		}
		if open = len(states) > 0; open {
			break
		}
	}
	require.True(t, open)
	state := <-states
	require.True(t, state.Away)
	require.Equal(t, sick.sick.Addr(), state.Shard)
	began := time.Now()
	for range 100 {
		for i := range ill {
			err := allow(ill[i])
			failure, ok := errors.AsType[*reservoir.StoreError](err)
			require.True(t, ok)
			require.NotEqual(t, backend.Rejected, failure.Class)
			require.NoError(t, allow(well[i]))
		}
	}
	require.Less(t, time.Since(began), 100*time.Second, "they do not wait for their time-outs: that would be 800 s")
	require.Empty(t, states, "no other has opened")
	sick.sick.Resume()
	require.Eventually(t, func() bool { return allow(ill[0]) == nil }, 20*time.Second, 5*time.Millisecond)
}
