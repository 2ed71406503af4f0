package key

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/demand"
	"github.com/go-reservoir/reservoir/internal/denial"
	"github.com/go-reservoir/reservoir/internal/invariant"
	"github.com/go-reservoir/reservoir/internal/next"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is the Caller of keys under test: a store a millisecond away, which may be away.
type rig struct {
	env   Env
	shard *Shard
	part  string // the name of the shard
	store backend.Store
	limit backend.Limit
	away  atomic.Bool
	hears bool  // messages come
	lives int64 // of other processes' accounts
	sent  atomic.Int64

	writes func() // a statement is about to be written; may be nil
}

func newRig(limit backend.Limit) *rig {
	r := &rig{store: memstore.New(), limit: limit}
	r.env.Init(Settings{Limit: limit, Client: "p", Sizing: demand.Policy{Kind: demand.Adaptive, Min: 1}, Timeout: 100 * time.Millisecond, Fallback: Policy{Mode: FailClosed}, Parts: r}, r, 1<<20)
	r.shard = r.env.Shard("k")
	return r
}

func (r *rig) Shard(string) string {
	if r.writes != nil {
		r.writes()
	}
	return r.part
}

func (r *rig) Hears(string) bool { return r.hears }

func (r *rig) Limit(string) (backend.Limit, error) { return r.limit, nil }

func (r *rig) Call(_ context.Context, f *Fetch) error {
	r.sent.Add(1)
	trip := Trip{Sent: r.env.Clock.Now()}
	var err error
	var reply backend.Reply
	time.Sleep(time.Millisecond)
	if r.away.Load() {
		err = &backend.Error{Op: "sync", Err: errors.New("away")}
	}
	if err == nil {
		reply, err = r.store.Sync(context.Background(), f.Req)
	}
	trip.End = r.env.Clock.Now()
	f.Shard.ObserveLead(time.Duration(trip.End - f.Ordered))
	return f.End(trip, reply, err)
}

// other takes n tokens for another process.
func (r *rig) other(t *testing.T, n int64) {
	r.lives++
	_, err := r.store.Sync(t.Context(), backend.Statement{Key: "k", Client: fmt.Sprint("other.", r.lives), Life: 1, Seq: 1, Limit: r.limit, Want: n, Need: n, Hints: backend.Hints{Exact: true}})
	require.NoError(t, err)
}

// forget visits the key twice without a request in between.
func (r *rig) forget(k *Key) {
	k.Visit()
	k.Visit()
	time.Sleep(2 * time.Millisecond)
}

// ask makes a request at k.
func (r *rig) ask(t *testing.T, k *Key, n int64) Answer {
	v := k.Acquire(t.Context(), Ask{N: n})
	require.NoError(t, v.Err)
	return v.Answer
}

// withKey runs f in a bubble, with a key of 1,000 tokens a minute.
func withKey(t *testing.T, name string, f func(t *testing.T, r *rig, k *Key)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			limit := backend.Limit{Tokens: 1000, Window: time.Minute}
			r := newRig(limit)
			k := r.env.Make("k", limit)
			f(t, r, k)
			r.env.Closed.Store(true) // no more fetches
			k.Retire(false)
			<-r.env.Calls.Close()
		})
	})
}

// hourly is a limit in another counter than that of withKey.
var hourly = backend.Limit{Tokens: 1000, Window: time.Hour}

// TestRetiredStaysRetired: no event makes more of a key that is retired.
func TestRetiredStaysRetired(t *testing.T) {
	if invariant.Enabled {
		withKey(t, "", func(t *testing.T, r *rig, k *Key) {
			k.Retire(false)
			assert.Panics(t, func() { k.step(0, func(int64) effect { k.phase = active; return changed }) })
			k.phase = retired
		})
	}
}

// TestIdleDenial: an idle key is exhausted still, and when a caller comes, refuses others
// without the lock.
func TestIdleDenial(t *testing.T) {
	defer chance.Seed(1)() // the denial lasts longer than the test
	withKey(t, "", func(t *testing.T, r *rig, k *Key) {
		r.other(t, 1000)
		require.False(t, r.ask(t, k, 1).Allowed)
		synctest.Wait() // the event ends after its answer
		require.True(t, k.Lease.Load().Denies(1, r.env.Clock.Now()))
		r.away.Store(true)
		r.forget(k)
		figures, ok := k.Figures()
		require.True(t, ok && figures.Exhausted)
		require.False(t, k.Lease.Load().Denies(1, r.env.Clock.Now()), "the next caller must come by the lock")
		require.False(t, r.ask(t, k, 1).Allowed)
		assert.True(t, k.Lease.Load().Denies(1, r.env.Clock.Now()))
	})
}

