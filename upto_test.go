package reservoir_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// AllowUpTo charges as many tokens as there are. The judge adds them up: never over the limit, and at last all of it.

func upTo(t testing.TB, l *reservoir.Limiter, n int64) int64 {
	got, r, err := l.AllowUpTo(bg, "k", n)
	require.NoError(t, err)
	require.Equal(t, got > 0, r.Allowed)
	require.True(t, got >= 0 && got <= n)
	return got
}

func TestAllowUpTo(t *testing.T) {
	for kind, limit := range kinds() {
		how := everyPolicy()
		how["no room"] = reservoir.WithMaxKeys(0)
		inBubbles(t, kind, how, func(t *testing.T, name string, opt reservoir.Option) {
			net := testnet.Far(rtt / 2)
			l := open(t, net, limit, opt)
			most := map[bool]int{true: 2, false: 1}[name == "no room"]
			require.True(t, allow(t, l, "k", 596).Allowed)
			calls := net.Count("sync")
			got, r, err := l.AllowUpTo(bg, "k", 10)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.EqualValues(t, 4, got, "%+v", r)
			require.LessOrEqual(t, net.Count("sync"), calls+most)
			require.EqualValues(t, 600, l.Stats().Spent)
			require.Zero(t, l.Stats().Denied, "it was not refused")
			if name != "no room" {
				require.NoError(t, l.Settle(bg, r, 1))
				require.EqualValues(t, 3, upTo(t, l, 10))
			}
			calls = net.Count("sync")
			require.Zero(t, upTo(t, l, 10))
			_, r, _ = l.AllowUpTo(bg, "k", 1)
			require.Positive(t, r.RetryAfter)
			require.EqualValues(t, 2, l.Stats().Denied)
			require.LessOrEqual(t, net.Count("sync"), calls+2)

			if limit.Calendar.Period == 0 && !limit.Rolls {
				time.Sleep(2 * limit.Window)
				require.EqualValues(t, 600, upTo(t, l, 10_000), "more than the limit counts as the limit")
			}
		})
	}
}

// While the store is away, there is what is in stock, or what the failure policy admits.
func TestAllowUpToInOutage(t *testing.T) {
	inBubbles(t, "", map[string]reservoir.Option{"closed": reservoir.WithIdle(time.Hour), "open": reservoir.WithFailOpen(), "local": reservoir.WithFailLocal(0.1)},
		func(t *testing.T, name string, opt reservoir.Option) {
			for _, maxKeys := range []int{100, 0} {
				net := testnet.Far(rtt / 2)
				var granted reservoir.Result
				l := open(t, net, reservoir.PerHour(100), reservoir.WithFixedBatch(20), opt, reservoir.WithMaxKeys(maxKeys))
				if maxKeys > 0 {
					got, r, err := l.AllowUpTo(bg, "k", 17)
					require.True(t, err == nil && got == 17)
					granted = r
				}
				net.Always(testnet.LoseRequest)
				if maxKeys > 0 {
					require.EqualValues(t, 2, upTo(t, l, 2))
					calls := net.Count("sync")
					require.EqualValues(t, 1, upTo(t, l, 10), "the call for more has failed")
					require.Greater(t, net.Count("sync"), calls)
				}
				for range 8 { // until the circuit is open
					_, _, _ = l.AllowUpTo(bg, "other", 1)
				}
				if maxKeys > 0 {
					require.NoError(t, l.Settle(bg, granted, 15))
					require.EqualValues(t, 2, upTo(t, l, 10), "from stock")
				}
				got, r, err := l.AllowUpTo(bg, "k", 50)
				var failed *reservoir.StoreError
				switch {
				case name == "closed" || name == "local" && maxKeys == 0:
					require.ErrorAs(t, err, &failed)
					require.Zero(t, got)
				case name == "open":
					require.NoError(t, err)
					require.EqualValues(t, 50, got)
				default:
					require.NoError(t, err)
					require.EqualValues(t, 10, got)
					require.Equal(t, reservoir.Fallback, r.Source)
					require.NoError(t, l.Settle(bg, r, 4))
					require.EqualValues(t, 6, upTo(t, l, 50))
					require.Zero(t, upTo(t, l, 50))
				}
				net.Faults(nil)
				time.Sleep(5 * time.Second)
			}
		})
}

