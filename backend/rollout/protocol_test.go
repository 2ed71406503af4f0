package rollout_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

// This file tests debt, Least, Leaving, and a window's end in both stores.

// hooked is a store in front of which a test does something, once.
type hooked struct {
	backend.Store
	before func() error // an error is the call's, which is not carried out then
	after  func() error // an error is the call's, which has been carried out
}

func once(hook *func() error) error {
	f := *hook
	if *hook = nil; f == nil {
		return nil
	}
	return f()
}

func (h *hooked) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	if err := once(&h.before); err != nil {
		return backend.SyncReply{}, err
	}
	reply, err := h.Store.Sync(ctx, r)
	return reply, errors.Join(err, once(&h.after))
}

func (h *hooked) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	if err := once(&h.before); err != nil {
		return backend.TakeReply{}, err
	}
	reply, err := h.Store.Take(ctx, r)
	return reply, errors.Join(err, once(&h.after))
}

func (h *hooked) Refund(ctx context.Context, r backend.RefundRequest) (int64, error) {
	if err := once(&h.before); err != nil {
		return 0, err
	}
	total, err := h.Store.Refund(ctx, r)
	return total, errors.Join(err, once(&h.after))
}

func lost() error {
	return &backend.Error{Op: "?", Class: backend.Unknown, Err: context.DeadlineExceeded}
}

// hook puts a hooked store in front of the new store.
func (d *desk) hook() *hooked {
	h := &hooked{Store: d.new}
	d.both = open(d.t, d.old, h, 0, 100)
	return h
}

// ask is sync for want tokens, of which callers need some, and the first of them least.
func (d *desk) ask(want, need, least int64) backend.SyncReply {
	d.t.Helper()
	d.account.Want, d.account.Need, d.account.Least = want, need, least
	r, err := d.both.Sync(d.t.Context(), d.account)
	require.NoError(d.t, err)
	if r.Length == 0 {
		d.account.Window, d.account.Granted, d.account.Returned = r.Window, r.Granted, r.Returned
	}
	return r
}

// settle has the client spend a token, and waits until neither store learns. Their
// window is known then.
func (d *desk) settle() {
	d.t.Helper()
	require.EqualValues(d.t, 1, d.ask(1, 1, 0).Grant)
	time.Sleep(limit1000.Window / 20)
	d.ask(0, 0, 0)
}

func TestDebtIsChargedOnceInEachStore(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		d.settle()
		new := d.hook()
		d.account.Debt = 7
		for _, hook := range []*func() error{&new.before, &new.after} { // lost on the way there, and back
			*hook = lost
			_, err := d.both.Sync(t.Context(), d.account)
			require.Error(t, err)
		}
		require.EqualValues(t, 7, d.ask(0, 0, 0).Debt)
		d.requireUsed(limit1000, 8, 8)
		d.account.Debt = 1500
		r := d.ask(5, 5, 0)
		require.EqualValues(t, 1500, r.Debt)
		require.EqualValues(t, 501, r.Over)
		d.take(d.new, backend.Limit{Tokens: 2000, Window: time.Minute}, 300)
		require.EqualValues(t, 801, d.ask(0, 0, 0).Over, "of the store that has charged more")
		require.Zero(t, r.Grant)
		require.Zero(t, r.Remaining)
	})
}

// A client declared its debt to the old store alone, before the key was put into both.
func TestDebtMovesAlong(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		d.both = open(t, d.old, d.new, 0, 0)
		d.ask(10, 10, 0)
		d.account.Debt = 7
		require.EqualValues(t, 7, d.ask(0, 0, 0).Debt)
		require.NoError(t, d.both.SetPercent(0, 100))
		require.EqualValues(t, 7, d.ask(0, 0, 0).Debt)
		d.requireUsed(limit1000, 17, 17)
	})
}

