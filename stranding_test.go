package reservoir

import (
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/memstore"
)

// share has two processes use a key: one busy for a while and then idle, the
// other until the end of the window. It returns what both spent.
func share(t *testing.T, limit Limit, active, interval time.Duration) (idle, busy *Limiter, d *diary, spent int64) {
	d = new(diary)
	store := memstore.New()
	idle = open(t, overNetwork(store, rtt/2), limit, d.keep())
	busy = open(t, overNetwork(store, rtt/2), limit)
	end := time.Now().Add(limit.Window - limit.Window/20)
	var wg sync.WaitGroup
	wg.Go(func() { every(t, idle, interval, time.Now().Add(active), ignore) })
	wg.Go(func() { every(t, busy, interval, end, ignore) })
	wg.Wait()
	return idle, busy, d, idle.Stats().Spent + busy.Stats().Spent
}

// What a key that has gone idle holds goes back while others can still use it,
// if they will need it.
func TestIdleExcessIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 60_000
		idle, _, d, spent := share(t, PerMinute(limit), 10*time.Second, time.Millisecond)
		calls := d.of(forReturn)
		require.NotEmpty(t, calls)
		assert.EqualValues(t, len(calls), idle.Stats().GiveBacks)
		assert.Positive(t, idle.Stats().Returned)
		assert.LessOrEqual(t, idle.Stats().Held, int64(limit/100), "but for what may be stranded")
		assert.GreaterOrEqual(t, spent, int64(limit*985/1000), "and others have spent it")
		t.Logf("%d spent, %+v", spent, idle.Stats())
	})
}

func TestNothingIsGivenBackBelowTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		idle, busy, d, _ := share(t, PerMinute(60_000), 30*time.Second, 10*time.Millisecond)
		assert.Zero(t, idle.Stats().GiveBacks+busy.Stats().GiveBacks)
		assert.Empty(t, d.of(forReturn))
	})
}

// A limit that is small for the processes that share it is served nearly to the token,
// and nobody waits for longer than a call.
func TestSmallLimitIsServedToTheToken(t *testing.T) {
	var sum int64
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) { sum += small(t, seed) })
	}
	assert.GreaterOrEqual(t, sum, int64(20*60-3), "hardly ever is one stranded")
}

// small is how many of 60 tokens a hundred processes get at, asking at random.
func small(t *testing.T, seed uint64) int64 {
	const processes, limit = 100, 60
	store := memstore.New()
	var admitted, slow atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(59 * time.Second)
	for i := range processes {
		l := open(t, overNetwork(store, rtt/2), PerMinute(limit))
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			for {
				time.Sleep(min(time.Duration(rnd.ExpFloat64()*float64(15*time.Second)), time.Until(end)))
				if !time.Now().Before(end) {
					return
				}
				begin := time.Now()
				r := allow(t, l, "k", 1)
				if time.Since(begin) > rtt {
					slow.Add(1)
				}
				if r.Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	assert.InDelta(t, limit, admitted.Load(), 1)
	assert.EqualValues(t, limit, used(t, store, "k"))
	assert.Zero(t, slow.Load(), "nobody waits for longer than a call")
	return admitted.Load()
}

// A process whose key has been found to be small makes a call for each request
// that comes by itself, and a crowd shares calls all the same.
func TestSmallKeyInOneProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		for range 30 { // others that use it
			l := open(t, overNetwork(store, rtt/2), PerMinute(60))
			allow(t, l, "k", 1)
		}
		net := overNetwork(store, rtt/2)
		l := open(t, net, PerMinute(60))
		allow(t, l, "k", 1)
		time.Sleep(time.Second)
		allow(t, l, "k", 1)
		time.Sleep(time.Second)
		for range 5 {
			r := allow(t, l, "k", 1)
			assert.True(t, r.Allowed)
			assert.Equal(t, Fetched, r.Source)
			assert.LessOrEqual(t, l.Stats().Held, int64(1))
			time.Sleep(time.Second)
		}
		before, begin := net.count(""), time.Now()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { assert.True(t, allow(t, l, "k", 1).Allowed) })
		}
		wg.Wait()
		assert.LessOrEqual(t, net.count("")-before, 3)
		assert.LessOrEqual(t, time.Since(begin), 3*rtt)
	})
}

