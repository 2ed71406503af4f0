package rollout_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/rollout"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// limit1000 is 1000 tokens a minute.
var limit1000 = backend.Limit{Tokens: 1000, Window: time.Minute}

// skewed is a store whose clock differs from ours, and which is late with takes.
type skewed struct {
	*memstore.Store
	ahead, late time.Duration
}

func (k *skewed) on(ctx context.Context) context.Context {
	return storeclock.With(ctx, time.Now().Add(k.ahead))
}

func (k *skewed) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	return k.Store.Sync(k.on(ctx), r)
}

func (k *skewed) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	time.Sleep(k.late)
	return k.Store.Take(k.on(ctx), r)
}

func (k *skewed) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	return k.Store.Check(k.on(ctx), key, l)
}

// desk is a roll-out of which all keys are in both stores, in a bubble of time.
type desk struct {
	t        *testing.T
	old, new *skewed
	both     *rollout.Store
	account  backend.SyncRequest // of client c
}

func atDesk(t *testing.T, f func(t *testing.T, d *desk)) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{t: t, old: &skewed{Store: memstore.New()}, new: &skewed{Store: memstore.New()}}
		d.both = open(t, d.old, d.new, 0, 100)
		d.account = backend.SyncRequest{Key: "k", Client: "c", Limit: limit1000, Strand: -1}
		f(t, d)
	})
}

func (d *desk) take(s backend.Store, l backend.Limit, n int64) backend.TakeReply {
	d.t.Helper()
	r, err := s.Take(d.t.Context(), backend.TakeRequest{Key: "k", Limit: l, Tokens: n})
	require.NoError(d.t, err)
	return r
}

// sync asks for n tokens and keeps the account, as a limiter does.
func (d *desk) sync(n int64) backend.SyncReply {
	d.t.Helper()
	d.account.Want, d.account.Need = n, n
	r, err := d.both.Sync(d.t.Context(), d.account)
	require.NoError(d.t, err)
	d.account.Window, d.account.Granted, d.account.Returned = r.Window, r.Granted, r.Returned
	return r
}

// used is what the stores have charged, each in the window it has open.
func (d *desk) used(l backend.Limit) (old, new int64) {
	d.t.Helper()
	a, err := d.old.Check(d.t.Context(), "k", l)
	require.NoError(d.t, err)
	b, err := d.new.Check(d.t.Context(), "k", l)
	require.NoError(d.t, err)
	return l.Tokens - a.Remaining, l.Tokens - b.Remaining
}

func (d *desk) requireUsed(l backend.Limit, old, new int64) {
	d.t.Helper()
	a, b := d.used(l)
	require.Equal(d.t, [2]int64{old, new}, [2]int64{a, b})
}

func TestTakeChargesBothOrNone(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		require.True(t, d.take(d.both, limit10, 3).Allowed)
		d.requireUsed(limit10, 3, 3)
		d.take(d.new, limit10, 5)
		r := d.take(d.both, limit10, 3)
		require.False(t, r.Allowed)
		require.EqualValues(t, 2, r.Remaining, "as the one says that refused")
		d.requireUsed(limit10, 3, 8)
		d.take(d.old, limit10, 7)
		require.False(t, d.take(d.both, limit10, 1).Allowed)
		d.requireUsed(limit10, 10, 8)
		s, err := d.both.Check(t.Context(), "k", limit10)
		require.NoError(t, err)
		require.Zero(t, s.Remaining)
	})
}

func TestGiveBackIsToldToBoth(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		d.take(d.old, limit1000, 1) // so that the old store does not learn
		for d.account.Granted < 10 {
			d.sync(1) // the new one does
		}
		d.requireUsed(limit1000, 11, 10)
		d.account.Returned = 4
		r := d.sync(0)
		require.EqualValues(t, 4, r.Returned)
		d.requireUsed(limit1000, 7, 6)
	})
}

// A grant that only one store makes is not handed out, and not lost.
func TestGrantOfOne(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		d.take(d.old, limit1000, 1)
		require.EqualValues(t, 1, d.ask(300, 1, 0).Grant, "the new store learns")
		d.requireUsed(limit1000, 301, 1)
		time.Sleep(limit1000.Window / 20)
		r := d.sync(300)
		require.EqualValues(t, 300, r.Grant)
		require.EqualValues(t, 299, r.Recovered)
		d.requireUsed(limit1000, 302, 301)
		d.take(d.new, limit1000, 690)
		r = d.sync(300)
		require.EqualValues(t, 9, r.Grant)
		require.Zero(t, r.Remaining)
	})
}

