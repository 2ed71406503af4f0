package fleet

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

const apart = time.Millisecond // one way to the store

// scene is what came of a limit: the tokens spent at the first refusal or, in a storm, at
// its end; and those spent in all while demand went on.
type scene struct{ first, admitted int64 }

func (s scene) String() string { return fmt.Sprintf("%d, then %d", s.first, s.admitted) }

// playScenes prints what came of each scene, if print is true. It fails if a refusal is not
// true: a token was left.
func playScenes(t *testing.T, print bool) {
	say := func(format string, a ...any) {
		if print {
			fmt.Printf(format, a...)
		}
	}
	say("Spent at the first refusal, then in all, by one client after others, with pauses of 0, 1 ms, 100 ms between these:\n")
	for _, v := range []struct {
		processes, each int
		tokens          int64
	}{{4, 8, 60}, {20, 10, 300}} {
		say("  %d at each of %d processes, then one at the last, limit %d a minute:", v.each, v.processes-1, v.tokens)
		for _, pause := range []time.Duration{0, time.Millisecond, 100 * time.Millisecond} {
			s := visit(t, v.processes, v.each, v.tokens, pause)
			assert.Equal(t, scene{v.tokens, v.tokens}, s, "%d processes, pause %v", v.processes, pause)
			say("  %v", s)
		}
		say("\n")
	}
	say("The same with WithDirect beside 19 that batch: requests that come every 10 ms at random processes, one in two at that one:")
	for _, tokens := range []int64{60, 300, 1000} {
		var first float64
		for i := range 10 {
			s := besideBatches(t, tokens, *seed+uint64(i))
			assert.Equal(t, tokens, s.admitted, "limit %d", tokens)
			first += sim.Ratio(s.first, tokens) / 10
		}
		assert.GreaterOrEqual(t, first, 0.995, "limit %d", tokens)
		say("  %d: %.1f %%", tokens, 100*first)
	}
	say("\n")
	say("Admitted of a storm of 720 on a cold key of 100 an hour at 3 processes, then with those of the next second, five times:\n")
	for _, also := range [][]int64{nil, {100}, {150}, {10_000}} {
		say("  in a group with limits of %v:", also)
		for range 5 {
			s := storm(t, also...)
			assert.Equal(t, scene{100, 100}, s, "also %v", also)
			say("  %v", s)
		}
		say("\n")
	}
}

// visit has each process but the last get some requests at once, and then one client at the
// last, which asks every 50 ms for 20 s.
func visit(t *testing.T, processes, each int, tokens int64, pause time.Duration) scene {
	t.Helper()
	var requests []request
	at := time.Duration(0)
	ask := func(process int, after time.Duration) {
		at = lane(process).next(at+after+1, asking)
		requests = append(requests, request{at: at, process: process, tokens: 1, used: -1})
	}
	for i := range processes - 1 {
		for range each {
			ask(i, 0)
		}
		at += pause
	}
	for range 400 {
		ask(processes-1, 50*time.Millisecond)
	}
	e := everyday{processes: processes, limit: tokens, window: time.Minute, away: apart}
	g := game{everyday: e, policy: theDefault, seed: *seed}
	s := scene{first: -1}
	s.admitted = truth(g.play(t, requests).answers, math.MaxInt64, func(_ answer, spent int64) {
		if s.first < 0 {
			s.first = spent
		}
	})
	return s
}

// besideBatches has one process make direct calls, and 19 batch. Half as many requests more
// come than the limit has tokens.
func besideBatches(t *testing.T, tokens int64, seed uint64) (s scene) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		net, r := testnet.Far(apart), random(seed, 3)
		var all []*reservoir.Limiter
		for i := range 20 {
			option := byDefault
			if i == 0 {
				option = reservoir.WithDirect()
			}
			l, err := reservoir.New(net.Port(i, 0), reservoir.Limit{Tokens: tokens, Window: time.Minute}, option)
			require.NoError(t, err)
			t.Cleanup(func() { _ = l.Close(context.Background()) })
			all = append(all, l)
		}
		s.first = -1
		for range tokens * 3 / 2 {
			time.Sleep(10 * time.Millisecond)
			l := all[0]
			if r.IntN(2) > 0 {
				l = all[1+r.IntN(19)]
			}
			switch got, err := l.Allow(context.Background(), "shared"); {
			case err != nil:
				require.NoError(t, err)
			case got.Allowed:
				s.admitted++
			case s.first < 0:
				s.first = s.admitted
			}
		}
	})
	return s
}

// storm has 720 requests come at once to groups at three processes, and 99 more within the
// next second. The groups have a limit of 100 an hour, and others as large as also says. No
// process knows a window yet.
func storm(t *testing.T, also ...int64) (s scene) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		net, groups := testnet.Far(apart), []*reservoir.Group(nil)
		var keys []string
		for i := range 3 {
			var limiters []*reservoir.Limiter
			keys = nil
			for j, tokens := range append([]int64{100}, also...) {
				keys = append(keys, fmt.Sprint("key-", j))
				l, err := reservoir.New(net.Port(i, 0), reservoir.Limit{Tokens: tokens, Window: time.Hour})
				require.NoError(t, err)
				t.Cleanup(func() { _ = l.Close(context.Background()) })
				limiters = append(limiters, l)
			}
			groups = append(groups, reservoir.NewGroup(limiters...))
		}
		var admitted atomic.Int64
		ask := func(each int) {
			var asking sync.WaitGroup
			for _, g := range groups {
				for range each {
					asking.Go(func() {
						if r, err := g.Allow(context.Background(), keys...); err == nil && r.Allowed {
							admitted.Add(1)
						}
					})
				}
			}
			asking.Wait()
		}
		ask(240)
		s.first = admitted.Load()
		for range 11 {
			time.Sleep(90 * time.Millisecond)
			ask(3)
		}
		s.admitted = admitted.Load()
	})
	return s
}
