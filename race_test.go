package reservoir_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
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