// The stores have windows that differ: what is held dies with the first of them,
// and a client that goes on to the next is handed nothing that it has spent.
func TestOutOfStep(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		d.take(d.old, limit1000, 1)
		time.Sleep(20 * time.Second)
		d.take(d.new, limit1000, 1)
		r := d.sync(500)
		require.EqualValues(t, 500, r.Grant)
		require.Equal(t, 40*time.Second, r.Left)
		time.Sleep(41 * time.Second)
		total := int64(500) // of the new store's window, which runs
		for d.account.Window = r.Window; total < 1000; {
			r = d.sync(100)
			require.Equal(t, time.Now().Add(r.Left).UnixMilli(), int64(r.Window))
			total += r.Grant
			_, charged := d.used(limit1000)
			require.LessOrEqual(t, total, charged, "what is handed out is charged")
			if r.Remaining == 0 {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		require.EqualValues(t, 999, total)
	})
	atDesk(t, func(t *testing.T, d *desk) {
		d.take(d.new, limit1000, 1)
		time.Sleep(20 * time.Second)
		d.take(d.old, limit1000, 1)
		require.Equal(t, 40*time.Second, d.sync(500).Left)
		d.account.Returned = 50
		require.EqualValues(t, 10, d.sync(10).Grant, "to the new store what is returned looks unheard")
	})
}

// By the new store's clock the window is over, and by the old one's it is not:
// what the client holds of it must not come alive again, even if it has returned more than
// that, of its debt.
func TestOverInOneStore(t *testing.T) {
	for _, debt := range []int64{0, 20} {
		atDesk(t, func(t *testing.T, d *desk) {
			d.new.ahead = 300 * time.Millisecond
			d.take(d.old, limit1000, 1)
			first := d.sync(5)
			d.account.Debt = debt
			d.sync(0)
			d.account.Returned = debt / 2
			time.Sleep(first.Left + 100*time.Millisecond)
			r := d.sync(5)
			require.Greater(t, r.Window, first.Window)
			require.False(t, r.Carried)
		})
	}
}

// At a boundary that the clocks do not agree on both stores go on to the same
// window, together.
func TestBoundary(t *testing.T) {
	for _, ahead := range []time.Duration{-5 * time.Millisecond, 5 * time.Millisecond} {
		atDesk(t, func(t *testing.T, d *desk) {
			d.new.ahead = ahead
			first := d.take(d.both, limit10, 1)
			time.Sleep(first.Left + 2*time.Millisecond) // over in the one that is ahead
			r := d.take(d.both, limit10, 1)
			require.True(t, r.Allowed)
			require.Greater(t, r.Window, first.Window)
			a, err := d.old.Check(t.Context(), "k", limit10)
			require.NoError(t, err)
			b, err := d.new.Check(t.Context(), "k", limit10)
			require.NoError(t, err)
			require.Equal(t, a.Window, b.Window)
			d.requireUsed(limit10, 1, 1)
		})
	}
}

// The window ends while the call is on its way from one store to the other, a moment
// after the old store's reply or some time after it.
func TestBoundaryOnTheWay(t *testing.T) {
	for _, left := range []time.Duration{17 * time.Millisecond, 35 * time.Millisecond} {
		atDesk(t, func(t *testing.T, d *desk) {
			first := d.take(d.both, limit10, 1)
			d.take(d.both, limit10, 1) // and the window is known
			d.new.late = 80 * time.Millisecond
			d.old.late = 45 * time.Millisecond
			time.Sleep(first.Left - d.old.late - left)
			r := d.take(d.both, limit10, 1)
			require.True(t, r.Allowed)
			require.Greater(t, r.Window, first.Window)
			d.requireUsed(limit10, 1, 1)
		})
	}
}

// Close gives back to both.
func TestCloseInBoth(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		limiter, err := reservoir.New(d.both, limit1000, reservoir.WithBatch(reservoir.Fixed(20)))
		require.NoError(t, err)
		for range 3 {
			r, err := limiter.Allow(t.Context(), "k")
			require.NoError(t, err)
			require.True(t, r.Allowed)
			time.Sleep(4 * time.Second) // no store learns any more
		}
		old, new := d.used(limit1000)
		require.Greater(t, min(old, new), int64(3), "it holds some")
		require.NoError(t, limiter.Close(t.Context()))
		d.requireUsed(limit1000, 3, 3)
	})
}
