package reservoir

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/chance"
)

// diary is what a hook was told of store calls, and when each had begun.
type diary struct {
	mu    sync.Mutex
	calls []diaryEntry
}

type diaryEntry struct {
	StoreCall
	begun time.Time
}

func (d *diary) keep() Option {
	return WithHooks(Hooks{StoreCall: func(c StoreCall) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.calls = append(d.calls, diaryEntry{c, time.Now().Add(-c.Duration)})
	}})
}

// of lists the calls that were made for a cause.
func (d *diary) of(why cause) (list []diaryEntry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.calls {
		if c.Cause == string(why) {
			list = append(list, c)
		}
	}
	return list
}

// every asks for one token every interval until end, and tells each what came.
func every(t *testing.T, l *Limiter, interval time.Duration, end time.Time, each func(Result)) {
	for time.Now().Before(end) {
		each(allow(t, l, "k", 1))
		time.Sleep(interval)
	}
}

func ignore(Result) {}

// In steady use nobody waits, once the key's pace is known: batches come before
// the stock runs out, and at the reset before anybody asks.
func TestNobodyWaitsInSteadyUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, overNetwork(memstore.New(), rtt/2), PerMinute(60_000))
		first := allow(t, l, "k", 1).Reset
		var fetched, local int
		every(t, l, 10*time.Millisecond, time.Now().Add(5*time.Minute), func(r Result) {
			switch {
			case !r.Reset.After(first):
			case r.Source == Local:
				local++
			default:
				fetched++
			}
		})
		assert.LessOrEqual(t, fetched, 4, "only who comes between a window's end and the first batch of the next")
		assert.Greater(t, local, 23_000)
		assert.Positive(t, l.Stats().Prefetches)
		assert.LessOrEqual(t, l.Stats().StoreCalls, int64(60))
	})
}

// However many callers see the stock at the re-order point, one fetch is made.
func TestOneFetchPerReorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), rtt/2)
		l := open(t, net, PerMinute(60_000))
		allow(t, l, "k", 1)
		e := l.table.get("k")
		atRest := func() bool { // stock for the crowd, and no fetch on its way
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.flight == nil && e.win.Load().stock.Load() >= 300
		}
		for !atRest() {
			allow(t, l, "k", 1)
			time.Sleep(rtt)
		}
		w := e.win.Load()
		w.reorder.Store(w.stock.Load()) // all of the crowd see it
		before, prefetches := net.count(""), l.Stats().Prefetches
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { assert.Equal(t, Local, allow(t, l, "k", 1).Source) })
		}
		wg.Wait()
		time.Sleep(rtt / 2)
		assert.Equal(t, 1, net.count("")-before)
		assert.EqualValues(t, 1, l.Stats().Prefetches-prefetches)
	})
}

// Policies that the caller has sized do nothing by themselves.
func TestOnlyAdaptiveLooksAhead(t *testing.T) {
	for name, opt := range policies() {
		synctest.Test(t, func(t *testing.T) {
			var d diary
			net := overNetwork(memstore.New(), rtt/2)
			l := open(t, net, PerSecond(1000), opt, d.keep())
			every(t, l, 2*time.Millisecond, time.Now().Add(5*time.Second), ignore)
			ahead := len(d.of(forStock)) + len(d.of(forReset)) + len(d.of(forEnd)) + len(d.of(forReturn))
			if name == "adaptive" {
				assert.Positive(t, ahead)
				return
			}
			assert.Zero(t, ahead, name)
			assert.Zero(t, l.Stats().Prefetches, name)
			before := net.count("")
			time.Sleep(10 * time.Second)
			assert.Equal(t, before, net.count(""), name)
		})
	}
}

