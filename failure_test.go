package reservoir

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

func always(f fault) func(string) fault { return func(string) fault { return f } }

// While the store is away and before the breaker opens, a caller without stock
// has the policy's answer within the fetch timeout; one with stock never notices.
func TestAnswerWithinTheFetchTimeout(t *testing.T) {
	for name, test := range map[string]struct {
		policy  Failure
		allowed bool
		fails   bool
	}{
		"closed": {policy: FailClosed, fails: true},
		"open":   {policy: FailOpen, allowed: true},
		"local":  {policy: FailLocal(0.1), allowed: true},
		"none":   {policy: FailLocal(0.001)}, // less than a token
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := overNetwork(memstore.New(), 0)
				l := open(t, net, PerMinute(100), WithBatch(Fixed(10)), WithFailure(test.policy))
				allow(t, l, "stocked", 1)
				net.set(always(hang))
				begin := time.Now()
				assert.Equal(t, Local, allow(t, l, "stocked", 1).Source)
				assert.Zero(t, time.Since(begin))
				r, err := l.Allow(context.Background(), "k")
				assert.Equal(t, l.fetchTimeout, time.Since(begin))
				assert.Equal(t, 1, net.happened(hang))
				if test.fails {
					var failure *StoreError
					require.ErrorAs(t, err, &failure)
					assert.EqualValues(t, 1, l.Stats().Failed)
					return
				}
				require.NoError(t, err)
				assert.Equal(t, test.allowed, r.Allowed)
				assert.Equal(t, Fallback, r.Source)
				assert.EqualValues(t, 1, l.Stats().Fallbacks)
				assert.Equal(t, !test.allowed, r.RetryAfter > 0)
				assert.WithinDuration(t, time.Now().Add(time.Minute), r.Reset, time.Millisecond)
			})
		})
	}
}

// outage makes the breaker open by failures on other keys.
func outage(t *testing.T, l *Limiter, net *network) {
	t.Helper()
	net.set(always(loseRequest))
	for i := range failuresToOpen {
		_, _ = l.Allow(context.Background(), fmt.Sprint("other", i))
	}
	require.True(t, l.shardOf("k").open.Load())
}

// An open breaker answers at once and calls the store for probes alone, ever
// more rarely; the first probe that succeeds closes it. Probes charge nothing.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		net := overNetwork(store, time.Millisecond)
		var mu sync.Mutex
		var told []ShardState
		l := open(t, net, PerMinute(100), WithHooks(Hooks{ShardState: func(s ShardState) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, s)
		}}))
		outage(t, l, net)
		calls := net.count("")
		for range 1000 {
			begin := time.Now()
			_, err := l.Allow(context.Background(), "k")
			assert.ErrorIs(t, err, errAway)
			assert.Error(t, l.Wait(context.Background(), "k"))
			assert.Zero(t, time.Since(begin))
			time.Sleep(10 * time.Millisecond)
		}
		probes := net.count("") - calls
		assert.LessOrEqual(t, probes, 30, "in 10 s")
		assert.GreaterOrEqual(t, probes, 8)
		assert.Equal(t, failuresToOpen+probes, net.happened(loseRequest))
		net.set(nil)
		for l.shardOf("k").open.Load() {
			_, _ = l.Allow(context.Background(), "k")
			time.Sleep(10 * time.Millisecond)
		}
		assert.Zero(t, used(t, store, "k"), "a probe charges nothing")
		assert.True(t, allow(t, l, "k", 1).Allowed)
		require.Len(t, told, 2)
		assert.True(t, told[0].Away)
		assert.Error(t, told[0].Err)
		assert.Equal(t, ShardState{}, told[1])
	})
}

// However many calls a short outage has cut, the first probe is soon.
func TestBreakerAfterACrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), time.Millisecond)
		l := open(t, net, PerMinute(100))
		net.set(always(hang))
		var crowd sync.WaitGroup
		for i := range 50 {
			crowd.Go(func() {
				_, err := l.Allow(context.Background(), fmt.Sprint(i))
				assert.Error(t, err)
			})
		}
		crowd.Wait()
		synctest.Wait()
		require.Equal(t, 50, net.happened(hang))
		require.True(t, l.shardOf("k").open.Load())
		net.set(nil)
		begin := time.Now()
		for l.shardOf("k").open.Load() {
			_, _ = l.Allow(context.Background(), "k")
			time.Sleep(time.Millisecond)
		}
		assert.LessOrEqual(t, time.Since(begin), shortestPause+5*time.Millisecond)
	})
}

// A probe is made, and its outcome noted, also for a key that has lost its limit
// meanwhile: else that shard would be away for ever.
func TestProbeOfAKeyWithoutLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), time.Millisecond)
		var lost atomic.Bool
		l := open(t, net, PerMinute(100), WithBatch(Fixed(1)), WithLimits(func(string) Limit {
			if lost.Load() {
				return Limit{}
			}
			return PerMinute(100)
		}))
		allow(t, l, "k", 1)
		outage(t, l, net)
		net.set(nil)
		lost.Store(true)
		time.Sleep(longestPause) // a probe is due
		_, err := l.Allow(context.Background(), "k")
		assert.ErrorIs(t, err, errAway)
		time.Sleep(longestPause)
		assert.False(t, l.shardOf("k").open.Load())
		_, err = l.Allow(context.Background(), "k")
		assert.ErrorIs(t, err, ErrLimit)
		lost.Store(false)
		assert.True(t, allow(t, l, "k", 1).Allowed)
	})
}

