package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// recovery is how long after a cluster's election the keys of the hung master may
// still be without a store. A few hundred milliseconds are usual.
const recovery = 5 * time.Second

// less is less than the time for which a master hangs before another is elected, and
// as long as a call to the others may take: more than a busy machine stands still.
const less = 1800 * time.Millisecond

// announceReplicas returns when all nodes tell clients of the replicas. Without a write, a
// node would do that only after its first ping to its replica, ten seconds later.
func announceReplicas(t *testing.T, c *redistest.Cluster) {
	t.Helper()
	client := c.Client()
	for i := range 30 { // a replica that was sent nothing yet is not told of
		require.NoError(t, client.Set(t.Context(), fmt.Sprint("warm", i), 1, 0).Err())
	}
	for _, node := range c.Nodes { // until all nodes tell clients of the replicas
		client := node.Client()
		require.Eventually(t, func() bool {
			//lint:ignore SA1019 it is what go-redis' cluster client itself goes by
			slots, err := client.ClusterSlots(context.Background()).Result()
			return err == nil && len(slots) == 3 && len(slots[0].Nodes)+len(slots[1].Nodes)+len(slots[2].Nodes) == 6
		}, 20*time.Second, 5*time.Millisecond)
	}
}

// TestHungMaster stops the process of a master, under calls through a store and through
// limiters: its keys are served again soon after the election, and nobody else notices. Each
// has a client of its own, with the documented options, by which go-redis learns of the new
// master soon; but it waits longer for a reply, because a busy machine may stand still for
// longer than the documented 200 ms.
func TestHungMaster(t *testing.T) {
	c := redistest.StartCluster(t, 3, 1)
	for _, node := range c.Nodes { // as the package's comment asks for
		require.NoError(t, node.Client().ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err())
	}
	announceReplicas(t, c)
	master := c.Nodes[0]
	ill, fine := keysIn(c, c.SlotsOf(master), "k", 1)[0], keysIn(c, c.SlotsOf(c.Nodes[1]), "k", 1)[0]
	var sick, well []func(key string) error
	for _, door := range []string{"store", "batches", "direct"} {
		store := redisstore.New(c.Client(documentedCluster, func(o *redis.ClusterOptions) { o.DialTimeout, o.ReadTimeout = less, less }))
		sick = append(sick, callThrough(t, store, door, 200*time.Millisecond))
		well = append(well, callThrough(t, store, door, less))
	}
	serve := func(do func(key string) error, key string) {
		t.Helper()
		require.Eventually(t, func() bool { return do(key) == nil }, recovery, time.Millisecond)
	}
	for i := range sick {
		serve(sick[i], ill)
		serve(well[i], fine)
	}
	master.Pause()
	defer master.Resume()
	hung := time.Now()
	for c.NodeOf(ill) == nil || c.NodeOf(ill) == master {
		require.Less(t, time.Since(hung), 30*time.Second)
		for i := range sick {
			_ = sick[i](ill)
			require.NoError(t, well[i](fine))
		}
	}
	for i := range sick {
		serve(sick[i], ill)
		require.NoError(t, sick[i](ill), "for good")
	}
}

// callThrough returns a function that makes a call on a key, which is to be an error
// when the store does not serve it.
func callThrough(t *testing.T, store *redisstore.Store, door string, timeout time.Duration) func(key string) error {
	t.Helper()
	big := reservoir.PerHour(1_000_000)
	if door == "store" {
		return func(key string) error {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			_, err := charge(ctx, store, key, backend.Limit(big), 1)
			return err
		}
	}
	opts := []reservoir.Option{reservoir.WithFixedBatch(1)} // a call each
	if door == "direct" {
		opts = []reservoir.Option{reservoir.WithDirect()}
	}
	l, err := reservoir.New(store, big, append(opts, reservoir.WithFetchTimeout(timeout))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	return func(key string) error {
		r, err := l.Allow(context.Background(), key)
		if err == nil && !r.Allowed {
			return errors.New("refused")
		}
		return err
	}
}