// At the reset every process that used the key restocks by itself, soon and not
// all at once, so that the first request after it finds stock.
func TestRestockAtReset(t *testing.T) {
	for _, limit := range []Limit{PerMinute(60_000), {Tokens: 5000, Window: 200 * time.Millisecond}} {
		synctest.Test(t, func(t *testing.T) {
			const processes = 10
			store := memstore.New()
			var d diary
			var all []*Limiter
			var wg sync.WaitGroup
			reset := time.Now().Add(limit.Window)
			for range processes { // all in step, so that only chance can spread them
				l := open(t, overNetwork(store, rtt/2), limit, d.keep())
				all = append(all, l)
				wg.Go(func() { every(t, l, limit.Window/100, reset.Add(-limit.Window/20), ignore) })
			}
			wg.Wait()
			require.Empty(t, d.of(forReset))
			reset = allow(t, all[0], "k", 1).Reset
			spread := min(limit.Window/200, 5*time.Millisecond)
			latest := reset.Add(spread + limit.Window/drift + rtt) // by when the calls are made
			time.Sleep(time.Until(latest.Add(rtt + time.Millisecond/2)))

			calls := d.of(forReset)
			require.Len(t, calls, processes, "one each")
			instants := map[time.Time]bool{}
			for _, c := range calls {
				instants[c.begun] = true
				assert.False(t, c.begun.Before(reset), "%v too early", reset.Sub(c.begun))
				assert.False(t, c.begun.After(latest), "%v too late", c.begun.Sub(latest))
				assert.Positive(t, c.Granted)
			}
			assert.Greater(t, len(instants), processes/2, "spread")
			for _, l := range all {
				r := allow(t, l, "k", 1)
				assert.Equal(t, Local, r.Source)
				assert.True(t, r.Reset.After(reset))
			}
		})
	}
}

// A key that nobody uses is left to its window's end: it may be restocked once,
// for the use in the window before, and then costs no call and no timer.
func TestIdleKeyFallsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		net := overNetwork(memstore.New(), rtt/2)
		l := open(t, net, PerSecond(20_000), d.keep())
		every(t, l, 200*time.Microsecond, time.Now().Add(2900*time.Millisecond), ignore)
		time.Sleep(600 * time.Millisecond) // into a window in which it is not used
		resets, calls := len(d.of(forReset)), net.count("")
		require.Positive(t, resets)
		time.Sleep(10 * time.Second)
		assert.Equal(t, resets, len(d.of(forReset)))
		assert.LessOrEqual(t, net.count("")-calls, 1, "at most a look at the end of the window in which use ceased")
		calls = net.count("")
		time.Sleep(20 * time.Second)
		assert.Equal(t, calls, net.count(""))
		e := l.table.get("k")
		e.mu.Lock()
		defer e.mu.Unlock()
		assert.Zero(t, e.due, "no timer runs")
	})
}

// Near the window's end a busy key learns it better, so that callers between the
// two bounds do not wait.
func TestRefreshBeforeTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		store := memstore.New()
		l := open(t, overNetwork(store, rtt/2), PerMinute(600_000), d.keep())
		second := allow(t, l, "k", 1).Reset.Add(time.Minute)
		every(t, l, time.Millisecond, second.Add(-30*time.Second), ignore)
		early := l.table.get("k").win.Load().deadline.Load()
		every(t, l, time.Millisecond, second.Add(-time.Second), ignore)
		calls := d.of(forEnd)
		require.NotEmpty(t, calls)
		last := calls[len(calls)-1]
		reset := allow(t, l, "k", 1).Reset
		assert.InDelta(t, 1.2, reset.Sub(last.begun).Seconds(), 0.1, "a fiftieth of the window before its end")
		assert.Zero(t, last.Want)
		assert.Greater(t, l.table.get("k").win.Load().deadline.Load(), early)
		// 500 ppm of a minute are 30 ms, of 1.2 s under a millisecond.
		every(t, l, time.Millisecond/2, reset.Add(-rtt), func(r Result) { assert.Equal(t, Local, r.Source) })
	})
}

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

// exhausted is a fleet of processes that have used the key up, each of which has
// been refused.
func exhausted(t *testing.T, store backend.Store, n int, limit Limit, opts ...Option) []*Limiter {
	all := make([]*Limiter, n)
	for i := range all {
		all[i] = open(t, overNetwork(store, rtt/2), limit, opts...)
		allow(t, all[i], "k", 1)
	}
	for i := range all { // in turn, so that each has some
		for allow(t, all[i], "k", 1).Allowed {
		}
	}
	return all
}