// TestPeersOutlastTheReset: at the reset no other process has stated its account with the new window. How many share the key is
// known of the window before, until more come: it decides what each may leave idle.
func TestPeersOutlastTheReset(t *testing.T) {
	withKey(t, "", func(t *testing.T, r *rig, k *Key) {
		clients := func() uint16 {
			r.ask(t, k, 1)
			synctest.Wait()
			k.mu.Lock()
			defer k.mu.Unlock()
			return k.clients
		}
		for range 4 {
			r.other(t, 1)
		}
		require.EqualValues(t, 5, clients())
		time.Sleep(61 * time.Second)
		require.EqualValues(t, 5, clients())
		time.Sleep(61 * time.Second)
		require.EqualValues(t, 1, clients(), "they have not come back")
	})
}

// TestLeavers: a key that leaves its counter is in memory until the store has confirmed what it gave back, and counts until
// then. There is a most of them: one more is forgotten at once, and what it holds expires.
func TestLeavers(t *testing.T) {
	for _, full := range []bool{false, true} {
		withKey(t, fmt.Sprint("full=", full), func(t *testing.T, r *rig, k *Key) {
			r.ask(t, k, 10)
			r.ask(t, k, 1)
			synctest.Wait() // the event ends after its answer
			held := k.Lease.Load().Stock.Load()
			require.Positive(t, held)
			if full {
				for i := range mostLeavers {
					other := &node{Key: fmt.Sprint(i)}
					other.State.node = other
					other.State.Limit.Store(&r.limit)
					require.True(t, r.env.leavers.add(&other.State))
				}
			}
			r.away.Store(true)
			k.Relimit(hourly, Told, nil)
			require.Nil(t, r.env.Find("k"))
			figures, kept := k.Figures()
			require.Equal(t, !full, kept)
			if full {
				require.Equal(t, held, r.env.Counts.Expired.Load())
				return
			}
			require.True(t, figures.Parted)
			require.Equal(t, held, figures.Held+figures.Returning)
			time.Sleep(time.Second)
			r.away.Store(false)
			time.Sleep(2 * LongestPause)
			_, kept = k.Figures()
			require.False(t, kept)
			require.Equal(t, held, r.env.Counts.Returned.Load())
			require.Empty(t, r.env.leavers.keys)
		})
	}
}

// TestRefundAfterLeaving: what is refunded to a key that has said that it leaves goes back, though the statement that says so is lost.
func TestRefundAfterLeaving(t *testing.T) {
	for _, limit := range []backend.Limit{hourly, hourly.Rolling()} {
		t.Run(limit.Counter(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(limit)
				k := r.env.Make("k", limit)
				charge := chargeOf(r.ask(t, k, 5))
				r.other(t, 1) // a key that shares says that it leaves
				time.Sleep(time.Minute)
				r.ask(t, k, 50)
				k.Visit()
				k.Visit()
				time.Sleep(time.Millisecond / 2)
				k.Refund(charge, 5)
				time.Sleep(time.Millisecond)
				r.away.Store(true)
				time.Sleep(time.Second)
				require.NotNil(t, r.env.Find("k"))
				r.away.Store(false)
				time.Sleep(2 * LongestPause)
				require.Nil(t, r.env.Find("k"))
				require.EqualValues(t, 5, r.env.Counts.Refunded.Load())
				<-r.env.Calls.Close()
			})
		})
	}
}

// TestDebtAfterLeaving: a key that has said that it leaves its counter, and is settled above a charge then, says so at once, not when debt is due.
func TestDebtAfterLeaving(t *testing.T) {
	withKey(t, "", func(t *testing.T, r *rig, k *Key) {
		r.other(t, 1)
		r.ask(t, k, 5)
		k.Relimit(hourly, Told, nil)
		time.Sleep(time.Millisecond / 2)
		k.Overrun(5)
		time.Sleep(2 * time.Millisecond)
		s, err := r.store.Check(t.Context(), "k", r.limit)
		require.NoError(t, err)
		require.EqualValues(t, 1000-1-5-5, s.Remaining)
		_, kept := k.Figures()
		require.False(t, kept)
	})
}