// A shard that is away keeps nobody of another's waiting.
func TestBreakerIsPerShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sharded{overNetwork(memstore.New(), 0)}
		l := open(t, net, PerMinute(100))
		net.set(always(hang))
		for i := range failuresToOpen {
			_, err := l.Allow(context.Background(), fmt.Sprint("sick:", i))
			assert.Error(t, err)
		}
		synctest.Wait()
		net.set(nil)
		_, err := l.Allow(context.Background(), "sick:9")
		assert.ErrorIs(t, err, errAway)
		assert.True(t, allow(t, l, "well:9", 1).Allowed)
	})
}

// sharded is a store whose shards are named by what comes before the colon.
type sharded struct{ *network }

func (sharded) Shard(key string) string { name, _, _ := strings.Cut(key, ":"); return name }

// What the store answers with is no silence: the breaker stays closed.
func TestRejectionsOpenNoBreaker(t *testing.T) {
	var b breaker
	for range 100 {
		b.note("", 0, 0, &StoreError{Class: backend.Rejected})
	}
	for range failuresToOpen - 1 {
		b.note("", 0, 0, &StoreError{Class: backend.Unknown})
	}
	b.note("", 0, 0, nil) // a success in between: counting begins anew
	b.note("", 0, 0, &StoreError{Class: backend.Unknown})
	assert.False(t, b.open.Load())
}

// A hook hears of changes in the order in which they happened, one at a time,
// whoever made them, and may itself use the limiter.
func TestShardStatesComeInOrder(t *testing.T) {
	var b breaker
	var told []bool
	hook := func(s ShardState) {
		told = append(told, s.Away) // the race detector sees to "one at a time"
		b.tell(func(ShardState) { t.Error("told twice") })
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 300 {
				for range failuresToOpen {
					b.note("", 0, 0, &StoreError{Class: backend.Unknown})
				}
				b.tell(hook)
				b.note("", 0, 0, nil)
				b.tell(hook)
			}
		})
	}
	wg.Wait()
	assert.NotEmpty(t, told)
	for i, away := range told {
		require.Equal(t, i%2 == 0, away, i)
	}
}

// FailLocal admits its share and not a token more, whether the breaker is open
// yet or not, and what it admitted is charged when the store is back: in the
// window that was known before, or else in the one that opens then.
func TestLocalShareIsChargedLater(t *testing.T) {
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("known=%t", known), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				net := overNetwork(store, time.Millisecond)
				l := open(t, net, PerMinute(100), WithBatch(Fixed(10)), WithFailure(FailLocal(0.2)))
				spent := int64(0)
				if known {
					for range 10 {
						assert.True(t, allow(t, l, "k", 1).Allowed)
					}
					spent = 10
				}
				net.set(always(loseRequest))
				admitted := int64(0)
				for range 50 {
					r := allow(t, l, "k", 1)
					assert.Equal(t, Fallback, r.Source)
					if r.Allowed {
						admitted++
					}
				}
				assert.EqualValues(t, 20, admitted)
				assert.True(t, l.shardOf("k").open.Load())
				assert.EqualValues(t, 20, l.Stats().Owed)
				assert.Error(t, l.Wait(context.Background(), "k"), "a refusal to wait for")
				net.set(nil)
				time.Sleep(2 * longestPause)
				for allow(t, l, "k", 1).Source == Fallback {
					time.Sleep(100 * time.Millisecond)
				}
				spent++
				synctest.Wait()
				time.Sleep(100 * time.Millisecond)
				s := l.Stats()
				assert.Zero(t, s.Owed)
				assert.Zero(t, s.Reasserted, "it was not forgotten by the store")
				assert.Equal(t, spent+20, s.Spent)
				assert.Equal(t, s.Spent+s.Held, used(t, store, "k"))
				for allow(t, l, "k", 1).Allowed {
					spent++
				}
				assert.EqualValues(t, 100, spent+20, "the limit counts what was admitted without the store")
			})
		})
	}
}

// In direct mode there are no fetches to state it; it is charged all the same.
func TestDirectModeChargesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		net := overNetwork(store, time.Millisecond)
		l := open(t, net, PerMinute(100), WithDirect(), WithFailure(FailOpen))
		net.set(always(loseRequest))
		for range 30 {
			assert.Equal(t, Fallback, allow(t, l, "k", 1).Source)
		}
		net.set(nil)
		for allow(t, l, "k", 1).Source == Fallback {
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond)
		s := l.Stats()
		assert.Zero(t, s.Owed)
		assert.Greater(t, s.Spent, int64(30))
		assert.Equal(t, s.Spent, used(t, store, "k"))
	})
}

