package rollout_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

func (d *desk) refund(client string, w backend.Window, total int64) int64 {
	d.t.Helper()
	known, err := d.both.Refund(d.t.Context(), backend.RefundRequest{Key: "k", Client: client, Window: w, Total: total})
	require.NoError(d.t, err)
	return known
}

func TestRefundInBoth(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		before := d.take(d.old, limit10, 3) // before the key was moved
		r := d.take(d.both, limit10, 4)
		require.Equal(t, before.Window, r.Window, "the reset does not wobble")
		d.requireUsed(limit10, 7, 4)
		require.EqualValues(t, 2, d.refund("r", r.Window, 2))
		require.EqualValues(t, 4, d.refund("r", r.Window, 4))
		require.EqualValues(t, 4, d.refund("r", r.Window, 2), "late")
		d.requireUsed(limit10, 3, 0)
		require.EqualValues(t, 3, d.refund("s", r.Window, 3), "the new store has not charged it")
		d.requireUsed(limit10, 0, 0)
	})
}

// A refund that was lost on the way to the new store, or back, is repeated, and each
// store gives its tokens back once.
func TestRefundRepeated(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		r := d.take(d.both, limit10, 10)
		new := d.hook()
		for _, hook := range []*func() error{&new.before, &new.after} {
			*hook = lost
			_, err := d.both.Refund(t.Context(), backend.RefundRequest{Key: "k", Client: "r", Window: r.Window, Total: 4})
			var failure *backend.Error
			require.ErrorAs(t, err, &failure)
			require.Equal(t, backend.Unknown, failure.Class)
		}
		require.EqualValues(t, 4, d.refund("r", r.Window, 4))
		d.requireUsed(limit10, 6, 6)
	})
}

// Where the stores have different windows, a refund reaches one of them, and what
// both know of is nothing.
func TestRefundInOneOfTwoWindows(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		first := d.take(d.old, limit10, 2)
		time.Sleep(20 * time.Second)
		second := d.take(d.new, limit10, 2)
		require.Zero(t, d.refund("r", first.Window, 1))
		d.requireUsed(limit10, 1, 2)
		require.Zero(t, d.refund("r", second.Window, 1))
		d.requireUsed(limit10, 1, 1)
	})
}

// Takes that the new store refuses are undone in the old one, under one entry of its
// ledger, however many they are.
func TestUndosShareAnEntry(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		d.take(d.both, limit1000, 1)
		d.take(d.new, limit1000, 999)
		for i := range int64(100) {
			require.False(t, d.take(d.both, limit1000, 1+i).Allowed)
			d.requireUsed(limit1000, 1, 1000)
		}
		contents, err := d.old.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.LessOrEqual(t, len(contents.Clients), 1)
	})
}

// What was undone in one window is not given back to another one.
func TestUndoInAnotherWindow(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		d.settle()
		d.take(d.new, limit1000, 999)
		require.False(t, d.take(d.both, limit1000, 5).Allowed)
		d.old.Store = memstore.New()
		d.take(d.old, limit1000, 100)
		require.False(t, d.take(d.both, limit1000, 3).Allowed)
		d.requireUsed(limit1000, 100, 1000)
	})
}

// forgetful is a store that answers a few refunds with an error. It carries out every
// second one of those whose outcome is unknown.
type forgetful struct {
	*skewed
	fails int
	class backend.Class
}

func (f *forgetful) Refund(ctx context.Context, r backend.RefundRequest) (int64, error) {
	if f.fails == 0 {
		return f.skewed.Refund(ctx, r)
	}
	f.fails--
	if f.class == backend.Unknown && f.fails%2 == 0 {
		_, _ = f.skewed.Refund(ctx, r)
	}
	return 0, &backend.Error{Op: "refund", Class: f.class, Err: errors.New("lost")}
}

// An undo whose outcome is unknown is tried again, and gives back nothing twice. What
// it could not give back the next undo does.
func TestUndoTriedAgain(t *testing.T) {
	for _, row := range []struct {
		fails, tries int
		class        backend.Class
		stays        int64
	}{
		{2, 2, backend.Unknown, 0},
		{2, 2, backend.Unavailable, 0},
		{9, 3, backend.Unavailable, 5},
		{9, 1, backend.Rejected, 5},
	} {
		atDesk(t, func(t *testing.T, d *desk) {
			old := &forgetful{skewed: d.old, class: row.class}
			d.both = open(t, old, d.new, 0, 100)
			d.take(d.both, limit1000, 100)
			d.take(d.both, limit1000, 1) // and the window is known
			d.take(d.new, limit1000, 899)
			old.fails = row.fails
			require.False(t, d.take(d.both, limit1000, 5).Allowed)
			require.Equal(t, row.tries, row.fails-old.fails)
			d.requireUsed(limit1000, 101+row.stays, 1000)
			old.fails = 0
			require.False(t, d.take(d.both, limit1000, 3).Allowed)
			d.requireUsed(limit1000, 101, 1000)
		})
	}
}
