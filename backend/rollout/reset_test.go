package rollout_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

func (k *skewed) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	return k.Store.Reset(k.on(ctx), r)
}

func (h *hooked) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	if err := once(&h.before); err != nil {
		return backend.State{}, err
	}
	state, err := h.Store.Reset(ctx, r)
	return state, errors.Join(err, once(&h.after))
}

func (d *desk) reset(end backend.Window) backend.State {
	d.t.Helper()
	state, err := d.both.Reset(d.t.Context(), backend.ResetRequest{Key: "k", Limit: limit1000, End: end})
	require.NoError(d.t, err)
	return state
}

// windows are those that the stores have open.
func (d *desk) windows() (old, new backend.Window) {
	d.t.Helper()
	all := d.contents()
	return all[0].Window, all[1].Window
}

// fresh requires that both stores have the same window open, in which nothing is
// charged, and that a client who held tokens before goes on in it.
func (d *desk) fresh(state backend.State) {
	d.t.Helper()
	a, b := d.windows()
	require.Equal(d.t, [2]backend.Window{state.Window, state.Window}, [2]backend.Window{a, b})
	require.EqualValues(d.t, 1000, state.Remaining)
	d.requireUsed(limit1000, 0, 0)
	r := d.ask(1000, 1000, 1000)
	require.Equal(d.t, state.Window, r.Window)
	require.EqualValues(d.t, 1000, r.Grant)
	require.False(d.t, r.Carried || r.Learning)
	require.Zero(d.t, r.Reasserted)
	d.requireUsed(limit1000, 1000, 1000)
	require.Zero(d.t, d.ask(1, 1, 1).Grant)
}

// A client of both stores has used the limit, and gets a fresh window of each.
func TestResetInBoth(t *testing.T) {
	for _, pause := range []time.Duration{0, 20 * time.Second} {
		for _, end := range []time.Duration{0, 50 * time.Second} {
			atDesk(t, func(t *testing.T, d *desk) {
				if end != 0 {
					d.account.End = backend.Window(time.Now().Add(end).UnixMilli())
				}
				d.settle()
				d.take(d.both, limit1000, 900)
				time.Sleep(pause)
				for range 3 {
					d.fresh(d.reset(d.account.End))
				}
			})
		}
	}
}

// The stores' clocks differ, by as much as an end may be late.
func TestResetWithSkewedClocks(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Second, -5 * time.Millisecond, 5 * time.Millisecond, time.Second} {
		atDesk(t, func(_ *testing.T, d *desk) {
			d.new.ahead = ahead
			d.settle()
			d.take(d.both, limit1000, 999)
			d.fresh(d.reset(0))
			time.Sleep(20 * time.Second)
			d.fresh(d.reset(0))
		})
	}
}

func TestResetOfNothing(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		require.Equal(t, backend.State{Remaining: 1000}, d.reset(0))
		a, b := d.windows()
		require.Zero(t, a+b)
	})
}

// Only one store has a window open, or each another one: then both have the same.
func TestResetOutOfStep(t *testing.T) {
	for _, row := range []struct{ first, second int }{{0, 0}, {1, 1}, {0, 1}, {1, 0}} {
		for _, apart := range []time.Duration{300 * time.Millisecond, time.Second, 20 * time.Second} {
			atDesk(t, func(t *testing.T, d *desk) {
				stores := []*skewed{d.old, d.new}
				d.account.End = backend.Window(time.Now().Add(time.Minute).UnixMilli())
				for i, store := range []*skewed{stores[row.first], stores[row.second]} {
					_, err := store.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit1000, Tokens: 500, End: d.account.End})
					require.NoError(t, err)
					if i == 0 {
						time.Sleep(apart)
						d.account.End += backend.Window(apart.Milliseconds())
					}
				}
				d.fresh(d.reset(0))
			})
		}
	}
}

// A store has lost the window that this process takes for open in both.
func TestResetAfterLoss(t *testing.T) {
	for _, inOld := range []bool{false, true} {
		atDesk(t, func(t *testing.T, d *desk) {
			d.settle()
			d.take(d.both, limit1000, 999)
			if inOld {
				d.old.Store = memstore.New()
			} else {
				d.new.Store = memstore.New()
			}
			d.fresh(d.reset(0))
		})
	}
}

// A reset fails in one store, on the way there or back. The store that still has the old
// window binds, until the reset is made again.
func TestResetThatFailsHalfWay(t *testing.T) {
	refused := func() error { return &backend.Error{Op: "?", Class: backend.Unavailable, Err: context.Canceled} }
	for _, back := range []bool{false, true} {
		for _, inOld := range []bool{false, true} {
			atDesk(t, func(t *testing.T, d *desk) {
				d.settle()
				d.take(d.both, limit1000, 999)
				h := &hooked{Store: d.new}
				d.both = open(t, d.old, h, 0, 100)
				if inOld {
					h.Store = d.old
					d.both = open(t, h, d.new, 0, 100)
				}
				want := backend.Unknown
				if back {
					h.after = lost
				} else if h.before = refused; inOld {
					want = backend.Unavailable
				}
				_, err := d.both.Reset(t.Context(), backend.ResetRequest{Key: "k", Limit: limit1000})
				var failure *backend.Error
				require.ErrorAs(t, err, &failure)
				require.Equal(t, "reset", failure.Op)
				require.Equal(t, want, failure.Class)
				if !back || inOld { // one of them at least has not heard of it
					require.Zero(t, d.ask(10, 10, 10).Grant)
				}
				d.fresh(d.reset(0))
			})
		}
	}
}

// A window of another length in either store: nothing changes in both.
func TestResetOfAnotherLength(t *testing.T) {
	for _, other := range []func(d *desk) *skewed{func(d *desk) *skewed { return d.old }, func(d *desk) *skewed { return d.new }} {
		atDesk(t, func(t *testing.T, d *desk) {
			d.take(other(d), hour1000, 1)
			before := d.contents()
			require.Equal(t, time.Hour, d.reset(0).Length)
			require.Equal(t, before, d.contents())
		})
	}
}

// stuck is a store whose resets open windows that no other store has.
type stuck struct{ backend.Store }

func (s stuck) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	r.End = 0
	return s.Store.Reset(storeclock.With(ctx, time.Now().Add(7*time.Second)), r)
}

func TestResetThatFindsNoCommonEnd(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		d.take(d.both, limit1000, 1)
		d.both = open(t, d.old, stuck{memstore.New()}, 0, 100)
		_, err := d.both.Reset(t.Context(), backend.ResetRequest{Key: "k", Limit: limit1000})
		require.ErrorContains(t, err, "different windows")
	})
}