// stranding is how many tokens lie in a fleet when somebody is first refused in a
// window, and the calls it made in that window, on average over some windows.
func stranding(t *testing.T, share float64) (stranded, calls float64) {
	const processes, limit, windows = 10, 20_000, 6
	store := memstore.New()
	all := make([]*Limiter, processes)
	for i := range all {
		all[i] = open(t, overNetwork(store, rtt/2), PerMinute(limit), WithStranding(share))
	}
	var spentBefore, callsBefore int64
	for w := range windows {
		var over atomic.Bool
		var reset atomic.Int64
		var wg sync.WaitGroup
		for i, l := range all {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(w), uint64(i)))
				for {
					time.Sleep(time.Duration(rnd.ExpFloat64() * float64(15*time.Millisecond)))
					if over.Load() {
						return
					}
					if r := allow(t, l, "k", 1); !r.Allowed {
						reset.Store(r.Reset.UnixNano())
						over.Store(true)
					}
				}
			})
		}
		wg.Wait()
		var spent, called int64
		for _, l := range all {
			s := l.Stats()
			spent += s.Spent
			called += s.StoreCalls
		}
		if w > 0 { // the first is before anything is known of the key
			stranded += float64(limit-(spent-spentBefore)) / (windows - 1)
			calls += float64(called-callsBefore) / (windows - 1)
		}
		time.Sleep(time.Until(time.Unix(0, reset.Load()).Add(rtt)))
		spentBefore, callsBefore = spent, called
	}
	return stranded, calls
}

func TestStrandingIsWhatItIsSetTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		none, most := stranding(t, 0)
		some, fewer := stranding(t, 0.05)
		assert.LessOrEqual(t, none, 20_000*0.01, "what runs low is not stocked any more")
		assert.Greater(t, some, 20_000*0.01)
		assert.LessOrEqual(t, some, 20_000*0.05)
		assert.Greater(t, most, fewer, "at the price of calls")
		t.Logf("stranded %.0f by %.0f calls, %.0f by %.0f calls", none, most, some, fewer)
	})
}

// Stranded is what an exhausted key still holds, and what of it is spent no more.
func TestStrandedIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a := open(t, overNetwork(store, rtt/2), PerMinute(100), WithBatch(Fixed(30)))
		b := open(t, overNetwork(store, rtt/2), PerMinute(100), WithBatch(Fixed(70)))
		allow(t, a, "k", 1)
		assert.Zero(t, a.Stats().Stranded, "there is more in the store")
		allow(t, b, "k", 1)
		assert.EqualValues(t, 69, b.Stats().Stranded)
		assert.EqualValues(t, 69, b.Stats().Held)
		allow(t, b, "k", 60)
		assert.EqualValues(t, 9, b.Stats().Stranded)
		time.Sleep(61 * time.Second)
		assert.Zero(t, b.Stats().Stranded)
	})
}

// Who goes idle while it is alone on a key cannot know who will come, and gives
// back all the same what is too much for it.
func TestIdleExcessOfALoneProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a := open(t, overNetwork(store, rtt/2), PerMinute(60_000))
		b := open(t, overNetwork(store, rtt/2), PerMinute(60_000))
		var spent int64
		count := func(r Result) {
			if r.Allowed {
				spent++
			}
		}
		begin := time.Now()
		every(t, a, time.Millisecond, begin.Add(10*time.Second), count)
		every(t, b, time.Millisecond/2, begin.Add(55*time.Second), count)
		assert.GreaterOrEqual(t, spent, int64(60_000*0.98))
	})
}

// No batch is larger than the bound that was set, however fast the key is used.
func TestLargestBatchIsABound(t *testing.T) {
	var most atomic.Int64
	l := open(t, memstore.New(), PerHour(100_000), WithBatch(Adaptive(1, 50)), WithFetchTimeout(time.Minute),
		WithHooks(Hooks{StoreCall: func(c StoreCall) { most.Store(max(most.Load(), c.Granted)) }}))
	for range 20_000 {
		require.True(t, allow(t, l, "k", 1).Allowed)
	}
	assert.LessOrEqual(t, most.Load(), int64(50))
	assert.Greater(t, most.Load(), int64(25))
}

// The largest batch that can be allowed is no bound, however many share the limit.
func TestStrandUnderTheLargestBatch(t *testing.T) {
	l := open(t, memstore.New(), PerMinute(100_000), WithBatch(Adaptive(1, math.MaxInt64)))
	allow(t, l, "k", 1)
	e := l.table.get("k")
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.clients = range int32(100) {
		require.Positive(t, e.strand(), e.clients)
	}
}
