package reservoir_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// This file has direct calls whose callers have left, and stores that do not obey a context.

// stubborn is a store that answers each call after a while, whatever the context.
type stubborn struct {
	*testnet.Network
	delay atomic.Int64
}

func newStubborn() *stubborn {
	s := &stubborn{Network: testnet.Far(time.Millisecond)}
	s.Enter = func(ctx context.Context, _ *testnet.Call) context.Context {
		time.Sleep(time.Duration(s.delay.Load()))
		return context.WithoutCancel(ctx)
	}
	return s
}

// withoutStock are the ways to ask the store for each request.
func withoutStock() map[string]reservoir.Option {
	return map[string]reservoir.Option{"direct": reservoir.WithDirect(), "no room": reservoir.WithMaxKeys(0)}
}

// A store that does not obey its context holds no caller: after the fetch timeout and a little
// more, the failure policy answers. What comes later goes back.
func TestStoreThatIgnoresItsContext(t *testing.T) {
	how := everyPolicy()
	how["no room"] = reservoir.WithMaxKeys(0)
	for what, policy := range map[string]reservoir.Failure{"closed": reservoir.FailClosed(), "open": reservoir.FailOpen(), "local": reservoir.FailLocal(0.5)} {
		inBubbles(t, what, how, func(t *testing.T, name string, opt reservoir.Option) {
			s, heard := newStubborn(), new(states)
			l := open(t, s, reservoir.PerHour(1000), opt, reservoir.WithFailure(policy), heard.option())
			_, calls := withoutStock()[name]
			r, admitted := allow(t, l, "k", 10), int64(10)
			soon := func(ask func() error) error {
				begin := time.Now()
				err := ask()
				bound := 130 * time.Millisecond
				if !calls {
					bound *= 2 // the rest of a fetch, and the caller's own
				}
				require.LessOrEqual(t, time.Since(begin), bound)
				return err
			}
			s.delay.Store(int64(3 * time.Second))
			for round := range 20 {
				err := soon(func() error {
					r, err := l.AllowN(bg, "k", 400)
					if r.Allowed {
						admitted += 400
					}
					return err
				})
				var failure *reservoir.StoreError
				switch fails := what == "closed" || what == "local" && name == "no room"; {
				case !fails:
					require.NoError(t, err)
				case err != nil || round == 0: // later a fetch has ended
					require.ErrorAs(t, err, &failure)
				}
				_ = soon(func() error { _, err := l.Check(bg, "k"); return err })
				_ = soon(func() error { return l.Reset(bg, "other") })
				_ = soon(func() error { return l.Settle(bg, "k", r, 10) })
				ctx, cancel := context.WithTimeout(bg, 50*time.Millisecond)
				_ = soon(func() error { return waitFor(ctx, l, "another", 1) })
				cancel()
			}
			if calls {
				require.NotEmpty(t, heard.told(), "its circuit opens")
			}
			s.delay.Store(0)
			time.Sleep(10 * time.Second)
			repair(t, l, s.Network, "k", 1)
			time.Sleep(time.Second)
			stats := l.Stats()
			assert.Zero(t, stats.Unknown)
			assert.Equal(t, stats.Spent-stats.Refunded, stats.Taken-stats.Returned-stats.Held-stats.Expired)
			if calls && what == "closed" {
				require.EqualValues(t, admitted+1, used(t, s, "k")-l.Stats().Held)
			}
		})
	}
}

// Direct calls whose replies come after the fetch timeout, or after the caller has left, give
// back what they charged, also if Close comes in between.
func TestLateTakesGoBack(t *testing.T) {
	for _, delay := range []time.Duration{50 * time.Millisecond, 150 * time.Millisecond, time.Second} {
		for _, closing := range []bool{false, true} {
			inBubbles(t, fmt.Sprint(delay, "/", closing), withoutStock(), func(t *testing.T, name string, opt reservoir.Option) {
				s := newStubborn()
				l := open(t, s, reservoir.PerHour(100), opt)
				require.True(t, allow(t, l, "k", 5).Allowed)
				s.delay.Store(int64(delay))
				for range 3 {
					ctx, cancel := context.WithTimeout(bg, 30*time.Millisecond)
					defer cancel()
					_, err := l.AllowN(ctx, "k", 7)
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				if delay > 100*time.Millisecond {
					_, err := l.AllowN(bg, "k", 7)
					require.Error(t, err)
				}
				if closing {
					require.NoError(t, l.Close(bg))
				} else {
					time.Sleep(10 * time.Second)
				}
				assert.EqualValues(t, 5, used(t, s, "k"))
				stats := l.Stats()
				assert.Zero(t, stats.Unknown)
				assert.EqualValues(t, stats.Taken-5, stats.Returned)
			})
		}
	}
}

// A server that always answers too late for callers of little patience is away, although it
// answers.
func TestAnswersThatAreAlwaysLate(t *testing.T) {
	inBubbles(t, "", withoutStock(), func(t *testing.T, name string, opt reservoir.Option) {
		s, heard := newStubborn(), new(states)
		l := open(t, s, reservoir.PerHour(100), opt, heard.option())
		s.delay.Store(int64(150 * time.Millisecond))
		for range 20 {
			ctx, cancel := context.WithTimeout(bg, 50*time.Millisecond)
			_, err := l.Allow(ctx, "k")
			require.Error(t, err)
			cancel()
		}
		time.Sleep(time.Second)
		require.NotEmpty(t, heard.told())
	})
}