// TestGiveBackWhileACallerSpends: what others want goes back, though a caller spends a part of it when that is about to be taken.
func TestGiveBackWhileACallerSpends(t *testing.T) {
	withKey(t, "", func(t *testing.T, r *rig, k *Key) {
		r.hears, r.env.Sizing = true, demand.Policy{Kind: demand.Fixed, Min: 20}
		r.ask(t, k, 1)
		synctest.Wait()
		w := k.Lease.Load()
		stock, spent := w.Stock.Load(), int64(0)
		require.Greater(t, stock, int64(2))
		r.writes = func() { // once
			r.writes, spent = nil, 1
			_, ok := w.Spend(1)
			assert.True(t, ok)
		}
		k.Hear(backend.Message{Kind: backend.Recall, Key: "k", Counter: r.limit.Counter(), Window: w.Window, Limit: 1000})
		time.Sleep(2 * time.Millisecond)
		require.EqualValues(t, 1, spent)
		require.Zero(t, w.Stock.Load())
		require.Equal(t, stock-1, r.env.Counts.Returned.Load())
	})
}

// TestComesForward: a key in the line of the rest goes before all of that line as soon as it has a caller
// who stays, and makes one call.
func TestComesForward(t *testing.T) { comesForward(t, false) }

// TestLineUp: nor does it stand twice in a line after it has come forward, when all keys line up anew.
func TestLineUp(t *testing.T) { comesForward(t, true) }

func comesForward(t *testing.T, anew bool) {
	withKey(t, "", func(t *testing.T, r *rig, k *Key) {
		r.env.Sizing = demand.Policy{Kind: demand.Fixed, Min: 20}
		other := r.env.Make("other", r.limit)
		for _, k := range []*Key{other, k} {
			require.True(t, k.Acquire(t.Context(), Ask{N: 1}).Answer.Allowed)
		}
		synctest.Wait()
		l := &r.shard.lane
		for l.Take(false) {
		}
		for l.Take(true) {
		}
		r.forget(other) // with stock, which goes back at its turn
		r.forget(k)
		inLine := func(k *Key) next.Class { k.mu.Lock(); defer k.mu.Unlock(); return k.inLine }
		require.Equal(t, next.Rest, inLine(other))
		require.Equal(t, next.Rest, inLine(k))
		served := make(chan Verdict, 1)
		go func() { served <- k.Acquire(t.Context(), Ask{N: 500, Stays: true}) }()
		synctest.Wait()
		require.Equal(t, next.Callers, inLine(k))
		require.Empty(t, served)
		if anew {
			for range 2 {
				r.shard.LineUp()
			}
			require.Equal(t, next.Callers, inLine(k))
			stood := l.Clear()
			require.Equal(t, []*Key{k, other}, stood)
			for _, k := range stood {
				l.Push(k, k != other)
			}
		}
		before := r.sent.Load()

		slot{r.shard, true}.release()
		require.True(t, (<-served).Answer.Allowed)
		synctest.Wait()
		require.Equal(t, next.Rest, inLine(other), "whose turn is later")
		require.Equal(t, before+1, r.sent.Load())
		for range rest {
			slot{r.shard, false}.release()
		}
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, before+2, r.sent.Load(), "the other one's; at its own later turn the key needs no call")
		require.Nil(t, r.env.Find("other"))
		require.EqualValues(t, 1, r.shard.keys.Load())
	})
}

// TestShardCountsItsKeys: a shard that no key is on is not looked for among all keys, and keys that have moved are looked up once.
func TestShardCountsItsKeys(t *testing.T) {
	withKey(t, "", func(t *testing.T, r *rig, k *Key) {
		const keys = 100
		old := r.shard
		for i := range keys {
			r.env.Make(fmt.Sprint(i), r.limit)
		}
		lookUps := 0
		r.writes = func() { lookUps++ }
		probe := func(s *Shard, found bool, most int) {
			t.Helper()
			lookUps = 0
			_, ok := s.SomeKey()
			require.Equal(t, found, ok)
			require.LessOrEqual(t, lookUps, most)
		}
		probe(old, true, 1)
		r.part = "new"
		r.shard = r.env.Shard("k")
		nobody := func(s *Shard) {
			t.Helper()
			probe(s, false, 0)
			require.Zero(t, testing.AllocsPerRun(10, func() { s.SomeKey() }), "for a list of all keys")
		}
		nobody(r.shard) // as far as is known
		probe(old, false, keys+1)
		require.Equal(t, keys+1, lookUps)
		nobody(old)
		probe(r.shard, true, 1)
		for k := range r.env.All {
			k.Retire(false)
		}
		nobody(r.shard)
		k.findShard()
		require.Zero(t, old.keys.Load()+r.shard.keys.Load())
	})
}

