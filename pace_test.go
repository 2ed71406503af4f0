package reservoir_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/invariant"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// Many keys want a call at one instant: they go idle, share a reset, or owe what an outage
// has left. The store serves only so many calls in a second, and a call that comes too late
// has cost it as much as one in time.

// perSecond is the capacity of the store, and inPace the most calls in flight for a pace that
// it serves. Redis serves some 50,000 calls.
const (
	perSecond = 50_000
	inPace    = 100
)

// sizes runs f for n keys and for 10 n, on one shard and on several. The race detector is
// ten times as slow, and an eighth of the keys shows the same.
func sizes(t *testing.T, f func(t *testing.T, p *paced)) {
	n := 2_000
	if invariant.Enabled {
		n = 250
	}
	for _, keys := range []int{n, 10 * n} {
		for _, shards := range []int{1, 16} {
			inBubble(t, fmt.Sprintf("keys=%d,shards=%d", keys, shards), func(t *testing.T) {
				net := testnet.Far(rtt / 4)
				p := &paced{T: t, net: net, keys: keys, shards: shards}
				p.server.limitTo(net, perSecond)
				f(t, p)
			})
		}
	}
}

// paced is a limiter with so many keys, over a store of finite capacity.
type paced struct {
	*testing.T
	net    *testnet.Network
	server server
	keys   int
	shards int
	states states
	lim    *reservoir.Limiter
	failed atomic.Int64 // requests that ended in an error
	waited atomic.Int64 // requests that waited for the store
}

func (p *paced) open(l reservoir.Limit, opts ...reservoir.Option) {
	p.Helper()
	opts = append(opts, p.states.option())
	p.lim = open(p.T, sharded{p.net, nil}, l, opts...)
}

func (p *paced) key(i int) string { return fmt.Sprintf("%d:%d", i%p.shards, i) }

// use asks for a token of each key i, from first to last, evenly over d.
func (p *paced) use(first, last int, d time.Duration) {
	var wg sync.WaitGroup
	begin := time.Now()
	for i := first; i < last; i++ {
		time.Sleep(time.Until(begin.Add(d * time.Duration(i-first) / time.Duration(last-first))))
		wg.Go(func() {
			switch r, err := p.lim.Allow(context.Background(), p.key(i)); {
			case err != nil:
				p.failed.Add(1)
			case r.Source == reservoir.Fetched:
				p.waited.Add(1)
			}
		})
	}
	wg.Wait()
}

// opened is how often a circuit has opened.
func (p *paced) opened() (n int) {
	for _, s := range p.states.told() {
		if s.Away {
			n++
		}
	}
	return n
}

// inPace asserts that the store was asked at a pace that it serves, since the last time.
func (p *paced) inPace() {
	p.Helper()
	assert.LessOrEqual(p, p.net.MostInFlight(), max(inPace, 40*p.shards), "calls in flight")
	assert.Zero(p, p.server.overloaded(), "calls that came too late")
	assert.Zero(p, p.opened(), "circuits opened")
	assert.Zero(p, p.failed.Load(), "requests failed")
}

// charged is the number of tokens that the store has charged to all keys.
func (p *paced) charged() (n int64) {
	for i := range p.keys {
		n += used(p, p.net, p.key(i))
	}
	return n
}

// TestIdleKeysLeave: keys that go idle together give back what they hold, while others come.
func TestIdleKeysLeave(t *testing.T) {
	sizes(t, func(t *testing.T, p *paced) {
		p.open(reservoir.PerHour(1000), reservoir.WithIdle(time.Minute), reservoir.WithBatch(reservoir.Fixed(10)))
		p.use(0, p.keys, 10*time.Second)
		require.EqualValues(t, p.keys*10, p.charged())
		for range 3 { // a sweep each
			p.use(p.keys, p.keys+p.keys/10, time.Minute)
		}
		p.inPace()
		assert.EqualValues(t, p.keys, p.charged(), "the rest was handed back")
		assert.LessOrEqual(t, p.net.Count("sync"), 2*p.keys+3*p.keys/10, "one call to come and one to leave")
	})
}

// TestCommonReset: all keys are in use when their windows end, at midnight for example.
func TestCommonReset(t *testing.T) {
	sizes(t, func(t *testing.T, p *paced) {
		p.open(reservoir.PerMinute(1000), reservoir.WithBatch(reservoir.Fixed(4)))
		p.use(0, p.keys, 900*time.Millisecond) // windows of whole seconds end at one instant
		minute := time.Now().Truncate(time.Minute).Add(time.Minute)
		for range 8 {
			p.use(0, p.keys, 6*time.Second)
		}
		time.Sleep(time.Until(minute.Add(-3 * time.Second)))
		p.net.MostInFlight()
		calls := p.net.Count("sync")
		p.use(0, p.keys/5, 6*time.Second) // some callers come meanwhile
		p.inPace()
		assert.InDelta(t, p.keys, p.net.Count("sync")-calls, float64(p.keys)/10, "all have restocked")
		p.waited.Store(0)
		p.use(0, p.keys, 10*time.Second)
		assert.Zero(t, p.waited.Load(), "so callers find stock")
	})
}

