package reservoir_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// This file changes what WithLimits returns at unlucky moments.

// blockable is a limit per minute for WithLimits that a test blocks. It records when it
// first returned the block.
type blockable struct {
	tokens   int64
	block    atomic.Bool
	slow     atomic.Int64 // how long an answer takes after it was decided
	returned atomic.Int64 // time, Unix ns; 0 = not yet
}

func (b *blockable) option() reservoir.Option {
	return reservoir.WithLimits(func(string) reservoir.Limit {
		limit := reservoir.PerMinute(b.tokens)
		if b.block.Load() {
			limit = reservoir.Limit{}
		}
		time.Sleep(time.Duration(b.slow.Load()))
		if limit.Tokens == 0 {
			b.returned.CompareAndSwap(0, time.Now().UnixNano())
		}
		return limit
	})
}

// From the moment when WithLimits has returned a block, whichever call asked, no stock is
// admitted, and the stock goes back.
func TestBlockCountsFromItsReturn(t *testing.T) {
	bySettle := func(l *reservoir.Limiter, r reservoir.Result) { _ = l.Settle(bg, "k", r, 0) }
	for what, ask := range map[string]func(l *reservoir.Limiter, r reservoir.Result){
		"nothing":       func(*reservoir.Limiter, reservoir.Result) {},
		"check":         func(l *reservoir.Limiter, _ reservoir.Result) { _, _ = l.Check(bg, "k") },
		"reset":         func(l *reservoir.Limiter, _ reservoir.Result) { _ = l.Reset(bg, "k") },
		"large request": func(l *reservoir.Limiter, _ reservoir.Result) { _, _ = l.AllowN(bg, "k", 600) },
		"settle":        bySettle,
		"check, then settle": func(l *reservoir.Limiter, r reservoir.Result) {
			_, _ = l.Check(bg, "k")
			bySettle(l, r)
		},
	} {
		for _, slow := range []time.Duration{0, 300 * time.Millisecond} {
			inBubbles(t, fmt.Sprint(what, "/", slow), everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
				limit, net := &blockable{tokens: 500}, testnet.Far(time.Millisecond)
				l := open(t, net, reservoir.PerMinute(500), opt, limit.option(), patient)
				admitted := func() int64 {
					for n := int64(0); ; n++ {
						if !allow(t, l, "k", 1).Allowed {
							return n
						}
						time.Sleep(20 * time.Millisecond)
					}
				}
				first := allow(t, l, "k", 10)
				for range 100 {
					require.True(t, allow(t, l, "k", 1).Allowed)
					time.Sleep(20 * time.Millisecond)
				}
				limit.slow.Store(int64(slow))
				limit.block.Store(true)
				ask(l, first)
				if limit.returned.Load() != 0 {
					require.Zero(t, admitted())
				}
				admitted()
				time.Sleep(time.Second)
				require.Zero(t, l.Stats().Held)
			})
		}
	}
}

// A fetch asked before the block, and gets its answer after it: the answer is the older one.
func TestOlderAnswerThanABlock(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, name string, opt reservoir.Option) {
		for when := range 300 { // some are in the middle of a prefetch
			limit, net := &blockable{tokens: 5000}, testnet.Far(time.Millisecond)
			limit.slow.Store(int64(100 * time.Millisecond))
			l := open(t, net, reservoir.PerMinute(5000), opt, limit.option(), patient)
			for range 50 + when {
				allow(t, l, "k", 1)
				time.Sleep(10 * time.Millisecond)
			}
			limit.block.Store(true)
			limit.slow.Store(0)
			r, err := l.Check(bg, "k")
			require.NoError(t, err)
			require.False(t, r.Allowed)
			for range 50 {
				require.False(t, allow(t, l, "k", 1).Allowed)
				time.Sleep(10 * time.Millisecond)
			}
			require.NoError(t, l.Close(bg))
		}
	})
}

// Tokens that come back to a blocked key are not admitted, not even while they are on their
// way to the store.
func TestRefundOfABlockedKey(t *testing.T) {
	limit := &blockable{tokens: 1_000_000}
	l := open(t, testnet.Far(0), reservoir.PerMinute(1), limit.option(), patient, reservoir.WithBatch(reservoir.Fixed(10_000)))
	var results []reservoir.Result
	for range 5000 {
		results = append(results, allow(t, l, "k", 2))
	}
	limit.block.Store(true)
	_, err := l.Check(bg, "k")
	require.NoError(t, err)
	var over atomic.Bool
	var admitted atomic.Int64
	crowd(3, func(i int) {
		if i == 0 {
			for _, r := range results {
				_ = l.Refund(bg, "k", r)
			}
			over.Store(true)
		}
		for !over.Load() {
			if r, err := l.Allow(bg, "k"); err == nil && r.Allowed {
				admitted.Add(1)
			}
		}
	})
	assert.Zero(t, admitted.Load())
}

// A function of WithLimits that returns another limit each time keeps nobody busy: an Allow is
// decided by one of them, and a Wait ends with its context.
func TestLimitsThatAlternate(t *testing.T) {
	shadow := reservoir.PerMinute(10)
	shadow.Shadow = true
	for what, limits := range map[string][]reservoir.Limit{
		"blocked":          {reservoir.PerMinute(10), {}},
		"unlimited":        {reservoir.PerMinute(10), reservoir.Unlimited()},
		"both":             {{}, reservoir.PerMinute(10), reservoir.Unlimited()},
		"shadow":           {reservoir.PerMinute(10), shadow},
		"tokens":           {reservoir.PerMinute(5), reservoir.PerMinute(10)},
		"tokens in shadow": {{Tokens: 5, Window: time.Minute, Shadow: true}, reservoir.PerMinute(10)},
		"lengths":          {reservoir.PerMinute(10), reservoir.PerHour(10), reservoir.PerDay(10, nil)},
		"out of range":     {reservoir.PerMinute(10), reservoir.PerMinute(-1)},
	} {
		how := everyPolicy()
		how["no room"] = reservoir.WithMaxKeys(0)
		inBubbles(t, what, how, func(t *testing.T, name string, opt reservoir.Option) {
			for _, n := range []int64{1, 7} {
				for phase := range limits {
					asked := phase
					l := open(t, testnet.Far(time.Millisecond), reservoir.PerMinute(10), opt, reservoir.WithLimits(func(string) reservoir.Limit {
						if asked++; asked > 50_000 { // in a bubble, a loop without a pause would not end
							panic("asked too often")
						}
						return limits[asked%len(limits)]
					}))
					for range 40 {
						begin := time.Now()
						_, _ = l.AllowN(bg, "k", n)
						require.Less(t, time.Since(begin), time.Second)
						ctx, cancel := context.WithTimeout(bg, time.Second)
						_ = waitFor(ctx, l, "k", n)
						require.LessOrEqual(t, time.Since(begin), 3*time.Second)
						cancel()
						time.Sleep(100 * time.Millisecond)
					}
					synctest.Wait()
					require.Less(t, asked, 10_000)
				}
			}
		})
	}
}
