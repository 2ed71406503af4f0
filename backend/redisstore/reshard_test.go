package redisstore_test

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

var slots = flag.Int("slots", 100, "how many `slots` TestReshard moves, to another master and back")

// TestReshard moves slots under load, to another master and back: no caller of a
// limiter sees an error, and every token is charged once. Half of the keys are in
// use when it begins, the others come up on the way.
func TestReshard(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	from, to := c.Nodes[0], c.Nodes[1]
	list := c.SlotsOf(from)
	var all []*resharded
	var moving []int
	for name, opts := range map[string][]reservoir.Option{
		"default": nil,
		"fixed":   {reservoir.WithFixedBatch(3)},
		"direct":  {reservoir.WithDirect()},
	} {
		keys := keysIn(c, list, name, 20)
		for _, key := range keys {
			moving = append(moving, c.SlotOf(key))
		}
		x := newResharded(t, c, name, keys, opts)
		defer x.end()
		all = append(all, x)
	}
	list = firstOf(append(moving, list...), *slots)
	ahead := func(n int64) {
		t.Helper()
		for _, x := range all {
			goal := x.calls.Load() + n
			require.Eventually(t, func() bool { return x.calls.Load() >= goal || t.Failed() }, 30*time.Second, time.Millisecond)
		}
	}
	ahead(200)
	to.ResetStats()
	began := time.Now()
	const steps = 10
	for i := range steps {
		for _, x := range all {
			x.newcomers.Add(1)
		}
		c.Reshard(from, to, list[i*len(list)/steps:(i+1)*len(list)/steps])
	}
	require.Positive(t, to.Calls("restore-asking", "restore"), "keys have moved")
	ahead(200)
	asked, served := to.Calls("asking"), to.Calls("evalsha")
	require.Positive(t, served)
	c.Reshard(to, from, list)
	t.Logf("%d slots went and came in %v; meanwhile %d calls followed ASK and the new master ran %d scripts",
		len(list), time.Since(began).Round(time.Millisecond), asked, served)
	ahead(200)
	for _, x := range all {
		x.end()
		x.requireExact(c)
	}
}

// TestInspectFollowsASlot: a look at a key whose slot has moved asks for the new slot table.
func TestInspectFollowsASlot(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	s := redisstore.New(c.Client())
	key := keysIn(c, c.SlotsOf(c.Nodes[0]), "k", 1)[0]
	_, err := charge(t.Context(), s, key, millions, 7)
	require.NoError(t, err)
	c.Reshard(c.Nodes[0], c.Nodes[1], []int{c.SlotOf(key)})
	_, err = s.Inspect(t.Context(), key)
	require.ErrorContains(t, err, "MOVED")
	require.Equal(t, backend.Unavailable, class(t, err))
	require.Eventually(t, func() bool {
		got, err := s.Inspect(t.Context(), key)
		return err == nil && len(got) == 1 && got[0].Used == 7
	}, 20*time.Second, 10*time.Millisecond)
}

// firstOf returns the first n different slots.
func firstOf(list []int, n int) (first []int) {
	seen := make(map[int]bool)
	for _, slot := range list {
		if !seen[slot] && len(first) < n {
			first = append(first, slot)
		}
		seen[slot] = true
	}
	return first
}

// resharded is a limiter whose keys' slots move.
type resharded struct {
	*reservoir.Limiter
	t         *testing.T
	name      string
	keys      []string
	calls     atomic.Int64
	newcomers atomic.Int64 // of the second half of the keys
	stop      chan struct{}
	once      sync.Once
	wg        sync.WaitGroup
}

// end ends the calls.
func (x *resharded) end() {
	x.once.Do(func() { close(x.stop) })
	x.wg.Wait()
}

func newResharded(t *testing.T, c *redistest.Cluster, name string, keys []string, opts []reservoir.Option) *resharded {
	t.Helper()
	opts = append(opts, reservoir.WithFetchTimeout(10*time.Second)) // a busy machine may stand still for two
	l, err := reservoir.New(redisstore.New(c.Client()), reservoir.PerHour(1_000_000), opts...)
	require.NoError(t, err)
	x := &resharded{Limiter: l, t: t, name: name, keys: keys, stop: make(chan struct{})}
	for i, key := range keys {
		x.wg.Go(func() { x.use(key, int64(i-len(keys)/2)) })
	}
	return x
}

// use makes calls on a key until the test ends, from when there are more newcomers
// than so many.
func (x *resharded) use(key string, after int64) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-x.stop:
			return
		case <-tick.C:
		}
		if after >= x.newcomers.Load() {
			continue
		}
		r, err := x.Allow(context.Background(), key)
		if !assert.NoError(x.t, err, x.name) || !assert.True(x.t, r.Allowed, x.name) {
			return
		}
		x.calls.Add(1)
	}
}

// keysIn returns n keys whose slots are among the list's.
func keysIn(c *redistest.Cluster, list []int, name string, n int) (keys []string) {
	in := make(map[int]bool)
	for _, slot := range list {
		in[slot] = true
	}
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint(name, i); in[c.SlotOf(key)] {
			keys = append(keys, key)
		}
	}
	return keys
}

// requireExact requires that what Redis has charged is what the limiter was granted,
// and no more than callers got.
func (x *resharded) requireExact(c *redistest.Cluster) {
	t := x.t
	t.Helper()
	require.NoError(t, x.Close(context.Background()), x.name)
	client := c.Client()
	var used int64
	for _, key := range x.keys {
		n, err := client.Get(t.Context(), "{"+key+"}:3600s").Int64()
		require.NoError(t, err)
		used += n
	}
	s := x.Stats()
	require.Zero(t, s.Unknown)
	require.Zero(t, s.Failed)
	require.Equal(t, s.Taken-s.Returned, used)
	require.Equal(t, s.Spent, used, "all else was handed back")
}