// Tokens of a debt that both stores have charged go back: more than the client was granted.
// Neither store takes them for a grant that it has forgotten.
func TestDebtGoesBackInBoth(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		d.settle()
		d.account.Debt = 20
		require.EqualValues(t, 20, d.ask(0, 0, 0).Debt)
		d.account.Returned = 12
		for range 2 {
			r := d.ask(0, 0, 0)
			require.EqualValues(t, 1, r.Granted)
			require.EqualValues(t, 12, r.Returned)
			require.Zero(t, r.Reasserted)
			require.False(t, r.Learning)
			d.requireUsed(limit1000, 9, 9)
		}
		require.EqualValues(t, 5, d.ask(5, 5, 5).Grant)
		d.requireUsed(limit1000, 14, 14)
	})
}

// poorer is a store that knows of less debt than it was told.
type poorer struct{ backend.Store }

func (p poorer) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	reply, err := p.Store.Sync(ctx, r)
	reply.Debt = min(reply.Debt, 3)
	return reply, err
}

func TestDebtOfWhichOneStoreKnowsIsNotSettled(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		d.settle()
		d.account.Debt = 7
		d.both = open(t, d.old, poorer{d.new}, 0, 100)
		require.EqualValues(t, 3, d.ask(0, 0, 0).Debt)
		d.both = open(t, poorer{d.old}, d.new, 0, 100)
		require.EqualValues(t, 3, d.ask(0, 0, 0).Debt)
	})
}

// The old store can serve the first caller and the new one cannot, or the other way
// round: none is granted anything, and the new store charges nothing.
func TestLeastOfBothOrNone(t *testing.T) {
	for _, row := range []struct {
		old, new int64 // taken there alone
		grant    int64
	}{
		{0, 0, 10},
		{0, 989, 10},
		{0, 990, 0},
		{989, 0, 10},
		{990, 0, 0},
		{999, 999, 0},
	} {
		atDesk(t, func(t *testing.T, d *desk) {
			d.settle()
			for store, n := range map[*skewed]int64{d.old: row.old, d.new: row.new} {
				if n > 0 {
					d.take(store, limit1000, n)
				}
			}
			require.Equal(t, row.grant, d.ask(10, 10, 10).Grant)
			_, charged := d.used(limit1000)
			require.Equal(t, 1+row.new+row.grant, charged)
		})
	}
}

// A grant of the old store that the new one could not match helps as soon as both can.
func TestLeastLater(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		d.settle()
		r := d.take(d.new, limit1000, 995)
		require.Zero(t, d.ask(10, 10, 10).Grant)
		require.EqualValues(t, 4, d.ask(10, 10, 0).Grant)
		_, err := d.new.Refund(t.Context(), backend.RefundRequest{Key: "k", Client: "r", Window: r.Window, Total: 995})
		require.NoError(t, err)
		require.EqualValues(t, 6, d.ask(6, 6, 6).Grant)
		d.requireUsed(limit1000, 11, 11)
	})
}

// The old store recovers a part of what the first caller needs, and has no more. The
// new store has not charged that part, and is not asked to: nobody could use it.
func TestLeastIsNotMetByWhatOneStoreRecovers(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		d.settle()
		new := d.hook()
		new.before = lost
		d.account.Want, d.account.Need = 4, 4
		_, err := d.both.Sync(t.Context(), d.account)
		require.Error(t, err)
		d.take(d.old, limit1000, 995)
		require.Zero(t, d.ask(10, 10, 10).Grant)
		d.requireUsed(limit1000, 1000, 1)
		require.EqualValues(t, 4, d.ask(4, 4, 4).Grant)
		d.requireUsed(limit1000, 1000, 5)
	})
}

// A reply of both stores was lost. What it granted is handed over, though it is less
// than the first caller needs now.
func TestLeastDoesNotKeepBackALostGrant(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		d.settle()
		before := d.account
		require.EqualValues(t, 5, d.ask(5, 5, 5).Grant)
		d.account = before
		d.take(d.both, limit1000, 994)
		require.EqualValues(t, 5, d.ask(10, 10, 10).Grant)
		d.requireUsed(limit1000, 1000, 1000)
	})
}

