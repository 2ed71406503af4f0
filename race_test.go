package reservoir_test

import (
	"context"
	"fmt"
	"math/rand/v2"
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
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// Everything at once: processes, callers, faults and ends, at random.

// ledger counts, per window of the store, the tokens that requests of all processes
// have spent and not refunded.
type ledger struct {
	mu    sync.Mutex
	spent map[int64]int64
	over  int   // refusals
	count int64 // requests admitted
}

func (g *ledger) admitted() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count++
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

// Several processes, windows that roll over, a network that loses, delays and repeats,
// callers that give up, wait, and refund: no window is overspent, and every token that
// the store has charged is accounted for by somebody.
func TestChaos(t *testing.T) {
	for name, opt := range everyPolicy() {
		var refused int
		for seed := range uint64(6) {
			inBubble(t, fmt.Sprintf("%s/seed=%d", name, seed), func(t *testing.T) { refused += chaos(t, seed, opt) })
		}
		assert.Positive(t, refused, "the limit was reached")
	}
}

// chaos returns how many requests were refused.
func chaos(t *testing.T, seed uint64, opt reservoir.Option) int {
	const limit = 300
	faults := []testnet.Fault{testnet.Fine, testnet.Fine, testnet.Fine, testnet.Fine, testnet.Fine, testnet.Fine, testnet.LoseRequest, testnet.LoseReply, testnet.Hang, testnet.ArriveLate, testnet.Refuse, testnet.Repeat}
	store, rnd := memstore.New(), rand.New(rand.NewPCG(seed, 1))
	g := &ledger{spent: map[int64]int64{}}
	var nets []*testnet.Network
	var all []*reservoir.Limiter
	for range 3 {
		n := testnet.New(store, time.Duration(rnd.IntN(8)+1)*time.Millisecond)
		draw := rand.New(rand.NewPCG(seed, rnd.Uint64()))
		n.Faults(func(c *testnet.Call) testnet.Fault { // under n.mu; only what may be repeated is
			f := faults[draw.IntN(len(faults))]
			if f == testnet.Repeat && (c.Op == "take" || c.Op == "settle") {
				return testnet.Fine
			}
			return f
		})
		nets = append(nets, n)
		all = append(all, open(t, n, reservoir.PerSecond(limit), opt, reservoir.WithIdle(700*time.Millisecond)))
	}
	crowd(12, func(i int) { client(all[i%3], g, rand.New(rand.NewPCG(seed, uint64(100+i)))) })
	for _, n := range nets {
		n.Faults(nil)
	}
	time.Sleep(3 * time.Second) // until a circuit that is open has closed
	var admitted int64
	for _, l := range all {
		require.NoError(t, l.Close(context.Background()))
		balance(t, l)
		admitted += l.Stats().Admitted
	}
	assert.Equal(t, g.count, admitted)
	g.within(t, limit)
	for _, f := range faults {
		if f != testnet.Repeat && f != testnet.ArriveLate {
			assert.Positive(t, nets[0].Happened(f)+nets[1].Happened(f)+nets[2].Happened(f), "fault %v happened", f)
		}
	}
	return g.over
}

// client is one goroutine's traffic for three and a half windows.
func client(l *reservoir.Limiter, g *ledger, rnd *rand.Rand) {
	for end := time.Now().Add(3500 * time.Millisecond); time.Now().Before(end); {
		time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
		n := int64(rnd.IntN(5) + 1)
		if rnd.IntN(30) == 0 {
			n = int64(rnd.IntN(100) + 1)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rnd.IntN(200)+1)*time.Millisecond)
		switch rnd.IntN(10) {
		case 0:
			if waitFor(ctx, l, "k", n) == nil {
				g.admitted()
			}
		case 1:
			_, _ = l.Check(ctx, "k")
		default:
			if r, err := l.AllowN(ctx, "k", n); err == nil {
				g.note(r, n)
				if r.Allowed {
					g.admitted()
				}
				if r.Allowed && rnd.IntN(10) == 0 {
					refund(ctx, l, g, r, n)
				}
			}
		}
		cancel()
	}
}

