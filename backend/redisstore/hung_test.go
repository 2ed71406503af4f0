package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
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

// sickCluster is six nodes, of which one is to hang.
type sickCluster struct {
	*redistest.Cluster
	sick *redistest.Server // the master of the key "sick"
}

// newSickCluster starts a cluster in which one master's slots without a master are
// no reason for the others not to serve, as the package's comment asks for.
func newSickCluster(t *testing.T) sickCluster {
	t.Helper()
	c := redistest.StartCluster(t, 3, 1)
	for _, node := range c.Nodes {
		require.NoError(t, node.Client().ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err())
	}
	announceReplicas(t, c)
	return sickCluster{c, c.NodeOf("sick")}
}

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

// keys returns n keys of the hung master, or of the others.
func (c sickCluster) keys(sick bool, n int) (list []string) {
	for i := 0; len(list) < n; i++ {
		if key := fmt.Sprint("k", i); (c.NodeOf(key) == c.sick) == sick {
			list = append(list, key)
		}
	}
	return list
}

// watched is what happened to calls on some keys.
type watched struct {
	served, failed atomic.Int64
	slowest        atomic.Int64 // ns
	last           atomic.Pointer[error]
	marked         atomic.Bool
	since          chan time.Time // of the first success after mark
}

func newWatched() *watched { return &watched{since: make(chan time.Time, 1)} }

// note keeps the longest time that a call took.
func (w *watched) note(d time.Duration) {
	for {
		longest := w.slowest.Load()
		if int64(d) <= longest || w.slowest.CompareAndSwap(longest, int64(d)) {
			return
		}
	}
}

func (w *watched) mark() { w.marked.Store(true) }

// await returns when a call was first served after mark.
func (w *watched) await(t *testing.T, patience time.Duration) time.Time {
	t.Helper()
	select {
	case at := <-w.since:
		return at
	case <-time.After(patience):
		require.Fail(t, "not served again", "%v", *w.last.Load())
		return time.Time{}
	}
}

// call calls do for each of the keys, over and over, until stop is closed.
func (w *watched) call(wg *sync.WaitGroup, stop chan struct{}, keys []string, do func(key string) error) {
	for _, key := range keys {
		wg.Go(func() {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				began := time.Now()
				err := do(key)
				w.note(time.Since(began))
				if err != nil {
					w.failed.Add(1)
					w.last.Store(&err)
					continue
				}
				w.served.Add(1)
				if w.marked.CompareAndSwap(true, false) {
					w.since <- time.Now()
				}
			}
		})
	}
}

// TestHungMaster stops the process of a master under load, through a store and
// through limiters: its keys are served again soon after the election, and nobody
// else notices. Each has a client of its own, with the documented options, by which go-redis
// learns of the new master soon; but it waits longer for a reply, because a busy machine may
// stand still for longer than the documented 200 ms.
func TestHungMaster(t *testing.T) {
	c := newSickCluster(t)
	ill, fine := c.keys(true, 4), c.keys(false, 8)
	sick, well := make(map[string]*watched), make(map[string]*watched)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, door := range []string{"store", "batches", "direct"} {
		store := redisstore.New(c.Client(documentedCluster, func(o *redis.ClusterOptions) { o.DialTimeout, o.ReadTimeout = less, less }))
		first := callThrough(t, store, door, time.Second)
		require.Eventually(t, func() bool { return first("first") == nil }, 10*time.Second, time.Millisecond)
		sick[door], well[door] = newWatched(), newWatched()
		sick[door].call(&wg, stop, ill, callThrough(t, store, door, 200*time.Millisecond))
		well[door].call(&wg, stop, fine, callThrough(t, store, door, less))
		require.Eventually(t, func() bool { return sick[door].served.Load() > 50 && well[door].served.Load() > 50 }, 20*time.Second, time.Millisecond)
	}
	var failed int64
	for _, w := range sick {
		failed += w.failed.Load()
	}
	hung := time.Now()
	c.sick.Pause()
	defer c.sick.Resume()
	require.Eventually(t, func() bool { return c.NodeOf("sick") != nil }, 30*time.Second, time.Millisecond)
	elected := time.Now()
	require.NotSame(t, c.sick, c.NodeOf("sick"))
	t.Logf("elected %v after the master hung", elected.Sub(hung).Round(time.Millisecond))
	require.Greater(t, elected.Sub(hung), less)
	for _, w := range sick {
		failed -= w.failed.Load()
		w.mark()
	}
	require.Negative(t, failed, "it did hang")
	for door, w := range sick {
		at := w.await(t, 4*recovery)
		t.Logf("%s: served %v after the election; %d calls had failed", door, at.Sub(elected).Round(time.Millisecond), w.failed.Load())
		assert.Less(t, at.Sub(elected), recovery)
		served := w.served.Load()
		require.Eventually(t, func() bool { return w.served.Load() > served+50 }, 10*time.Second, time.Millisecond, "for good")
	}
	close(stop)
	wg.Wait()
	for door, w := range well {
		t.Logf("%s: on other nodes %d calls, the slowest %v", door, w.served.Load(), time.Duration(w.slowest.Load()).Round(time.Millisecond))
		if last := w.last.Load(); last != nil {
			t.Errorf("%s: %d of %d calls on other nodes failed: %v", door, w.failed.Load(), w.served.Load(), *last)
		}
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
			_, err := store.Take(ctx, backend.TakeRequest{Key: key, Limit: backend.Limit(big), Tokens: 1})
			return err
		}
	}
	opts := []reservoir.Option{reservoir.WithBatch(reservoir.Fixed(1))} // a call each
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
