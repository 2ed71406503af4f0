package reservoir_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// Everything at once: processes, callers, faults and ends, at random.

// ledger counts, per window of the store, the tokens that requests of all processes
// have spent and not refunded.
type ledger struct {
	mu    sync.Mutex
	spent map[int64]int64
	over  int // refusals
}

func (g *ledger) note(r reservoir.Result, n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.Allowed {
		g.spent[r.Reset.UnixMilli()] += n
	} else {
		g.over++
	}
}

func (g *ledger) windows() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.spent)
}

// full reports whether windows have rolled over and the limit was reached.
func (g *ledger) full() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.spent) > 2 && g.over > 0
}

func (g *ledger) within(t *testing.T, limit int64) {
	t.Helper()
	assert.GreaterOrEqual(t, g.windows(), 2, "windows rolled over, though the circuit may have been open for one")
	for end, n := range g.spent { // nobody writes any more
		assert.LessOrEqual(t, n, limit, "window %d", end)
	}
}

// The hot path under the race detector: spending, refusing, evicting and closing all at
// once, in real time.
func TestHotPathRaces(t *testing.T) {
	for name, opt := range everyPolicy() {
		t.Run(name, func(t *testing.T) {
			const limit = 500
			l := open(t, memstore.New(), reservoir.Limit{Tokens: limit, Window: 20 * time.Millisecond}, opt,
				reservoir.WithIdle(time.Millisecond), reservoir.WithFetchTimeout(time.Minute)) // the machine may be busy
			g := &ledger{spent: map[int64]int64{}}
			k := l.Key("k")
			crowd(8, func(i int) {
				for begin := time.Now(); time.Since(begin) < 200*time.Millisecond || !g.full() && time.Since(begin) < 10*time.Second; {
					var r reservoir.Result
					var err error
					if i%2 == 0 {
						r, err = k.AllowN(context.Background(), int64(i+1))
					} else {
						r, err = l.AllowN(context.Background(), "k", int64(i+1))
					}
					if !assert.NoError(t, err) {
						return
					}
					g.note(r, int64(i+1))
				}
			})
			require.NoError(t, l.Close(context.Background()))
			assert.Positive(t, g.over, "the limit was reached")
			g.within(t, limit)
		})
	}
}

// While tokens are on their way from a reply through the line into the stock, no
// newcomer is refused for not seeing them.
func TestNoFalseRefusalBetweenReplyAndStock(t *testing.T) {
	for range 300 {
		const limit = 40
		l := open(t, memstore.New(), reservoir.PerHour(limit), reservoir.WithLadder(1, 100), reservoir.WithFetchTimeout(time.Minute))
		var admitted atomic.Int64
		crowd(8, func(int) { admitted.Add(drain(t, l, "k", 1)) })
		require.EqualValues(t, limit, admitted.Load())
	}
}

// Nor do they go back where cores race, while keys come and go.
func TestCountersNeverGoBackInARace(t *testing.T) {
	l := open(t, memstore.New(), reservoir.PerHour(1000), reservoir.WithFixedBatch(3), reservoir.WithIdle(time.Millisecond), patient)
	var over atomic.Bool
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		for last := l.Stats(); !over.Load(); {
			is := l.Stats()
			requireGrowth(t, last, is)
			last = is
		}
	}()
	crowd(4, func(i int) {
		for j := range 1500 {
			_, err := l.Allow(bg, fmt.Sprint(i, j/3))
			assert.NoError(t, err)
		}
	})
	over.Store(true)
	<-looked
}

// gated is a store that answers once it is open.
type gated struct {
	backend.Store
	open    chan struct{}
	answers func()
}

func (g *gated) Sync(ctx context.Context, q backend.Statement) (backend.Reply, error) {
	<-g.open
	reply, err := g.Store.Sync(ctx, q)
	g.answers()
	return reply, err
}

// crowdThatLeaves has many callers wait for one fetch, and calls granted when its grant was
// handed to them. Their contexts end just before, so that they leave with tokens in hand.
func crowdThatLeaves(t *testing.T, opts []reservoir.Option, granted func(l *reservoir.Limiter)) (l *reservoir.Limiter, admitted int64) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that callers have not left yet when the grant comes
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	gate := &gated{Store: memstore.New(), open: make(chan struct{}), answers: cancel}
	var once sync.Once
	told := make(chan struct{})
	var made *reservoir.Limiter
	made, err := reservoir.New(gate, reservoir.PerHour(1_000_000), append(opts,
		reservoir.WithFetchTimeout(10*time.Second), reservoir.WithFixedBatch(1000),
		reservoir.WithHooks(reservoir.Hooks{StoreCall: func(reservoir.StoreCall) {
			once.Do(func() {
				granted(made)
				close(told)
			})
		}}))...)
	require.NoError(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	const crowd = 400
	for range crowd {
		wg.Go(func() {
			if r, err := made.Allow(ctx, "k"); err == nil && r.Allowed {
				mu.Lock()
				defer mu.Unlock()
				admitted++
			}
		})
	}
	for made.Stats().Waited < crowd {
		time.Sleep(time.Millisecond)
	}
	close(gate.open)
	wg.Wait()
	<-told
	return made, admitted
}

// What callers are given and leave behind is refunded: Spent does not go back.
func TestWhoLeavesIsRefunded(t *testing.T) {
	var was reservoir.Stats
	l, admitted := crowdThatLeaves(t, nil, func(l *reservoir.Limiter) { was = l.Stats() })
	now := l.Stats()
	assert.GreaterOrEqual(t, now.Spent, was.Spent, "%d of %d were admitted", admitted, was.Spent)
	assert.EqualValues(t, admitted, now.Spent-now.Refunded)
	require.NoError(t, l.Close(bg))
	balance(t, l)
}

// Counts balance also when the limiter is closed between the grant and the moment when its
// callers leave.
func TestLeavingAfterClose(t *testing.T) {
	for range 20 {
		l, admitted := crowdThatLeaves(t, nil, func(l *reservoir.Limiter) {
			go l.Close(bg)
		})
		require.NoError(t, l.Close(bg))
		s := l.Stats()
		if !assert.Equal(t, s.Taken+s.Refunded, s.Spent+s.Returned+s.Expired+s.Held, "taken %d, spent %d, returned %d, expired %d, held %d; %d admitted", s.Taken, s.Spent, s.Returned, s.Expired, s.Held, admitted) {
			return
		}
	}
}
