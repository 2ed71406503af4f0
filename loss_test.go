package reservoir_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// What stays charged, though nobody has used it, after a loss: of the store's data, or of a process.

// After a loss of data, some processes give back and some use more, in any order. When all have spoken, exactly what is used is charged.
func TestChargesAfterDataLoss(t *testing.T) {
	for processes := 2; processes <= 5; processes++ {
		inBubbles(t, fmt.Sprint(processes), everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
			for seed := range uint64(10) {
				rnd := rand.New(rand.NewPCG(seed, uint64(processes)))
				net := testnet.Far(time.Millisecond)
				all := fleet(t, processes, net, reservoir.PerHour(1000), opt)
				paid := make([]reservoir.Result, processes)
				for i, l := range all {
					paid[i] = allow(t, l, "k", 10+rnd.Int64N(10))
					require.True(t, paid[i].Allowed)
					time.Sleep(time.Second)
				}
				before := used(t, net, "k")
				net.LoseData()
				require.Zero(t, used(t, net, "k"))
				for _, i := range rnd.Perm(processes) {
					switch l := all[i]; rnd.IntN(4) {
					case 0:
						require.NoError(t, l.Refund(bg, paid[i]))
					case 1:
						require.NoError(t, l.Settle(bg, paid[i], 5))
						allow(t, l, "k", 3)
					case 2:
						allow(t, l, "k", 100) // more than any holds
					case 3:
						require.NoError(t, l.Settle(bg, paid[i], 120))
					}
					time.Sleep(time.Duration(rnd.IntN(2000)) * time.Millisecond)
				}
				time.Sleep(10 * time.Minute)
				var spent int64
				for _, i := range rnd.Perm(processes) {
					require.NoError(t, all[i].Close(bg))
					s := all[i].Stats()
					spent += s.Spent - s.Refunded
				}
				require.Equal(t, spent, used(t, net, "k"), "seed %d: %d before", seed, before)
			}
		})
	}
}

// A process that is killed takes with it what it holds idle, until the window ends. At rest that is at most a tenth of the
// limit, or three usual requests.
func TestWhatAKilledProcessHolds(t *testing.T) {
	at := []struct {
		name  string
		pause func(rnd *rand.Rand) time.Duration
	}{
		{"at once", func(*rand.Rand) time.Duration { return 0 }},
		{"10 ms", func(*rand.Rand) time.Duration { return 10 * time.Millisecond }},
		{"100 ms", func(*rand.Rand) time.Duration { return 100 * time.Millisecond }},
		{"500 ms", func(*rand.Rand) time.Duration { return 500 * time.Millisecond }},
		{"random", func(rnd *rand.Rand) time.Duration {
			return time.Duration(rnd.ExpFloat64() * float64(300*time.Millisecond))
		}},
		{"bursts of 5", func(rnd *rand.Rand) time.Duration {
			if rnd.IntN(5) > 0 {
				return 0
			}
			return time.Duration(rnd.ExpFloat64() * float64(2*time.Second))
		}},
	}
	for _, c := range []struct {
		limit    reservoir.Limit
		requests int
		size     int64
	}{
		{reservoir.PerMinute(60), 20, 1}, {reservoir.PerMinute(1000), 50, 1}, {reservoir.PerMinute(1000), 50, 10}, {reservoir.PerHour(1000), 50, 1},
		{reservoir.PerMinute(60_000), 50, 1}, {reservoir.PerDay(100_000, nil), 50, 1},
	} {
		for _, when := range at {
			inBubble(t, fmt.Sprintf("%d per %v/%d requests for %d/%s", c.limit.Tokens, c.limit.Window, c.requests, c.size, when.name), func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(1, 1))
				net := testnet.Far(time.Millisecond)
				l := open(t, net, c.limit)
				for range c.requests {
					require.True(t, allow(t, l, "k", c.size).Allowed)
					time.Sleep(when.pause(rnd))
				}
				spent := int64(c.requests) * c.size
				busy := used(t, net, "k") - spent
				time.Sleep(10 * time.Second)
				rest := used(t, net, "k") - spent
				net.Always(testnet.LoseRequest) // it is dead
				bound := max(c.limit.Tokens/10, 3*c.size)
				t.Logf("used %3d, idle %4d at once, %4d at rest, bound %5d", spent, busy, rest, bound)
				require.GreaterOrEqual(t, busy, int64(0))
				require.LessOrEqual(t, rest, bound)
			})
		}
	}
}
