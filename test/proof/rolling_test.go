package proof

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// interval is when an admission began and ended, by the one clock of all processes and the store.
type interval struct{ from, to time.Time }

// TestRollingNeverOver drives limiters of one key at random over a network that loses, delays and
// repeats calls, while the store's clock steps back and processes end. Whatever happens, no
// interval of a window has more than the limit. A request counts in it if it began and ended in it. Refunded
// requests do not count.
func TestRollingNeverOver(t *testing.T) {
	runs := 60
	if testing.Short() {
		runs = 20
	}
	worst := []testnet.Fault{testnet.LoseRequest, testnet.LoseReply, testnet.Hang, testnet.ArriveLate, testnet.Repeat, testnet.Refuse}
	var over, reached, faults, stepped int
	for seed := range uint64(runs) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 28))
			window := []time.Duration{time.Second, 5 * time.Second, time.Minute}[r.IntN(3)]
			limit := reservoir.Limit{Tokens: []int64{5, 30, 60, 300, 2000}[r.IntN(5)], Window: window}.Rolling()
			processes := 1 + r.IntN(8)
			net := testnet.Far(time.Duration(1+r.IntN(20)) * time.Millisecond)
			var mu sync.Mutex
			draw := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return r.IntN(n)
			}
			bad := []int{0, 10, 30}[r.IntN(3)]
			net.Faults(func(c *testnet.Call) testnet.Fault {
				if f := worst[draw(len(worst))]; draw(100) < bad && !(f == testnet.Repeat && c.Op == "settle") { // which is sent once
					return f
				}
				return testnet.Fine
			})
			ctx, stop := context.WithTimeout(t.Context(), 5*window)
			defer stop()
			var admitted []interval
			var all sync.WaitGroup
			for who := range processes {
				all.Go(func() {
					opts := []reservoir.Option{reservoir.WithIdle(window)}
					if draw(4) == 0 {
						opts = append(opts, reservoir.WithDirect())
					}
					l, err := reservoir.New(net.Port(who, 0), limit, opts...)
					if !assert.NoError(t, err) {
						return
					}
					defer func() { _ = l.Close(context.Background()) }()
					mean := float64(window) / float64(limit.Tokens) * float64(processes) / []float64{0.5, 1.5, 5}[draw(3)]
					for ctx.Err() == nil {
						n := int64(1)
						if draw(10) == 0 {
							n = 1 + int64(draw(int(min(limit.Tokens, 9))))
						}
						began := time.Now()
						got, err := l.AllowN(ctx, "k", n)
						switch {
						case err != nil || !got.Allowed:
						case draw(10) == 0:
							_ = l.Refund(ctx, got)
						default:
							mu.Lock()
							for range n {
								admitted = append(admitted, interval{began, time.Now()})
							}
							mu.Unlock()
						}
						mu.Lock()
						pause := time.Duration(r.ExpFloat64() * mean)
						mu.Unlock()
						if draw(200) == 0 {
							pause = window * time.Duration(draw(15)) / 10
						}
						time.Sleep(pause)
					}
				})
			}
			if seed%3 == 0 {
				time.Sleep(window * 7 / 3)
				net.Skew(-window * time.Duration(1+draw(30)) / 10)
				stepped++
			}
			all.Wait()
			most := mostIn(admitted, window)
			if most > int(limit.Tokens) {
				over++
				t.Errorf("seed %d: %d of %d in a window of %v, %d processes, %d %% faults", seed, most, limit.Tokens, window, processes, bad)
			}
			if most == int(limit.Tokens) {
				reached++
			}
			for _, f := range worst {
				faults += net.Happened(f)
			}
		})
	}
	t.Logf("%d runs: %d over, %d reached the limit, %d faults, %d clocks stepped back", runs, over, reached, faults, stepped)
	assert.Greater(t, reached, runs/4)
	assert.NotZero(t, faults)
	assert.NotZero(t, stepped)
}

// mostIn is how many of the admissions began and ended within less than a window, at the most.
func mostIn(all []interval, window time.Duration) (most int) {
	slices.SortFunc(all, func(a, b interval) int { return a.to.Compare(b.to) })
	for i, first := range all { // the interval begins with the beginning of one of them
		n := 0
		for _, a := range all[i:] {
			if a.to.Sub(first.from) >= window {
				break
			}
			if !a.from.Before(first.from) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}
