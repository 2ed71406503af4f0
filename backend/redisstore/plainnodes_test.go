package redisstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// plainNodes is a store on a cluster's client whose nodes, a primary and its
// replica, know nothing of a cluster. redis.NewFailoverClusterClient makes such.
type plainNodes struct {
	*Store
	*redistest.Replicated
	t *testing.T
}

func newPlainNodes(t *testing.T) *plainNodes {
	t.Helper()
	r := redistest.StartReplicated(t, 1)
	all := []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: r.Primary.Addr()}, {Addr: r.Replicas[0].Addr()}}}}
	client := redis.NewClusterClient(&redis.ClusterOptions{
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { return all, nil },
	})
	t.Cleanup(func() { _ = client.Close() })
	x := &plainNodes{New(client), r, t}
	require.NoError(t, one(t.Context(), x.Store, syncScript))
	require.NotSame(t, x.primary.whole, x.group())
	return x
}

// group is the one that serves the key "k" now.
func (x *plainNodes) group() *group { return x.primary.group(x.t.Context(), "{k}") }

// requireServed requires that calls of each kind are served by the primary.
func (x *plainNodes) requireServed() {
	x.t.Helper()
	for _, sc := range scripts {
		require.NoError(x.t, one(x.t.Context(), x.Store, sc), sc.op)
	}
	require.True(x.t, strings.HasSuffix(x.Primary.Addr(), x.Shard("k")), "go-redis leaves a loopback address away")
}

// TestNoHeirAmongPlainNodes: a replica that is not in cluster mode answers a read
// whoever is the master, so nobody asks it whether it has become that. It would be
// sent every write from then on, because of one time-out.
func TestNoHeirAmongPlainNodes(t *testing.T) {
	x := newPlainNodes(t)
	own := x.group()
	x.Primary.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := one(ctx, x.Store, syncScript)
	x.Primary.Resume()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, findHeir, faultOf(err).cure)
	require.Zero(t, own.searches.last.Load(), "what a failure does is begun before the caller hears of it")
	x.requireServed()
	require.Same(t, own, x.group())
	require.Zero(t, x.Replicas[0].Calls("get", "evalsha"))
}

// TestHeirThatCannotWrite: an heir that turns out to be a replica is none, and the
// call that found out is served.
func TestHeirThatCannotWrite(t *testing.T) {
	x := newPlainNodes(t)
	own := x.group()
	replica, err := x.primary.cluster.SlaveForKey(t.Context(), "{k}")
	require.NoError(t, err)
	own.succeed(x.primary.of(replica))
	require.NotSame(t, own, x.group())
	_, err = x.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 1})
	require.NoError(t, err)
	require.EqualValues(t, 1, x.Replicas[0].Calls("evalsha"), "it was asked")
	require.Same(t, own, x.group())
	x.requireServed()
}

// TestFailoverClusterClientNamesItsSlots: by that it is told from a client of nodes
// in cluster mode.
func TestFailoverClusterClientNamesItsSlots(t *testing.T) {
	c := redis.NewFailoverClusterClient(&redis.FailoverOptions{MasterName: "m"})
	t.Cleanup(func() { _ = c.Close() })
	require.NotNil(t, c.Options().ClusterSlots)
}