// TestPatience: callers in line wait for tokens that were called from a process that does not answer, for a 20th of the window, but for
// the timeout of a call at most.
func TestPatience(t *testing.T) {
	for _, row := range []struct{ window, timeout, want time.Duration }{
		{time.Minute, 100 * time.Millisecond, 100 * time.Millisecond},
		{time.Minute, time.Hour, 3 * time.Second},
		{2 * time.Second, 100 * time.Millisecond, 100 * time.Millisecond},
		{time.Second, 100 * time.Millisecond, 50 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			limit := backend.Limit{Tokens: 1000, Window: row.window}
			r := newRig(limit)
			r.env.Timeout, r.hears = row.timeout, true
			_, err := r.store.Sync(t.Context(), backend.Statement{Key: "k", Client: "dead.1", Life: 1, Seq: 1, Limit: limit, Want: 1000, Hints: backend.Hints{Exact: true}})
			require.NoError(t, err)
			k := r.env.Make("k", limit)
			begin := time.Now()
			require.False(t, r.ask(t, k, 1).Allowed, "all lies idle elsewhere")
			const trip = time.Millisecond // of the first reply in vain, and of the last
			assert.InDelta(t, row.want+2*trip, time.Since(begin), float64(trip), "%v, %v", row.window, row.timeout)
			r.env.Closed.Store(true)
			k.Retire(false)
			<-r.env.Calls.Close()
		})
	}
}

// TestDenialEndsWithMore: a reply that finds more in the store than there was at the denial ends it. One that finds as much does not.
func TestDenialEndsWithMore(t *testing.T) {
	for _, more := range []bool{false, true} {
		withKey(t, fmt.Sprint(more), func(t *testing.T, r *rig, k *Key) {
			other := backend.Statement{Key: "k", Client: "other", Life: 1, Seq: 1, Limit: r.limit, Want: 990, Need: 990, Hints: backend.Hints{Exact: true}}
			has, err := r.store.Sync(t.Context(), other)
			require.NoError(t, err)
			require.False(t, r.ask(t, k, 20).Allowed)
			is := func() denial.Denial {
				k.mu.Lock()
				defer k.mu.Unlock()
				return k.use.denial
			}
			require.Equal(t, denial.Denied, is().State)
			if more {
				other.Seq, other.Window, other.Mine, other.Want, other.Need, other.Change = 2, has.Window, 990, 0, 0, -500
				_, err = r.store.Sync(t.Context(), other)
				require.NoError(t, err)
			}
			time.Sleep(time.Duration(is().Until - r.env.Clock.Now()))
			before := r.sent.Load()
			require.False(t, r.ask(t, k, 20).Allowed, "it is refused from memory, and causes a probe")
			time.Sleep(2 * time.Millisecond)
			require.Equal(t, before+1, r.sent.Load())
			require.Equal(t, more, is().State == denial.Open)
			require.Equal(t, more, r.ask(t, k, 20).Allowed)
		})
	}
}

// TestRefusedCallerGivesNothingBack: nor does one whose context ends just when the failure policy refuses it.
func TestRefusedCallerGivesNothingBack(t *testing.T) {
	withKey(t, "", func(t *testing.T, r *rig, k *Key) {
		r.env.Fallback = Policy{Mode: FailLocal, Share: 0.01}
		r.away.Store(true)
		require.Equal(t, Fallback, r.ask(t, k, 10).Source)
		w, v := k.decide(t.Context(), Ask{N: 1}, true)
		require.Equal(t, wait, v.Next)
		<-w.Ready
		require.False(t, w.Outcome.Answer.Allowed)
		k.cancel(w)
		require.False(t, r.ask(t, k, 1).Allowed)
		require.Zero(t, r.env.Counts.Refunded.Load())
	})
}
