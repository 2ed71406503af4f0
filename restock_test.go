package reservoir

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/memstore"
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

// A large request goes to the store by itself. If the stock falls to the re-order
// point meanwhile, a batch is ordered as soon as it is back.
func TestReorderPointAfterADirectCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), rtt/2)
		var d diary
		l := open(t, net, PerMinute(60_000), d.keep())
		every(t, l, time.Millisecond, time.Now().Add(10*time.Second), ignore)
		w := l.table.get("k").win.Load()
		for w.reorder.Load() == none { // a fetch is under way
			time.Sleep(time.Millisecond)
		}
		large := make(chan Result)
		go func() { large <- allow(t, l, "k", 20_000) }()
		synctest.Wait()
		for w.reorder.Load() != none {
			require.Equal(t, Local, allow(t, l, "k", 1).Source)
		}
		ordered := len(d.of(forStock))
		require.Equal(t, Direct, (<-large).Source)
		require.NotEqual(t, none, w.reorder.Load())
		require.Equal(t, Local, allow(t, l, "k", 1).Source)
		time.Sleep(10 * rtt)
		assert.Len(t, d.of(forStock), ordered+1)
	})
}
