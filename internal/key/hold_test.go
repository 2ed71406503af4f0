package key

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

// onKey runs f on a key of 1,000 tokens a minute.
func onKey(t *testing.T, name string, f func(t *testing.T, r *rig, k *Key)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(backend.Limit{Tokens: 1000, Window: time.Minute})
			r.hears = true
			k := r.env.Make("k", r.limit)
			f(t, r, k)
			r.env.Closed.Store(true)
			k.Retire(false)
			<-r.env.Calls.Close()
		})
	})
}

// TestHoldThatIsNotHeard: a hold of which the store cannot be told ends as others do. Nobody waits for longer, and the key is forgotten.
func TestHoldThatIsNotHeard(t *testing.T) {
	onKey(t, "away", func(t *testing.T, r *rig, k *Key) {
		r.away.Store(true)
		_, err := k.Hold(t.Context(), 100*time.Millisecond)
		require.Error(t, err)
		time.Sleep(5 * time.Second)
		r.away.Store(false)
		for range 20 {
			k.Visit()
			time.Sleep(10 * time.Minute)
		}
		assert.Nil(t, r.env.Find("k"))
	})
	backsOff := func(t *testing.T, r *rig, k *Key, least time.Duration) {
		r.away.Store(true)
		for range 12 {
			k.Acquire(t.Context(), Ask{N: 900})
		}
		r.away.Store(false)
		require.Greater(t, time.Duration(k.use.backoff-r.env.Clock.Now()), least)
	}
	onKey(t, "shorter than a back-off", func(t *testing.T, r *rig, k *Key) {
		backsOff(t, r, k, 20*time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		begin := time.Now()
		_, err := k.Hold(ctx, 10*time.Millisecond)
		require.ErrorIs(t, err, errHoldOver)
		require.Less(t, time.Since(begin), 20*time.Millisecond)
	})
	onKey(t, "a Reset during a back-off", func(t *testing.T, r *rig, k *Key) {
		r.ask(t, k, 1)
		w := k.Lease.Load().Window
		backsOff(t, r, k, 20*time.Millisecond)
		time.AfterFunc(10*time.Millisecond, func() { k.Hear(backend.Message{Kind: backend.Voided, Counter: r.limit.Counter(), Window: w}) })
		begin := time.Now()
		_, err := k.Hold(t.Context(), 10*time.Minute)
		require.NoError(t, err)
		require.Less(t, time.Since(begin), 20*time.Millisecond)
	})
}

// TestLongerHoldIsSaid: also if it is longer by less than clocks may differ in speed.
func TestLongerHoldIsSaid(t *testing.T) {
	onKey(t, "", func(t *testing.T, r *rig, k *Key) {
		_, err := k.Hold(t.Context(), time.Hour)
		require.NoError(t, err)
		for _, more := range []time.Duration{time.Millisecond, time.Second} {
			time.Sleep(time.Second)
			_, err = k.Hold(t.Context(), time.Hour+more)
			require.NoError(t, err)
			s, err := r.store.Check(t.Context(), "k", r.limit)
			require.NoError(t, err)
			require.InDelta(t, time.Hour+more, s.Held, float64(20*time.Millisecond))
		}
		sent := r.sent.Load()
		_, err = k.Hold(t.Context(), time.Minute)
		require.NoError(t, err)
		require.Equal(t, sent, r.sent.Load(), "the store holds longer already")
	})
}

// TestLineKeepsItsPlace: while callers in line wait for tokens that others return, nobody passes them from what is at hand.
func TestLineKeepsItsPlace(t *testing.T) {
	onKey(t, "", func(t *testing.T, r *rig, k *Key) {
		_, err := r.store.Sync(t.Context(), backend.Statement{
			Key: "k", Client: "dead.1", Life: 1, Seq: 1, Limit: r.limit, Want: 990, Hints: backend.Hints{Exact: true},
		})
		require.NoError(t, err)
		a := r.ask(t, k, 9)
		require.True(t, a.Allowed)
		k.Refund(chargeOf(a), 9)
		done := make(chan Verdict, 1)
		go func() { done <- k.Acquire(t.Context(), Ask{N: 500}) }()
		waited := 0
		for len(done) == 0 {
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			if len(done) == 0 {
				_, ok := k.Lease.Load().Spend(1)
				require.False(t, ok, "a newcomer has passed")
				waited++
			}
		}
		require.False(t, (<-done).Answer.Allowed)
		require.Greater(t, waited, 5)
		require.True(t, r.ask(t, k, 1).Allowed, "then others get it")
	})
}