// refund gives r back and notes it. A refund whose reply was lost may have been made
// all the same, and the tokens spent again by another.
func refund(ctx context.Context, l *reservoir.Limiter, g *ledger, r reservoir.Result, n int64) {
	before := l.Stats().Refunded
	if err := l.Refund(ctx, r); err != nil || l.Stats().Refunded > before {
		g.note(r, -n)
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

// No counter ever goes back, whatever the network loses, and at rest every token is
// accounted for, once. Processes fall idle in turn, so that they give back.
func TestCountersNeverGoBack(t *testing.T) {
	for name, opt := range everyPolicy() {
		for seed := range uint64(2) {
			t.Run(fmt.Sprint(name, "/", seed), func(t *testing.T) {
				defer chance.Seed(seed)()
				synctest.Test(t, func(t *testing.T) { countUnderFaults(t, seed, opt) })
			})
		}
	}
}

func countUnderFaults(t *testing.T, seed uint64, opt reservoir.Option) {
	net, random := testnet.Far(2*time.Millisecond), rand.New(rand.NewPCG(seed, 1))
	faults := []testnet.Fault{testnet.LoseReply, testnet.LoseReply, testnet.LoseRequest, testnet.ArriveLate, testnet.Repeat}
	net.Faults(func(*testnet.Call) testnet.Fault { // under the network's lock
		if random.IntN(3) > 0 {
			return testnet.Fine
		}
		return faults[random.IntN(len(faults))]
	})
	const window = 6 * time.Second
	all := fleet(t, 3, net, reservoir.Limit{Tokens: 3000, Window: window}, opt,
		reservoir.WithIdle(time.Second), reservoir.WithFailLocal(0.01))
	last, begin, done := make([]reservoir.Stats, len(all)), time.Now(), make(chan struct{})
	go func() {
		defer close(done)
		crowd(2*len(all), func(i int) {
			random, key := rand.New(rand.NewPCG(seed, uint64(i))), fmt.Sprint(i/len(all))
			for n := int64(0); time.Since(begin) < 2*window; n++ {
				if int(time.Since(begin)/(window/7))%3 == i%3 {
					time.Sleep(window / 7)
				}
				r, err := all[i%3].AllowN(bg, key, 1+n%7*n%2)
				if err == nil && random.IntN(9) == 0 {
					_ = all[i%3].Refund(bg, r)
				}
				time.Sleep(time.Duration(random.Int64N(int64(10 * time.Millisecond))))
			}
		})
	}()
	defer func() { <-done }()
	for time.Since(begin) < 3*window {
		time.Sleep(13 * time.Millisecond)
		for i, l := range all {
			is := l.Stats()
			requireGrowth(t, last[i], is)
			last[i] = is
		}
	}
	require.Positive(t, net.Happened(testnet.LoseReply))
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

// Processes close while requests of all kinds are under way, over a network that has just failed:
// no counter goes back, counts balance, and what requests have used is what stays charged.
func TestCloseInTheMiddle(t *testing.T) {
	for seed := range uint64(8) {
		for name, opt := range batches() {
			t.Run(fmt.Sprint(name, "/", seed), func(t *testing.T) {
				defer chance.Seed(seed)()
				synctest.Test(t, func(t *testing.T) { closeInTheMiddle(t, seed, opt) })
			})
		}
	}
}

func closeInTheMiddle(t *testing.T, seed uint64, opt reservoir.Option) {
	const tokens = 1000
	rnd, net := rand.New(rand.NewPCG(seed, 3)), testnet.Far(time.Millisecond)
	l := open(t, net, reservoir.PerHour(tokens), opt, reservoir.WithIdle(time.Second))
	other := open(t, net, reservoir.PerHour(tokens), opt)
	keys := []string{"a", "b", "c", "d"}
	var spent, late [4]atomic.Int64 // late tokens come back while Close hands back, or expire
	var over atomic.Bool
	var requests sync.WaitGroup
	for i := range 12 {
		rnd, key, spent, late := rand.New(rand.NewPCG(seed, uint64(i))), keys[i%4], &spent[i%4], &late[i%4]
		at := []*reservoir.Limiter{l, other}[i%2]
		k := at.Key(key)
		requests.Go(func() {
			for !over.Load() {
				time.Sleep(time.Duration(rnd.IntN([]int{20, 2000}[rnd.IntN(2)])) * time.Millisecond) // idle for long enough to be forgotten
				ctx, cancel := context.WithTimeout(bg, time.Duration(1+rnd.IntN(20))*time.Millisecond)
				ask := k.AllowN
				if rnd.IntN(4) == 0 {
					ask = func(ctx context.Context, n int64) (reservoir.Result, error) { return at.WaitN(ctx, key, n) }
				}
				n := 1 + rnd.Int64N(10)
				if r, err := ask(ctx, n); err == nil && r.Allowed {
					spent.Add(n)
					if used := rnd.Int64N(n + 1); rnd.IntN(2) == 0 {
						if at.Settle(bg, r, used) == nil {
							spent.Add(used - n)
						} else {
							late.Add(n - used)
						}
					}
				}
				cancel()
			}
		})
	}
	faults := []testnet.Fault{testnet.Fine, testnet.LoseRequest, testnet.LoseReply, testnet.ArriveLate, testnet.Repeat, testnet.Fine}
	busy := time.Duration(rnd.IntN(8000)) * time.Millisecond
	net.Faults(func(*testnet.Call) testnet.Fault { return faults[rnd.IntN(len(faults))] }) // under the network's lock
	time.Sleep(busy)
	net.Faults(nil)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		crowd(3, func(i int) { assert.NoError(t, []*reservoir.Limiter{l, other, l}[i].Close(bg)) })
	}()
	var was reservoir.Stats
	for waiting := true; waiting; {
		select {
		case <-closed:
			waiting = false
		case <-time.After(100 * time.Microsecond):
		}
		is := l.Stats()
		requireGrowth(t, was, is)
		was = is
	}
	over.Store(true)
	requests.Wait()
	for i, key := range keys {
		back := used(t, net, key)
		require.LessOrEqual(t, back, int64(tokens))
		require.LessOrEqual(t, back, spent[i].Load(), key)
		require.GreaterOrEqual(t, back, spent[i].Load()-late[i].Load(), key)
	}
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
