package tune

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
)

// clerk makes entries in the book of a traffic of one key with a limit of 10.
type clerk struct{ *book }

func newClerk() clerk {
	return clerk{newBook(Traffic{Keys: []string{"k"}, Length: time.Second}, 10)}
}

func (c clerk) answers(n int, w backend.Window, allowed bool, from reservoir.Source) {
	for range n {
		r := reservoir.Result{Allowed: allowed, Reset: w.Time(), Source: from}
		c.answer(Request{}, r, nil, time.Microsecond, 0)
	}
}

func TestBook(t *testing.T) {
	c := newClerk()
	c.charge("k", 1000, 6) // the first window, cold: 4 of 6 are used and 2 lie around
	c.answers(4, 1000, true, reservoir.Local)
	c.answers(4, 1000, true, reservoir.Direct)
	c.answers(1, 1000, false, reservoir.Direct)
	c.answers(4, 1000, false, reservoir.Denied)

	c.charge("k", 2000, 10) // the second: 1 lies around when the first is refused, and is used then
	c.answers(9, 2000, true, reservoir.Fetched)
	c.answers(3, 2000, false, reservoir.Denied)
	c.answers(1, 2000, true, reservoir.Local)

	c.charge("k", 3000, 10) // the third: 3 are given back, nobody is refused, and one is over
	c.charge("k", 3000, -3)
	c.answers(11, 3000, true, reservoir.Local)
	c.answers(1, 2000, true, reservoir.Local) // a late one makes the second 11
	c.answers(1, 1000, true, reservoir.Local) // and this comes too late to matter

	c.answer(Request{}, reservoir.Result{}, errors.New("away"), time.Microsecond, 0)
	c.grant(10)
	c.grant(0)
	c.grant(20)
	c.call(0)
	c.call(time.Hour)

	o := c.end()
	require.EqualValues(t, 40, o.Requests)
	require.EqualValues(t, 31, o.Admitted)
	require.EqualValues(t, 8, o.Refused)
	require.EqualValues(t, 1, o.Errors)
	require.EqualValues(t, 7, o.Remembered)
	require.EqualValues(t, 4+1+9, o.Waited)
	require.EqualValues(t, 2, o.Needless, "the first window had 2 left and refused 5")
	require.EqualValues(t, 2, o.Over, "one in the second, one in the third")
	require.EqualValues(t, 1, o.StrandedWindows, "the cold one is left out")
	require.InDelta(t, 0.1, o.Stranded, 1e-9)
	require.False(t, o.Cold)
	require.InDelta(t, 15, o.MeanBatch, 1e-9)
	require.EqualValues(t, 1, o.Timeline[0].Calls)
	require.EqualValues(t, 1, o.Timeline[buckets-1].Calls)
	require.EqualValues(t, 40, o.Timeline[0].Requests)
}

func TestBookOfOneWindowTellsItsStranding(t *testing.T) {
	c := newClerk()
	c.charge("k", 1000, 10)
	c.answers(8, 1000, true, reservoir.Local)
	c.answers(1, 1000, false, reservoir.Denied)
	o := c.end()
	require.InDelta(t, 0.2, o.Stranded, 1e-9)
	require.True(t, o.Cold)
	require.EqualValues(t, 1, o.Needless)
}

func TestBookKeepsLateAnswersOfTheFirstWindow(t *testing.T) {
	c := newClerk()
	c.answers(1, 2000, true, reservoir.Local)
	c.answers(11, 1000, true, reservoir.Local)
	c.answers(1, 0, false, reservoir.Denied) // of no window
	require.EqualValues(t, 1, c.end().Over)
	require.Equal(t, Outcome{}.Stranded, c.end().Stranded, "nothing is counted twice")
}

// The recorder tells the changes of accounts.
func TestRecorderTellsWhatItsProcessHolds(t *testing.T) {
	c := newClerk()
	store := &scripted{replies: []backend.SyncReply{
		{State: backend.State{Window: 1000}, Grant: 5, Granted: 5},
		{State: backend.State{Window: 1000}, Grant: 3, Granted: 8, Returned: 1},
		{State: backend.State{Window: 2000}, Grant: 4, Granted: 4},
		{State: backend.State{Window: 2000}, Grant: 2, Granted: 2}, // of a new account
	}}
	r := &recorder{store: store, shards: store, book: c.book, since: func() time.Duration { return 0 }, accounts: map[string]account{}}
	for i, want := range []int64{5, 7, 4, 6} {
		client := "x"
		if i == 3 {
			client = "y"
		}
		_, err := r.Sync(t.Context(), backend.SyncRequest{Key: "k", Client: client})
		require.NoError(t, err)
		require.Equal(t, want, c.keys[0].last[0].held)
	}
	_, err := r.Sync(t.Context(), backend.SyncRequest{Key: "k", Client: "y"})
	require.Error(t, err)
	_, _ = r.Check(t.Context(), "k", limit)
	_, _ = r.Refund(t.Context(), backend.RefundRequest{})
	require.EqualValues(t, 7, c.sum.Timeline[0].Calls, "failed ones too")
	require.Equal(t, "k's", r.Shard("k"))
	r.shards = nil
	require.Empty(t, r.Shard("k"))
}

type ctx = context.Context

// scripted is a store with given replies.
type scripted struct {
	backend.Store
	replies []backend.SyncReply
}

func (s *scripted) Sync(_ ctx, _ backend.SyncRequest) (backend.SyncReply, error) {
	if len(s.replies) == 0 {
		return backend.SyncReply{}, errBroken
	}
	reply := s.replies[0]
	s.replies = s.replies[1:]
	return reply, nil
}

func (s *scripted) Check(ctx, string, backend.Limit) (backend.State, error) {
	return backend.State{}, nil
}

func (s *scripted) Refund(ctx, backend.RefundRequest) (int64, error) { return 0, nil }

func (s *scripted) Shard(key string) string { return key + "'s" }
