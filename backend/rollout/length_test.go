package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// This file tests windows of another length than that of the call's limit.

// hour1000 is as many tokens as limit1000, in another window.
var hour1000 = backend.Limit{Tokens: 1000, Window: time.Hour}

// conflicts requires that no call of limit1000 changes anything in either store,
// because of a window of another length.
func (d *desk) conflicts(other backend.Limit) {
	d.t.Helper()
	before := d.contents()
	state, err := d.both.Check(d.t.Context(), "k", limit1000)
	require.NoError(d.t, err)
	require.Equal(d.t, other.Window, state.Length)
	took := d.take(d.both, limit1000, 3)
	require.False(d.t, took.Allowed)
	require.Equal(d.t, other.Window, took.Length)
	r := d.account
	r.Granted, r.Returned, r.Debt, r.Want, r.Need, r.Least = 9, 2, 1, 5, 5, 5
	r.Window = backend.Window(time.Now().Add(limit1000.Window).UnixMilli())
	reply, err := d.both.Sync(d.t.Context(), r)
	require.NoError(d.t, err)
	require.Equal(d.t, other.Window, reply.Length)
	require.Equal(d.t, backend.SyncReply{State: reply.State, Granted: 9, Returned: 2, Debt: 1, Clients: 1}, reply)
	require.Equal(d.t, before, d.contents())
}

func (d *desk) contents() (all [2]backend.Contents) {
	d.t.Helper()
	for i, store := range []*skewed{d.old, d.new} {
		var err error
		all[i], err = store.Inspect(d.t.Context(), "k")
		require.NoError(d.t, err)
	}
	return all
}

func TestWindowOfAnotherLength(t *testing.T) {
	for _, other := range []backend.Limit{hour1000, {Tokens: 1000, Window: 10 * time.Second}} {
		for _, row := range []struct{ old, new []backend.Limit }{ // the limits that take a token there alone
			{old: []backend.Limit{other}},
			{new: []backend.Limit{other}},
			{old: []backend.Limit{limit1000, limit1000}, new: []backend.Limit{other}},
			{old: []backend.Limit{other}, new: []backend.Limit{limit1000, limit1000}},
			{old: []backend.Limit{other}, new: []backend.Limit{other}},
		} {
			atDesk(t, func(_ *testing.T, d *desk) {
				for _, l := range row.old {
					d.take(d.old, l, 1)
				}
				for _, l := range row.new {
					d.take(d.new, l, 1)
				}
				d.conflicts(other)
			})
		}
	}
}

// The cache knows a key's window for limits of one length.
func TestOldStoreHasLostAWindowOfAnotherLength(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		d.settle()
		d.old.Store = memstore.New()
		before := d.contents()
		require.Equal(t, time.Minute, d.take(d.both, hour1000, 3).Length)
		require.Equal(t, before, d.contents())
	})
}

// One of the stores has lost its data and opened a short window. When that is over, the
// store adopts the other one's window again. The other one is charged nothing, except
// that the old store has granted tokens to a statement, which its client gets later.
func TestWindowOfAnotherLengthInBetween(t *testing.T) {
	short := backend.Limit{Tokens: 1000, Window: 10 * time.Second}
	take := func(d *desk) backend.State { return d.take(d.both, limit1000, 1).State }
	ask := func(d *desk) backend.State { return d.ask(1, 1, 1).State }
	for _, row := range []struct {
		call   func(*desk) backend.State
		lost   int // 0 = the old store
		stands int64
	}{{take, 0, 0}, {take, 1, 0}, {ask, 0, 0}, {ask, 1, 1}} {
		atDesk(t, func(t *testing.T, d *desk) {
			d.settle()
			d.account.Debt = 7
			window := d.ask(0, 0, 0).Window
			store := []*skewed{d.old, d.new}[row.lost]
			store.Store = memstore.New()
			d.take(store, short, 4)
			require.Equal(t, short.Window, row.call(d).Length)
			require.EqualValues(t, 1, d.account.Granted)
			require.EqualValues(t, 4, d.contents()[row.lost].Used)
			require.Equal(t, 8+row.stands, d.contents()[1-row.lost].Used)
			time.Sleep(short.Window + time.Millisecond)
			d.account = backend.SyncRequest{Key: "k", Client: "d", Limit: limit1000, Strand: -1}
			require.Equal(t, window, row.call(d).Window)
			for _, contents := range d.contents() {
				require.Equal(t, window, contents.Window)
			}
		})
	}
}

// The other window opens in the new store when the old one has charged already.
func TestConflictOnTheWay(t *testing.T) {
	atDesk(t, func(t *testing.T, d *desk) {
		new := d.hook()
		new.before = func() error { d.take(d.new, hour1000, 4); return nil }
		r := d.take(d.both, limit1000, 3)
		require.False(t, r.Allowed)
		require.Equal(t, time.Hour, r.Length)
		d.conflicts(hour1000)
		old, err := d.old.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Zero(t, old.Used)
	})
	atDesk(t, func(t *testing.T, d *desk) {
		d.settle()
		new := d.hook()
		d.ask(0, 0, 0)
		new.before = func() error { // it loses its data
			d.new.Store = memstore.New()
			d.take(d.new, hour1000, 4)
			return nil
		}
		for i := range int64(3) { // the old store grants once, and keeps that for the client
			r := d.ask(5+i, 5, 5)
			require.Equal(t, time.Hour, r.Length)
			require.Zero(t, r.Grant)
			require.EqualValues(t, 1, r.Granted)
		}
		old, _ := d.used(limit1000)
		require.EqualValues(t, 6, old)
		d.new.Store = memstore.New()
		require.EqualValues(t, 5, d.ask(5, 5, 5).Grant)
		old, _ = d.used(limit1000)
		require.EqualValues(t, 6, old)
	})
}