// TestCommonResetOfWaiters: callers of all keys wait for one reset.
func TestCommonResetOfWaiters(t *testing.T) {
	sizes(t, func(t *testing.T, p *paced) {
		p.open(reservoir.PerMinute(1))
		p.use(0, p.keys, 900*time.Millisecond)
		minute := time.Now().Truncate(time.Minute).Add(time.Minute)
		time.Sleep(time.Until(minute.Add(-3 * time.Second)))
		var wg sync.WaitGroup
		for i := range p.keys {
			wg.Go(func() {
				assert.NoError(t, waitFor(t.Context(), p.lim, p.key(i), 1))
			})
		}
		wg.Wait()
		assert.Less(t, time.Since(minute), 2*time.Second)
		assert.LessOrEqual(t, p.net.MostInFlight(), 300*p.shards)
		assert.Zero(t, p.server.overloaded())
		assert.Zero(t, p.opened())
	})
}

// TestRecovery: the store comes back, and all keys owe what their policy has admitted.
func TestRecovery(t *testing.T) {
	policies := map[string]reservoir.Failure{"open": reservoir.FailOpen(), "local": reservoir.FailLocal(0.5)}
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			sizes(t, func(t *testing.T, p *paced) {
				p.open(reservoir.PerHour(1000), reservoir.WithFailure(policy), reservoir.WithBatch(reservoir.Fixed(2)))
				p.use(0, p.keys, 10*time.Second)
				p.net.Always(testnet.Refuse)
				for range 3 { // of which the stock serves one
					p.use(0, p.keys, 10*time.Second)
				}
				require.Equal(t, p.shards, p.opened())
				p.net.MostInFlight()
				asked := time.Now()
				calls := p.net.Count("")

				p.net.Faults(nil)
				var over time.Duration // how long it took until the last debt was stated
				for p.lim.Stats().Owed > 0 {
					require.Less(t, over, 10*time.Second, "owed: %d", p.lim.Stats().Owed)
					p.use(0, 100, 100*time.Millisecond)
					over = time.Since(asked)
				}
				assert.Less(t, over, toClose)
				assert.Equal(t, p.shards, p.opened(), "no circuit opened again")
				assert.Zero(t, p.server.overloaded())
				assert.LessOrEqual(t, p.net.MostInFlight(), 150*p.shards)
				assert.LessOrEqual(t, p.net.Count("")-calls, 2*p.keys+1000)
			})
		})
	}
}

// TestRecoveryOfWaiters: callers of all keys wait for the end of an outage.
func TestRecoveryOfWaiters(t *testing.T) {
	sizes(t, func(t *testing.T, p *paced) {
		p.open(reservoir.PerHour(1000))
		p.net.Always(testnet.Refuse)
		var wg sync.WaitGroup
		var last time.Time
		var mu sync.Mutex
		for i := range p.keys {
			wg.Go(func() {
				assert.NoError(t, waitFor(t.Context(), p.lim, p.key(i), 1))
				mu.Lock()
				defer mu.Unlock()
				last = time.Now()
			})
		}
		time.Sleep(30 * time.Second)
		require.Equal(t, p.shards, p.opened())
		p.net.MostInFlight()
		back := time.Now()
		p.net.Faults(nil)
		wg.Wait()
		assert.Less(t, last.Sub(back), toClose)
		assert.Equal(t, p.shards, p.opened(), "no circuit opened again")
		assert.Zero(t, p.server.overloaded())
		assert.LessOrEqual(t, p.net.MostInFlight(), 300*p.shards)
	})
}

