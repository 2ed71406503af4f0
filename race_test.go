package reservoir

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// ledger counts, per window of the store, the tokens that requests of all
// processes have spent and not refunded.
type ledger struct {
	mu    sync.Mutex
	spent map[int64]int64
	over  int // refusals, so that a test knows that the limit was reached
}

func (g *ledger) note(r Result, sign int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.Allowed {
		g.spent[r.Reset.UnixMilli()] += sign * r.charged
	} else {
		g.over++
	}
}

// Several processes, windows that roll over, a network that loses and delays,
// callers that give up, wait, and refund: no window is overspent, and every
// token that the store has charged is accounted for by somebody.
func TestChaos(t *testing.T) {
	for seed := range uint64(30) {
		for name, opt := range policies() {
			t.Run(fmt.Sprintf("%s/seed=%d", name, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { chaos(t, seed, opt) })
			})
		}
	}
}

const chaosLimit = 300

func chaos(t *testing.T, seed uint64, opt Option) {
	store := memstore.New()
	rnd := rand.New(rand.NewPCG(seed, 1))
	g := &ledger{spent: map[int64]int64{}}
	var nets []*network
	var all []*Limiter
	for range 3 {
		n := overNetwork(store, time.Duration(rnd.IntN(8)+1)*time.Millisecond)
		faults := rand.New(rand.NewPCG(seed, rnd.Uint64()))
		n.set(func(string) fault { // under n.mu
			return []fault{fine, fine, fine, fine, fine, fine, loseRequest, loseReply, hang, refuse}[faults.IntN(10)]
		})
		nets = append(nets, n)
		all = append(all, open(t, n, PerSecond(chaosLimit), opt, WithIdle(700*time.Millisecond)))
	}
	var wg sync.WaitGroup
	for i := range 12 {
		calls := rand.New(rand.NewPCG(seed, uint64(100+i)))
		wg.Go(func() { client(t, all[i%3], g, calls) })
	}
	wg.Wait()
	for i, l := range all {
		nets[i].set(nil)
		require.NoError(t, l.Close(context.Background()))
		balance(t, l)
	}
	for end, n := range g.spent {
		assert.LessOrEqual(t, n, int64(chaosLimit), "window %d", end)
	}
	assert.GreaterOrEqual(t, len(g.spent), 3, "windows rolled over")
	assert.Positive(t, g.over, "the limit was reached")
	for f := fine; f <= refuse; f++ {
		assert.Positive(t, nets[0].happened(f)+nets[1].happened(f)+nets[2].happened(f), "fault %d happened", f)
	}
}

// client is one goroutine's traffic for three and a half windows.
func client(t *testing.T, l *Limiter, g *ledger, rnd *rand.Rand) {
	for end := time.Now().Add(3500 * time.Millisecond); time.Now().Before(end); {
		time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
		n := int64(rnd.IntN(5) + 1)
		if rnd.IntN(30) == 0 {
			n = int64(rnd.IntN(100) + 1)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rnd.IntN(200)+1)*time.Millisecond)
		switch rnd.IntN(10) {
		case 0:
			_ = l.WaitN(ctx, "k", n)
		case 1:
			_, _ = l.Check(ctx, "k")
		default:
			r, err := l.AllowN(ctx, "k", n)
			if err != nil {
				break
			}
			g.note(r, 1)
			if r.Allowed && rnd.IntN(10) == 0 {
				refund(ctx, l, g, r)
			}
		}
		cancel()
	}
}

// refund gives r back and notes it. A refund whose reply was lost may have been
// made all the same, and the tokens spent again by another.
func refund(ctx context.Context, l *Limiter, g *ledger, r Result) {
	before := l.Stats().Refunded
	if err := l.Refund(ctx, "k", r); err != nil || l.Stats().Refunded > before {
		g.note(r, -1)
	}
}

// With a network that works, what the processes say they spent is what the store
// has charged, to the token.
func TestConservation(t *testing.T) {
	for name, opt := range policies() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				var all []*Limiter
				for range 4 {
					all = append(all, open(t, overNetwork(store, time.Millisecond), PerHour(50_000), opt))
				}
				var wg sync.WaitGroup
				for i := range 40 {
					rnd := rand.New(rand.NewPCG(7, uint64(i)))
					wg.Go(func() {
						for range 200 {
							time.Sleep(time.Duration(rnd.IntN(3)) * time.Millisecond)
							allow(t, all[i%4], "k", int64(rnd.IntN(9)+1))
						}
					})
				}
				wg.Wait()
				var spent int64
				for _, l := range all {
					require.NoError(t, l.Close(context.Background()))
					spent += l.Stats().Spent - l.Stats().Refunded
				}
				assert.EqualValues(t, spent, used(t, store, "k"))
			})
		})
	}
}

// The hot path under the race detector: spending, refusing, refunding, evicting
// and closing all at once, in real time.
func TestHotPathRaces(t *testing.T) {
	store := memstore.New()
	const limit = 5000
	l := open(t, store, Limit{Tokens: limit, Window: 20 * time.Millisecond}, WithIdle(time.Millisecond))
	g := &ledger{spent: map[int64]int64{}}
	ctx := context.Background()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			k := l.Key("k")
			for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
				var r Result
				var err error
				if i%2 == 0 {
					r, err = k.AllowN(ctx, int64(i+1))
				} else {
					r, err = l.AllowN(ctx, "k", int64(i+1))
				}
				if !assert.NoError(t, err) {
					return
				}
				g.note(r, 1)
			}
		})
	}
	wg.Wait()
	require.NoError(t, l.Close(ctx))
	for end, n := range g.spent {
		assert.LessOrEqual(t, n, int64(limit), "window %d", end)
	}
	assert.Greater(t, len(g.spent), 3)
}

var _ backend.Store = (*network)(nil)
