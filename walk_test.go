package reservoir_test

import (
	"context"
	"errors"
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
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// This file is random walks, and crowds that leave.

// Requests of all kinds that settle, leave and are reset, under limits that change and in
// outages: the counts balance, never go back, and tell of every request.
func TestEverythingAtOnce(t *testing.T) {
	for seed := range uint64(12) {
		inBubbles(t, fmt.Sprint(seed), everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			net := testnet.Far(time.Millisecond)
			var tokens atomic.Int64
			tokens.Store(200)
			limits := reservoir.WithLimits(func(string) reservoir.Limit {
				switch n := tokens.Load(); n {
				case -1:
					return reservoir.Unlimited()
				case 0:
					return reservoir.Limit{}
				default:
					return reservoir.PerMinute(n)
				}
			})
			opts := []reservoir.Option{opt, limits, reservoir.WithIdle(20 * time.Second)}
			if seed%2 == 1 {
				opts = append(opts, reservoir.WithFailure(reservoir.FailOpen()))
			}
			if seed%4 == 3 {
				opts = append(opts, reservoir.WithMaxKeys(2))
			}
			all := fleet(t, 3, net, reservoir.PerMinute(200), opts...)
			var admitted [3]atomic.Int64
			var last [3]reservoir.Stats
			keys := []string{"a", "b", "c"}
			for step := range 1500 {
				i := rnd.IntN(3)
				l, key, n, more := all[i], keys[rnd.IntN(3)], 1+rnd.Int64N(30), rnd.Int64N(60)
				switch rnd.IntN(40) {
				case 0:
					tokens.Store([]int64{0, -1, 50, 200, 1000}[rnd.IntN(5)])
				case 1:
					net.Always([]testnet.Fault{testnet.Fine, testnet.LoseRequest, testnet.LoseReply, testnet.Refuse, testnet.Repeat, testnet.ArriveLate}[rnd.IntN(6)])
				case 2, 3:
					net.Faults(nil)
				case 4:
					_ = l.Reset(bg, key)
				}
				patience := time.Duration(rnd.IntN(5000)) * time.Millisecond
				stay := rnd.IntN(5) == 0
				hold := time.Duration(rnd.IntN(20000)) * time.Millisecond
				go func() {
					ctx, cancel := context.WithTimeout(bg, patience+time.Microsecond)
					defer cancel()
					var r reservoir.Result
					var err error
					if stay {
						r, err = l.WaitN(ctx, key, n)
					} else {
						r, err = l.AllowN(ctx, key, n)
					}
					if err != nil || !r.Allowed {
						return
					}
					if !r.Unlimited() {
						admitted[i].Add(1)
					}
					time.Sleep(hold)
					_ = l.Settle(bg, key, r, more)
				}()
				time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
				if step%50 == 0 {
					for j, l := range all {
						s := l.Stats()
						requireGrowth(t, last[j], s)
						last[j] = s
					}
				}
			}
			net.Faults(nil)
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			for j, l := range all {
				balance(t, l)
				s := l.Stats()
				assert.Equal(t, admitted[j].Load(), s.Admitted, "%+v", s)
				require.NoError(t, l.Close(bg))
				balance(t, l)
				assert.Equal(t, admitted[j].Load(), l.Stats().Admitted)
			}
		})
	}
}

// Limits that change under load between all kinds: counts balance, none goes back, no error
// but those that the limit explains, and no window has more than the largest limit.
func TestLimitsThatVary(t *testing.T) {
	zone, err := time.LoadLocation("America/Santiago")
	require.NoError(t, err)
	kinds := []reservoir.Limit{
		{Tokens: 50, Window: 200 * time.Millisecond}, {Tokens: 500, Window: time.Second}, reservoir.PerDay(1000, zone), reservoir.PerMonth(700, nil),
		{}, reservoir.Unlimited(), {Tokens: 30, Window: 50 * time.Millisecond, Shadow: true}, {Tokens: 5, Window: 3 * time.Second}, {Shadow: true},
	}
	for name, opts := range map[string][]reservoir.Option{
		"batches": nil, "direct": {reservoir.WithDirect()}, "no room": {reservoir.WithMaxKeys(1)}, "none": {reservoir.WithMaxKeys(0)}, "idle": {reservoir.WithIdle(3 * time.Millisecond)},
	} {
		inBubbles(t, name, map[string]reservoir.Option{"default": reservoir.WithStranding(0.01)}, func(t *testing.T, _ string, opt reservoir.Option) {
			store := memstore.New()
			var kind [4]atomic.Int32
			limits := reservoir.WithLimits(func(key string) reservoir.Limit { return kinds[kind[key[0]-'0'].Load()] })
			var all []*reservoir.Limiter
			for range 3 {
				l, err := reservoir.New(store, kinds[0], append(opts, opt, limits)...)
				require.NoError(t, err)
				all = append(all, l)
			}
			var mu sync.Mutex
			net := map[string]int64{}
			var stop atomic.Bool
			var wg sync.WaitGroup
			wg.Go(func() {
				for !stop.Load() {
					kind[rand.IntN(4)].Store(int32(rand.IntN(len(kinds))))
					time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
				}
			})
			for _, l := range all {
				wg.Go(func() {
					var was reservoir.Stats
					for !stop.Load() {
						s := l.Stats()
						requireGrowth(t, was, s)
						was = s
						for range l.Keys() {
						}
						time.Sleep(13 * time.Millisecond)
					}
				})
				for range 4 {
					wg.Go(func() {
						for !stop.Load() {
							key := fmt.Sprint(rand.IntN(4))
							n := 1 + rand.Int64N(6)
							var r reservoir.Result
							var err error
							ctx, cancel := context.WithTimeout(bg, 500*time.Millisecond)
							if rand.IntN(4) == 0 {
								r, err = l.WaitN(ctx, key, n)
							} else {
								r, err = l.AllowN(ctx, key, n)
							}
							cancel()
							// A process that did not see a limit come and go meets a window of its length.
							conflict := errors.Is(err, reservoir.ErrConflict)
							if err != nil && !conflict && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, reservoir.ErrExceedsLimit) {
								t.Errorf("%d of %s: %v", n, key, err)
							}
							if err == nil && r.Allowed && !r.Shadowed && !r.Unlimited() {
								mu.Lock()
								net[fmt.Sprint(key, " ", r.Reset.UnixMilli())] += n
								mu.Unlock()
								if rand.IntN(3) == 0 {
									if err := l.Settle(bg, key, r, rand.Int64N(n+1)); err != nil {
										t.Errorf("settle: %v", err)
									}
								}
							}
							if rand.IntN(300) == 0 {
								if err := l.Reset(bg, key); err != nil && !errors.Is(err, reservoir.ErrConflict) {
									t.Errorf("reset: %v", err)
								}
							}
							time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
						}
					})
				}
			}
			time.Sleep(12 * time.Second)
			stop.Store(true)
			wg.Wait()
			for _, l := range all {
				require.NoError(t, l.Close(bg))
				balance(t, l)
				s := l.Stats()
				assert.LessOrEqual(t, s.Refunded, s.Spent)
			}
		})
	}
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
		reservoir.WithFetchTimeout(10*time.Second), reservoir.WithBatch(reservoir.Fixed(1000)),
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

// gated is a store that answers once it is open.
type gated struct {
	backend.Store
	open    chan struct{}
	answers func()
}

func (g *gated) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	<-g.open
	reply, err := g.Store.Sync(ctx, r)
	g.answers()
	return reply, err
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