// TestCommonResetOfAFleet: the windows of all processes end together. Each has few calls in
// flight, but nobody tells it how many the others have.
func TestCommonResetOfAFleet(t *testing.T) {
	for _, processes := range []int{10, 100} {
		inBubble(t, fmt.Sprint("processes=", processes), func(t *testing.T) {
			const keys, capacity = 50, 10_000
			net, s, states := testnet.Far(rtt/4), new(server), &states{}
			var failed atomic.Int64
			all := fleet(t, processes, net, reservoir.PerMinute(100_000), reservoir.WithBatch(reservoir.Fixed(4)), states.option())
			use := func(d time.Duration) {
				crowd(processes, func(i int) {
					for k := range keys {
						time.Sleep(d / keys)
						if _, err := all[i].Allow(context.Background(), fmt.Sprint(k)); err != nil {
							failed.Add(1)
						}
					}
				})
			}
			use(900 * time.Millisecond)
			minute := time.Now().Truncate(time.Minute).Add(time.Minute)
			for range 8 {
				use(6 * time.Second)
			}
			time.Sleep(time.Until(minute.Add(-2 * time.Second))) // after the readings of the end
			s.limitTo(net, capacity)
			net.MostInFlight()
			calls := net.Count("sync")
			time.Sleep(10 * time.Second)
			assert.InDelta(t, processes*keys, net.Count("sync")-calls, float64(processes*keys)/5, "all have restocked")
			assert.LessOrEqual(t, net.MostInFlight(), capacity/10, "more would wait longer than the timeout")
			assert.Zero(t, s.overloaded())
			assert.Zero(t, len(states.told()), "circuits opened")
			use(6 * time.Second)
			assert.Zero(t, failed.Load())
		})
	}
}

// TestCallersGoFirst: while so many keys stand in line that the last one's turn comes long
// after the fetch timeout, a caller of any of them waits for one round trip, and no
// statement times out in line.
func TestCallersGoFirst(t *testing.T) {
	const keys, way = 5_000, 40 * time.Millisecond
	inBubble(t, "", func(t *testing.T) {
		net := testnet.Far(way)
		p := &paced{T: t, net: net, keys: keys, shards: 1}
		p.open(reservoir.PerHour(100_000), reservoir.WithBatch(reservoir.Fixed(10)), reservoir.WithIdle(time.Minute))
		p.use(0, keys, 20*time.Second)
		calls := net.Count("sync")
		for net.Count("sync") == calls { // until the sweep
			time.Sleep(time.Second)
		}
		waited := 0
		for i := range 50 {
			begin := time.Now()
			r := allow(t, p.lim, p.key(keys-1-i), 20) // more than its stock
			require.True(t, r.Allowed)
			if r.Source == reservoir.Fetched {
				waited++
			}
			require.LessOrEqual(t, time.Since(begin), 4*way, "its own round trip, and one that was in flight")
		}
		require.Equal(t, 50, waited)
		require.Less(t, net.Count("sync")-calls, keys/2, "most keys still stand in line")
		time.Sleep(2 * time.Minute)
		assert.Zero(t, p.server.overloaded())
		assert.Zero(t, p.opened())
		assert.Equal(t, keys+50, net.Count("sync")-calls)
	})
}

// TestLinesHoldNothing: keys in line have no goroutine, while the store is away and after.
func TestLinesHoldNothing(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		const keys = 2_000
		net := testnet.Far(rtt / 2)
		p := &paced{T: t, net: net, keys: keys, shards: 1}
		p.open(reservoir.PerHour(1000), reservoir.WithFailure(reservoir.FailOpen()), reservoir.WithBatch(reservoir.Fixed(1)))
		p.use(0, keys, time.Second)
		before := runtime.NumGoroutine()
		net.Always(testnet.Refuse)
		p.use(0, keys, time.Second)
		synctest.Wait()
		assert.LessOrEqual(t, runtime.NumGoroutine(), before+1)
		require.Equal(t, 1, p.opened())
		calls := net.Count("")
		time.Sleep(time.Minute)
		assert.LessOrEqual(t, net.Count("")-calls, 2*60+1, "the probes")
		net.Faults(nil)
		time.Sleep(toClose)
		assert.Zero(t, p.lim.Stats().Owed)
		synctest.Wait()
		assert.LessOrEqual(t, runtime.NumGoroutine(), before+1)
	})
}

// server is a store of finite capacity: it serves calls one after another, in the order in
// which they arrive, so a call waits for all that came before. A call whose caller has left
// by then is not carried out, as redisstore's scripts see to, and yet has taken its time.
type server struct {
	mu   sync.Mutex
	each time.Duration // the time that a call takes
	free time.Time     // when all calls that have arrived are served
	late int           // calls that waited longer than their callers
}

// limitTo lets net's store serve so many calls in a second from now on.
func (s *server) limitTo(net *testnet.Network, perSecond int) {
	s.each = time.Second / time.Duration(perSecond)
	net.Lock()
	defer net.Unlock()
	net.Serve = s.serve
}

func (s *server) serve(ctx context.Context, c *testnet.Call) error {
	s.mu.Lock()
	wait := max(time.Until(s.free), 0) + s.each
	s.free = time.Now().Add(wait)
	s.mu.Unlock()
	err := testnet.Pass(ctx, wait)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late++
	return &backend.Error{Op: c.Op, Class: backend.Unknown, Err: err}
}

// overloaded is how many calls came too late to be served.
func (s *server) overloaded() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.late
}
