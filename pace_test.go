package reservoir_test

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/invariant"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// Many keys at once: the pace of calls that no request waits for, and the memory that keys take.

var large = flag.Bool("large", false, "eight times as many `keys` in tests of the pace; make torture sets it")

// perSecond is the capacity of the store; Redis serves some 50,000 calls. inPace is the most calls in flight to a
// shard: the 16 of its lane that nobody waits for, and those of callers meanwhile.
const (
	perSecond = 50_000
	inPace    = 20
)

// sizes runs f for n keys and for 10 n, on one shard and on several.
func sizes(t *testing.T, f func(t *testing.T, p *paced)) {
	n := 250
	switch {
	case *large:
		n = 2_000
	case invariant.Enabled: // the race detector is ten times as slow, and fewer keys show the same
		n = 60
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
	last   []reservoir.Result // of each key
	failed atomic.Int64       // requests that ended in an error
	waited atomic.Int64       // requests that waited for the store
}

func (p *paced) open(l reservoir.Limit, opts ...reservoir.Option) {
	p.Helper()
	opts = append(opts, p.states.option())
	p.lim = open(p.T, sharded{p.net, nil}, l, opts...)
	p.last = make([]reservoir.Result, p.keys)
}

// owe settles the last result of each key, so that it has used n tokens more than it was charged.
func (p *paced) owe(n int64) {
	p.Helper()
	for _, r := range p.last {
		require.NoError(p, p.lim.Settle(bg, r, 1+n))
	}
}

func (p *paced) key(i int) string { return fmt.Sprintf("%d:%d", i%p.shards, i) }

// use asks for a token of each key i, from first to last, evenly over d.
func (p *paced) use(first, last int, d time.Duration) {
	var wg sync.WaitGroup
	begin := time.Now()
	for i := first; i < last; i++ {
		time.Sleep(time.Until(begin.Add(d * time.Duration(i-first) / time.Duration(last-first))))
		wg.Go(func() {
			r, err := p.lim.Allow(context.Background(), p.key(i))
			switch {
			case err != nil:
				p.failed.Add(1)
				return
			case r.Source == reservoir.Fetched:
				p.waited.Add(1)
			}
			if i < p.keys {
				p.last[i] = r
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
	assert.LessOrEqual(p, p.net.MostInFlight(), inPace*p.shards, "calls in flight")
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

// TestIdleKeysLeave: keys that go idle together give back what they hold, while others come.
func TestIdleKeysLeave(t *testing.T) {
	sizes(t, func(t *testing.T, p *paced) {
		p.open(reservoir.PerHour(1000), reservoir.WithIdle(time.Minute), reservoir.WithFixedBatch(10))
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
		p.open(reservoir.PerMinute(1000), reservoir.WithFixedBatch(4))
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

// TestRecovery: the store comes back, and all keys owe what was settled above charges while it was away.
func TestRecovery(t *testing.T) {
	sizes(t, func(t *testing.T, p *paced) {
		p.open(reservoir.Limit{Tokens: 1000, Window: 4 * time.Minute}, reservoir.WithFixedBatch(2))
		p.use(0, p.keys, 10*time.Second)
		p.net.Always(testnet.Refuse)
		for range 3 { // of which the stock serves one
			p.use(0, p.keys, 10*time.Second)
		}
		require.Equal(t, p.shards, p.opened())
		p.owe(3)
		require.EqualValues(t, 3*p.keys, p.lim.Stats().Debt)
		time.Sleep(30 * time.Second) // until all of them would state it
		p.net.MostInFlight()
		asked := time.Now()
		calls := p.net.Count("")

		p.net.Faults(nil)
		var over time.Duration // how long it took until the last debt was stated
		for p.lim.Stats().Debt > 0 {
			require.Less(t, over, 10*time.Second, "owed: %d", p.lim.Stats().Debt)
			p.use(0, 100, 100*time.Millisecond)
			over = time.Since(asked)
		}
		assert.Less(t, over, toClose)
		assert.Equal(t, p.shards, p.opened(), "no circuit opened again")
		assert.Zero(t, p.server.overloaded())
		assert.Zero(t, p.lim.Stats().Overdrawn, "all of it was in time")
		assert.LessOrEqual(t, p.net.MostInFlight(), 3*inPace*p.shards)
		assert.LessOrEqual(t, p.net.Count("")-calls, 2*p.keys+1000)
	})
}

// TestCommonResetOfAFleet: the windows of all processes end together. Each has few calls in
// flight, but nobody tells it how many the others have.
func TestCommonResetOfAFleet(t *testing.T) {
	for _, processes := range []int{10, 50} {
		inBubble(t, fmt.Sprint("processes=", processes), func(t *testing.T) {
			const keys, capacity = 50, 10_000
			net, s, states := testnet.Far(rtt/4), new(server), &states{}
			var failed atomic.Int64
			all := fleet(t, processes, net, reservoir.PerMinute(100_000), reservoir.WithFixedBatch(4), states.option())
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

// TestWaitersOfAllKeys: callers of all keys wait for one reset, or for the end of an outage.
func TestWaitersOfAllKeys(t *testing.T) {
	for _, outage := range []bool{false, true} {
		t.Run(fmt.Sprint("outage=", outage), func(t *testing.T) {
			sizes(t, func(t *testing.T, p *paced) {
				p.open(reservoir.PerMinute(1))
				over := time.Now().Add(30 * time.Second)
				if outage {
					p.net.Always(testnet.Refuse)
				} else {
					p.use(0, p.keys, 900*time.Millisecond)
					over = time.Now().Truncate(time.Minute).Add(time.Minute)
					time.Sleep(time.Until(over) - 3*time.Second)
				}
				time.AfterFunc(time.Until(over), func() { p.net.MostInFlight(); p.net.Faults(nil) })
				crowd(p.keys, func(i int) { assert.NoError(t, waitFor(t.Context(), p.lim, p.key(i), 1)) })
				assert.Less(t, time.Since(over), toClose)
				assert.LessOrEqual(t, p.net.MostInFlight(), 300*p.shards)
				assert.Zero(t, p.server.overloaded())
				assert.Equal(t, map[bool]int{true: p.shards}[outage], p.opened(), "no circuit opened again")
			})
		})
	}
}

// A function of WithLimits that blocks holds up its own key and a slot, and no other key, when all restock at a reset.
func TestBlockedLimitHoldsUpItsKey(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		const hung = 10
		p := &paced{T: t, net: testnet.Far(rtt / 4), keys: 200, shards: 1}
		var blocking, blocked atomic.Int64
		end := make(chan struct{})
		p.open(reservoir.Block(), reservoir.WithFixedBatch(4), reservoir.WithLimits(func(string) reservoir.Limit {
			if blocking.Add(-1) >= 0 {
				blocked.Add(1)
				<-end
			}
			return reservoir.PerMinute(1000)
		}))
		p.use(0, p.keys, 900*time.Millisecond)
		minute := time.Now().Truncate(time.Minute).Add(time.Minute)
		for range 9 {
			p.use(0, p.keys, 6*time.Second)
		}
		time.Sleep(time.Until(minute.Add(-time.Second)))
		blocking.Store(hung)
		calls := p.net.Count("sync")
		time.Sleep(2 * time.Second)
		assert.EqualValues(t, hung, blocked.Load())
		assert.InDelta(t, p.keys-hung, p.net.Count("sync")-calls, float64(p.keys)/10, "the others have restocked")
		close(end)
		time.Sleep(time.Second)
		assert.GreaterOrEqual(t, p.net.Count("sync")-calls, p.keys*9/10, "and those that hung")
		assert.Zero(t, p.failed.Load())
	})
}

// Keys that move to another shard while theirs is away state there what they owe.
func TestKeysInLineMove(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		const keys = 100
		on := new(atomic.Pointer[string])
		on.Store(new("old"))
		net := sharded{testnet.Far(rtt / 4), func() string { return *on.Load() }}
		l := open(t, net, reservoir.PerHour(1000), reservoir.WithIdle(time.Minute), reservoir.WithFixedBatch(1))
		stays := allow(t, l, "old:stays", 1)
		var all []reservoir.Result
		for i := range keys {
			all = append(all, allow(t, l, fmt.Sprint(i), 1))
		}
		net.Always(testnet.Refuse)
		for _, r := range append(all, stays) {
			require.NoError(t, l.Settle(bg, r, 2))
		}
		for i := range toOpen {
			_, err := l.Allow(bg, fmt.Sprint(i))
			require.Error(t, err)
		}
		require.EqualValues(t, keys+1, l.Stats().Debt)
		time.Sleep(5 * time.Minute) // until all of them stand in line
		require.EqualValues(t, keys+1, l.Stats().Debt)
		on.Store(new("new"))
		net.OnKey("old:stays", testnet.Refuse)
		time.Sleep(2 * time.Minute)
		assert.EqualValues(t, 1, l.Stats().Debt)
		net.Faults(nil)
		time.Sleep(toClose)
		assert.Zero(t, l.Stats().Debt)
		for i := range keys {
			require.EqualValues(t, 2, used(t, net, fmt.Sprint(i)))
		}
	})
}

// make torture passes 5 million.
var cardinality = flag.Int("cardinality", 20_000, "distinct `keys` of TestCardinalityAttack")

// lavish is a store that answers at once and remembers nothing.
type lavish struct {
	backend.Store
	alone atomic.Int64 // statements without an account
}

func (s *lavish) Sync(_ context.Context, q backend.Statement) (backend.Reply, error) {
	if q.Client == "" {
		s.alone.Add(1)
	}
	return backend.Reply{
		State: backend.State{Window: backend.Window{End: 4102444800000}, Left: time.Hour, Remaining: q.Limit.Tokens / 2},
		Mine:  q.Mine + q.Change + q.Need, Grant: q.Need, Used: q.Limit.Tokens / 2, Clients: 1,
	}, nil
}

// A caller who invents keys gets an answer for each, and the memory of no more than
// WithMaxKeys. Keys that were there before are still served from memory.
func TestCardinalityAttack(t *testing.T) {
	const held, perKey = 10_000, 400 // bytes; an idle key's are measured elsewhere
	s := new(lavish)
	l, err := reservoir.New(s, reservoir.PerHour(1000), reservoir.WithMaxKeys(held), reservoir.WithFetchTimeout(time.Hour))
	require.NoError(t, err)
	before, most := heap(), uint64(0)
	for i := range *cardinality {
		if !allow(t, l, fmt.Sprintf("attacker:%015d", i), 1).Allowed {
			require.Fail(t, "refused", "caller %d", i)
		}
		if i%(*cardinality/5) == 0 || i == *cardinality-1 {
			most = max(most, heap())
			require.LessOrEqual(t, l.Stats().Keys, held)
		}
	}
	require.Equal(t, held, l.Stats().Keys)
	require.EqualValues(t, *cardinality-held, s.alone.Load(), "past the bound each request is a call of its own")
	require.Less(t, most, before+held*perKey)
	t.Logf("%d keys: %d held, %.1f MB more heap at most, %.0f bytes for each held", *cardinality, held,
		float64(most-before)/1e6, float64(most-before)/held)
	calls := l.Stats().StoreCalls
	require.NotEqual(t, reservoir.Direct, allow(t, l, "attacker:000000000000007", 1).Source)
	require.LessOrEqual(t, l.Stats().StoreCalls, calls+1)
	require.NoError(t, l.Close(context.Background()))
}

// A key that was used once and lies idle takes at most 320 bytes, all counted.
func TestMemoryOfAnIdleKey(t *testing.T) {
	const keys = 8_000
	l := open(t, new(lavish), reservoir.PerHour(1000), reservoir.WithFetchTimeout(time.Hour))
	heap := func() (m runtime.MemStats) { runtime.GC(); runtime.GC(); runtime.ReadMemStats(&m); return m }
	before := heap()
	for i := range keys {
		allow(t, l, strings.Clone(fmt.Sprintf("user:%015d", i)), 1)
	}
	each := float64(heap().HeapAlloc-before.HeapAlloc) / keys
	t.Logf("%.0f bytes a key", each)
	assert.LessOrEqual(t, each, 320.0)
	assert.Equal(t, keys, l.Stats().Keys)
}