// A fallback that is refunded is not charged.
func TestFallbackRefund(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), time.Millisecond)
		l := open(t, net, PerMinute(100), WithFailure(FailLocal(0.01)))
		outage(t, l, net)
		owed := l.Stats().Owed
		r := allow(t, l, "k", 1)
		assert.True(t, r.Allowed)
		assert.Equal(t, owed+1, l.Stats().Owed)
		assert.False(t, allow(t, l, "k", 1).Allowed)
		require.NoError(t, l.Refund(context.Background(), "k", r))
		assert.Equal(t, owed, l.Stats().Owed)
		assert.True(t, allow(t, l, "k", 1).Allowed)
	})
}

// A new local window opens when the old one is over.
func TestLocalShareIsPerWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), time.Millisecond)
		l := open(t, net, PerMinute(100), WithFailure(FailLocal(0.01)))
		net.set(always(loseRequest))
		first := allow(t, l, "k", 1)
		assert.True(t, first.Allowed)
		refused := allow(t, l, "k", 1)
		assert.False(t, refused.Allowed)
		assert.Equal(t, first.Reset, refused.Reset, "the reset does not wobble")
		time.Sleep(refused.RetryAfter)
		assert.True(t, allow(t, l, "k", 1).Allowed)
		assert.EqualValues(t, 1, l.Stats().Owed, "of this window")
	})
}

// Close tells the store what it is owed.
func TestCloseChargesWhatIsOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		net := overNetwork(store, time.Millisecond)
		l := open(t, net, PerMinute(100), WithBatch(Fixed(10)), WithFailure(FailOpen))
		for range 10 {
			allow(t, l, "k", 1)
		}
		net.set(always(loseRequest))
		for range 7 {
			assert.Equal(t, Fallback, allow(t, l, "k", 1).Source)
		}
		net.set(nil)
		require.NoError(t, l.Close(context.Background()))
		assert.EqualValues(t, 17, used(t, store, "k"))
	})
}

// Past WithMaxKeys there is no memory of a key, so FailLocal is FailClosed; an
// open breaker is probed for such keys too.
func TestFailureWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, policy := range []Failure{FailLocal(0.5), FailOpen} {
			store := memstore.New()
			net := overNetwork(store, time.Millisecond)
			l := open(t, net, PerMinute(100), WithMaxKeys(0), WithFailure(policy))
			net.set(always(loseRequest))
			for range 100 {
				r, err := l.Allow(context.Background(), "k")
				assert.Equal(t, policy == FailOpen, err == nil)
				assert.Equal(t, policy == FailOpen, r.Allowed)
			}
			assert.Less(t, net.count(""), 10)
			net.set(nil)
			for l.shardOf("k").open.Load() {
				time.Sleep(time.Second)
				_, _ = l.Allow(context.Background(), "k")
				time.Sleep(time.Second)
			}
			assert.Zero(t, used(t, store, "k"))
			assert.Equal(t, Direct, allow(t, l, "k", 1).Source)
		}
	})
}

func TestBadFailurePolicies(t *testing.T) {
	for _, f := range []Failure{{}, FailLocal(-0.1), FailLocal(1.1)} {
		_, err := New(memstore.New(), PerMinute(1), WithFailure(f))
		assert.ErrorIs(t, err, ErrOption)
	}
}

// FailOpen admits more than can be counted, and still counts as far as there are
// numbers; the store takes it.
func TestFailOpenBeyondNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		most := Limit{Tokens: backend.MaxTokens, Window: time.Hour}
		net := overNetwork(memstore.New(), time.Millisecond)
		l := open(t, net, most, WithFailure(FailOpen))
		outage(t, l, net)
		for range 3000 {
			require.True(t, allow(t, l, "k", backend.MaxTokens).Allowed)
		}
		net.set(nil)
		for range 3 {
			allow(t, l, "k", 1)
			time.Sleep(longestPause)
		}
		assert.Zero(t, l.table.get("k").standing().owed)
		calls := net.count("")
		time.Sleep(time.Minute)
		assert.Equal(t, calls, net.count(""), "told once")
	})
}

// Who refunds again and again what the policy admitted gains nothing by it.
func TestFallbackRefundedTwice(t *testing.T) {
	for name, policy := range map[string]Failure{"open": FailOpen, "local": FailLocal(0.1)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := overNetwork(memstore.New(), time.Millisecond)
				l := open(t, net, PerMinute(100), WithBatch(Fixed(1)), WithFailure(policy))
				allow(t, l, "k", 1)
				outage(t, l, net)
				allow(t, l, "k", 5)
				time.Sleep(longestPause)
				allow(t, l, "k", 1) // and a probe, which states it
				time.Sleep(time.Minute)
				r := allow(t, l, "k", 1)
				require.Equal(t, Fallback, r.Source)
				time.Sleep(time.Second) // for the probe
				for range 2 {
					require.NoError(t, l.Refund(context.Background(), "k", r))
				}
				assert.Equal(t, policy == FailOpen, allow(t, l, "k", 11).Allowed)
				assert.True(t, allow(t, l, "k", 10).Allowed)
			})
		})
	}
}