// A refused key costs all processes together some twenty probes a window,
// however many they are and however often each is asked.
func TestProbesAreShared(t *testing.T) {
	const processes, rounds = 20, 10
	limit := Limit{Tokens: 2000, Window: 6 * time.Second}
	var sum int64
	for seed := range uint64(rounds) {
		defer chance.Seed(seed)()
		synctest.Test(t, func(t *testing.T) {
			all := exhausted(t, memstore.New(), processes, limit)
			var before int64
			for _, l := range all {
				before += l.Stats().StoreCalls
			}
			end := time.Now().Add(allow(t, all[0], "k", 1).RetryAfter - limit.Window/refreshPart - 10*rtt)
			var wg sync.WaitGroup
			for i, l := range all {
				wg.Go(func() {
					time.Sleep(time.Duration(i) * 10 * time.Millisecond / processes)
					every(t, l, 10*time.Millisecond, end, func(r Result) {
						assert.False(t, r.Allowed)
						assert.Equal(t, Denied, r.Source)
					})
				})
			}
			wg.Wait()
			var probed, calls int64
			for _, l := range all {
				probed += l.Stats().Probes
				calls += l.Stats().StoreCalls
			}
			assert.InDelta(t, probed, calls-before, 3, "no other calls")
			assert.LessOrEqual(t, probed, int64(45))
			sum += probed
		})
	}
	mean := float64(sum) / rounds
	assert.InDelta(t, probes, mean, 8)
	t.Logf("%.1f probes a window", mean)
}

// Tokens that come back to an exhausted key are found within a twentieth of the
// window on average, by whichever process asks.
func TestReturnedTokensAreFound(t *testing.T) {
	const processes, rounds = 10, 60
	limit := Limit{Tokens: 1000, Window: 20 * time.Second}
	var sum time.Duration
	for seed := range uint64(rounds) {
		defer chance.Seed(seed)()
		synctest.Test(t, func(t *testing.T) {
			ctx := context.Background()
			store := memstore.New()
			all := exhausted(t, store, processes, limit)
			r := allow(t, all[0], "k", 1)
			require.False(t, r.Allowed)
			var begin time.Time
			var found atomic.Int64
			var wg sync.WaitGroup
			for i, l := range all {
				wg.Go(func() {
					time.Sleep(time.Duration(i) * time.Millisecond)
					for found.Load() == 0 && time.Now().Before(r.Reset.Add(-rtt)) {
						if allow(t, l, "k", 1).Allowed {
							found.CompareAndSwap(0, int64(time.Since(begin)))
						}
						time.Sleep(10 * time.Millisecond)
					}
				})
			}
			time.Sleep(limit.Window / 10)
			begin = time.Now()
			back, err := store.Refund(ctx, backend.RefundRequest{Key: "k", Window: r.window(), Tokens: 5})
			require.NoError(t, err)
			require.EqualValues(t, 5, back)
			wg.Wait()
			require.Positive(t, found.Load(), "seed %d: not in the rest of the window", seed)
			sum += time.Duration(found.Load())
		})
	}
	mean := sum / rounds
	assert.Less(t, mean, limit.Window/probes*3/2)
	t.Logf("found after %v on average, a twentieth of the window is %v", mean, limit.Window/probes)
}

// 64 callers in one process, refused for ten seconds without a pause.
func TestRefusalsOfAPacedCrowdAreFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := exhausted(t, memstore.New(), 1, PerMinute(1000))[0]
		before := l.Stats().StoreCalls
		end := time.Now().Add(10 * time.Second)
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Microsecond)
				every(t, l, 2*time.Millisecond, end, func(r Result) { assert.False(t, r.Allowed) })
			})
		}
		wg.Wait()
		assert.LessOrEqual(t, l.Stats().StoreCalls-before, int64(25))
		assert.GreaterOrEqual(t, l.Stats().Denied, int64(64*5000))
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

// Waiters of several processes pass the resets together: in order within each,
// and without a herd.
func TestWaitersOfAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processes, each, limit = 5, 40, 20
		store := memstore.New()
		begin := time.Now()
		var nets []*network
		var orders []func() []int
		var groups []*sync.WaitGroup
		for range processes {
			net := overNetwork(store, rtt/2)
			l := open(t, net, Limit{Tokens: limit, Window: 10 * time.Second})
			order, wg := waiters(t, l, context.Background(), each)
			nets, orders, groups = append(nets, net), append(orders, order), append(groups, wg)
		}
		for _, wg := range groups {
			wg.Wait()
		}
		windows := processes * each / limit
		assert.InDelta(t, float64(windows-1)*10, time.Since(begin).Seconds(), 1.5, "not a token lay idle")
		calls := 0
		for i, net := range nets {
			calls += net.count("")
			got := orders[i]()
			require.Len(t, got, each)
			for at, who := range got {
				assert.InDelta(t, at, who, limit, "who came first is served in an earlier or the same batch")
			}
		}
		assert.LessOrEqual(t, calls, windows*(probes*2+3*processes))
		t.Logf("%d calls in %d windows", calls, windows)
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