// Special limits, limits in shadow, holds and limits that change.
func TestAllowUpToUnderOtherLimits(t *testing.T) {
	how := smallBatches()
	how["no room"] = reservoir.WithMaxKeys(0)
	inBubbles(t, "", how, func(t *testing.T, name string, opt reservoir.Option) {
		limit := planned(reservoir.Unlimited())
		net := testnet.Far(rtt / 2)
		l := open(t, net, reservoir.PerHour(10), opt, limit.option())
		require.EqualValues(t, 50, upTo(t, l, 50))
		limit.set(reservoir.Block())
		require.Zero(t, upTo(t, l, 50))

		shadow := reservoir.Limit{Tokens: 10, Window: time.Hour, Shadow: true}
		limit.set(shadow)
		require.True(t, allow(t, l, "k", 6).Allowed)
		for _, n := range []int64{5, 50} {
			got, r, err := l.AllowUpTo(bg, "k", n)
			require.NoError(t, err)
			require.True(t, r.Shadowed)
			require.Equal(t, n, got, "it passes")
		}

		few := reservoir.PerMinute(7)
		few.Shadow = true
		for becomes, want := range map[reservoir.Limit]int64{reservoir.PerMinute(7): 7, few: 50} { // the statement for a caller in line finds it
			limit.set(reservoir.PerMinute(100))
			time.Sleep(2 * time.Minute)
			require.EqualValues(t, 100, upTo(t, l, 150))
			time.Sleep(2 * time.Minute)
			limit.set(becomes)
			require.Equal(t, want, upTo(t, l, 50))
		}
		limit.set(reservoir.PerMinute(7))
		time.Sleep(2 * time.Minute)
		require.NoError(t, l.Hold(bg, "k", time.Minute))
		got, r, err := l.AllowUpTo(bg, "k", 5)
		require.NoError(t, err)
		require.Zero(t, got)
		require.InDelta(t, time.Minute, r.RetryAfter, float64(time.Second))
		time.Sleep(time.Minute + time.Second)
		require.EqualValues(t, 5, upTo(t, l, 5))

		for _, n := range []int64{0, -1} {
			require.Error(t, func() error { _, _, err := l.AllowUpTo(bg, "k", n); return err }())
		}
		ctx, cancel := context.WithCancel(bg)
		cancel()
		_, _, err = l.AllowUpTo(ctx, "k", 1)
		require.ErrorIs(t, err, context.Canceled)
	})
}

// With WithMaxWaiting only so many callers wait in line, and the next one hears it at once.
func TestMaxWaiting(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		l := open(t, testnet.Far(rtt/2), reservoir.PerMinute(10), opt, reservoir.WithMaxWaiting(3))
		var cold sync.WaitGroup
		for range 3 { // the first fetch is waited for in the same line
			cold.Go(func() { assert.NoError(t, take(l.Wait(bg, "cold"))) })
		}
		synctest.Wait()
		require.ErrorIs(t, take(l.Wait(bg, "cold")), reservoir.ErrMaxWaiting)
		require.NoError(t, take(l.Allow(bg, "cold")), "who does not wait does not count")
		cold.Wait()

		other := open(t, memstore.New(), reservoir.PerMinute(1000))
		g := reservoir.NewGroup(other, l)
		drain(t, l, "k", 1)
		ctx, leave := context.WithCancel(bg)
		ends := make(chan error, 10)
		for _, ctx := range []context.Context{bg, bg, ctx} {
			go func() { ends <- take(l.Wait(ctx, "k")) }()
		}
		synctest.Wait()
		begin := time.Now()
		require.ErrorIs(t, take(l.Wait(bg, "k")), reservoir.ErrMaxWaiting)
		require.ErrorIs(t, take(g.Wait(bg, "k", "k")), reservoir.ErrMaxWaiting)
		require.Zero(t, other.Stats().Spent-other.Stats().Refunded, "none of a group is charged")
		require.Zero(t, time.Since(begin))
		require.False(t, allow(t, l, "k", 1).Allowed)
		require.Zero(t, upTo(t, l, 5))
		require.NoError(t, take(l.Wait(bg, "another")), "each key has its line")

		leave() // room for the group
		require.ErrorIs(t, <-ends, context.Canceled)
		go func() { ends <- take(g.Wait(bg, "k", "k")) }()
		synctest.Wait()
		require.ErrorIs(t, take(l.Wait(bg, "k")), reservoir.ErrMaxWaiting)
		for range 3 {
			require.NoError(t, <-ends)
		}
		require.Greater(t, time.Since(begin), 50*time.Second, "they were served after the reset")
		require.NoError(t, take(l.Wait(bg, "k")))
	})

	_, err := reservoir.New(memstore.New(), reservoir.PerMinute(1), reservoir.WithMaxWaiting(-1))
	require.ErrorIs(t, err, reservoir.ErrOption)
	inBubbles(t, "no bound", map[string]reservoir.Option{"0": reservoir.WithMaxWaiting(0), "no line": reservoir.WithMaxKeys(0)}, func(t *testing.T, _ string, opt reservoir.Option) {
		l := open(t, testnet.Far(rtt/2), reservoir.PerMinute(10), reservoir.WithMaxWaiting(1), opt)
		drain(t, l, "k", 1)
		crowd(5, func(int) { assert.NoError(t, take(l.Wait(bg, "k"))) })
	})
}