// A client comes from another window into one where it has spent tokens before. The
// new store counts these towards the least; they help nobody.
func TestLeastIsNotMetByWhatWasSpent(t *testing.T) {
	for _, rest := range []int64{4, 10} {
		atDesk(t, func(t *testing.T, d *desk) {
			d.settle()
			d.ask(6, 6, 0)
			d.account.Window, d.account.Granted = 0, 0
			d.take(d.new, limit1000, 1000-7-rest)
			var granted int64
			for range 3 {
				r := d.ask(10, 10, 10)
				require.Contains(t, []int64{0, 10}, r.Grant)
				granted += r.Grant
			}
			require.Equal(t, rest/10*10, granted)
		})
	}
}

// The stores have different windows, and what the client has returned in the old one's
// looks to the new one like a grant whose reply was lost. It does not help a caller.
func TestLeastInDifferentWindows(t *testing.T) {
	for _, row := range []struct{ rest, grant, left int64 }{
		{4, 0, 0}, // 4 tokens are charged before the new store's account is known
		{5, 0, 1},
		{10, 10, 0},
	} {
		atDesk(t, func(t *testing.T, d *desk) {
			d.take(d.new, limit1000, 1)
			time.Sleep(20 * time.Second)
			d.take(d.old, limit1000, 1)
			d.ask(500, 500, 0)
			d.account.Returned = 6
			d.take(d.new, limit1000, 499-row.rest)
			require.Equal(t, row.grant, d.ask(10, 10, 10).Grant)
			state, err := d.new.Check(t.Context(), "k", limit1000)
			require.NoError(t, err)
			require.Equal(t, row.left, state.Remaining)
		})
	}
}

// A window's end that the client names is the end in both stores.
func TestEndInBoth(t *testing.T) {
	end := func() backend.Window { return backend.Window(time.Now().Add(17 * time.Second).UnixMilli()) }
	atDesk(t, func(t *testing.T, d *desk) {
		d.account.End = end()
		require.Equal(t, d.account.End, d.ask(5, 5, 5).Window)
		require.Equal(t, d.account.End, d.take(d.new, limit1000, 1).Window)
	})
	atDesk(t, func(t *testing.T, d *desk) {
		r, err := d.both.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit1000, End: end(), Tokens: 1})
		require.NoError(t, err)
		require.Equal(t, end(), r.Window)
		require.Equal(t, end(), d.take(d.new, limit1000, 1).Window)
	})
}

// A client that leaves is not counted in either store.
func TestLeavingInBoth(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		d.ask(5, 5, 5)
		other := d.account
		d.account = backend.SyncRequest{Key: "k", Client: "d", Limit: limit1000, Strand: -1}
		require.EqualValues(t, 2, d.ask(5, 5, 5).Clients)
		d.account.Leaving = true
		require.EqualValues(t, 1, d.ask(0, 0, 0).Clients)
		for _, store := range []backend.Store{d.old, d.new} {
			r, err := store.Sync(t.Context(), other)
			require.NoError(t, err)
			require.EqualValues(t, 1, r.Clients)
		}
	})
}

// A client gets what its callers need at once, even while the new store learns.
func TestNewStoreThatLearnsServesCallers(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		d.take(d.old, limit1000, 1)
		r := d.ask(300, 20, 10)
		require.True(t, r.Learning)
		require.EqualValues(t, 20, r.Grant)
		d.requireUsed(limit1000, 301, 20)
	})
}

// The cache does not take a key for another one with the same hash.
func TestKeysOfOneHash(t *testing.T) {
	const a, b = "8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ" // FNV-1a, 64 bit
	atDesk(t, func(t *testing.T, d *desk) {
		take := func(s backend.Store, key string) backend.Window {
			r, err := s.Take(t.Context(), backend.TakeRequest{Key: key, Limit: limit10, Tokens: 1})
			require.NoError(t, err)
			return r.Window
		}
		want := take(d.new, b)
		time.Sleep(20 * time.Second)
		take(d.both, a)
		take(d.both, a) // and it is known
		take(d.both, b)
		require.Equal(t, want, take(d.old, b))
	})
}
