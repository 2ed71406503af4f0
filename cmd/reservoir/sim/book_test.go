package sim

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
type clerk struct {
	*book
	now *time.Duration // each answers is an instant of its own
}

func newClerk() clerk {
	return clerk{newBook(Traffic{Keys: []string{"k"}, Tokens: 1, Length: time.Second}, 10), new(time.Duration)}
}

func (c clerk) answers(n int, end int64, allowed bool, from reservoir.Source) {
	*c.now++
	for range n {
		r := reservoir.Result{Allowed: allowed, Reset: time.UnixMilli(end), Source: from}
		c.answer(Request{At: *c.now}, r, nil, time.Microsecond, 0)
	}
}

func TestBook(t *testing.T) {
	c := newClerk()
	c.answers(4, 1000, true, reservoir.Local)
	c.answers(4, 1000, true, reservoir.Direct)
	c.answers(1, 1000, false, reservoir.Direct)
	c.answers(4, 1000, false, reservoir.Local)

	c.answers(9, 2000, true, reservoir.Fetched)
	c.answers(3, 2000, false, reservoir.Local)
	c.answers(1, 2000, true, reservoir.Local)

	c.answers(11, 3000, true, reservoir.Local)
	c.answers(1, 2000, true, reservoir.Local) // a late one makes the second 11
	c.answers(1, 1000, true, reservoir.Local) // and one the first 9

	c.answer(Request{}, reservoir.Result{}, errors.New("away"), time.Microsecond, 0)
	o := c.outcome()
	require.EqualValues(t, 40, o.Requests)
	require.EqualValues(t, 31, o.Admitted)
	require.EqualValues(t, 8, o.Refused)
	require.EqualValues(t, 1, o.Errors)
	require.EqualValues(t, 4+1+9, o.Waited)
	require.EqualValues(t, 1, o.Needless, "the first window had 1 left and refused 5")
	require.EqualValues(t, 2, o.Over, "one in the second, one in the third")
	require.EqualValues(t, 1, o.StrandedWindows, "the cold one is left out")
	require.InDelta(t, 0.1, o.Stranded, 1e-9)
	require.False(t, o.Cold)
}

func TestBookOfOneWindow(t *testing.T) {
	c := newClerk()
	c.answers(8, 1000, true, reservoir.Local)
	c.answers(1, 1000, false, reservoir.Local)
	o := c.outcome()
	require.InDelta(t, 0.2, o.Stranded, 1e-9)
	require.True(t, o.Cold)
	require.EqualValues(t, 1, o.Needless)
}

// Requests for 4 tokens of a limit of 10: two are admitted, and the 2 that are left refuse nobody needlessly.
func TestBookOfSeveralTokens(t *testing.T) {
	for admitted, want := range map[int]Outcome{
		2: {Admitted: 2, Refused: 3, Needless: 0, Stranded: 0.2},
		1: {Admitted: 1, Refused: 3, Needless: 1, Stranded: 0.6},
		3: {Admitted: 3, Refused: 3, Over: 2, Stranded: 0},
	} {
		c := newClerk()
		c.Tokens = 4
		c.answers(admitted, 1000, true, reservoir.Local)
		c.answers(3, 1000, false, reservoir.Local)
		o := c.outcome()
		require.Equal(t, want, Outcome{Admitted: o.Admitted, Refused: o.Refused, Needless: o.Needless, Over: o.Over, Stranded: o.Stranded})
	}
}

// One reply serves two callers and refuses a third, who is heard first.
func TestBookOfOneInstant(t *testing.T) {
	c := newClerk()
	c.answers(1, 1000, false, reservoir.Fetched)
	*c.now--
	c.answers(2, 1000, true, reservoir.Fetched)
	c.answers(1, 1000, true, reservoir.Local)
	require.InDelta(t, 0.8, c.outcome().Stranded, 1e-9, "two were spent at that instant")
}

// The calls before a window are those until a caller was told of it.
func TestBookCountsCallsByWindow(t *testing.T) {
	c := newClerk()
	c.answers(3, 1000, true, reservoir.Local)
	c.call()
	c.answers(1, 2000, false, reservoir.Fetched)
	c.call()
	c.answers(1, 1000, true, reservoir.Local)
	require.Equal(t, []*Window{
		{ID: 1000, key: "k", Requests: 4, Spent: 4},
		{ID: 2000, key: "k", Calls: 1, Requests: 1, Waited: 1, Refused: 1, Stranded: 10, short: 2 + time.Microsecond},
	}, c.outcome().Windows)
}

type ctx = context.Context

// scripted is a store with given replies.
type scripted struct {
	backend.Store
	replies []backend.Reply
}

func (s *scripted) Sync(_ ctx, _ backend.Statement) (backend.Reply, error) {
	if len(s.replies) == 0 {
		return backend.Reply{}, errors.New("broken")
	}
	reply := s.replies[0]
	s.replies = s.replies[1:]
	return reply, nil
}

func (s *scripted) Check(ctx, string, backend.Limit) (backend.State, error) {
	return backend.State{}, nil
}

func (s *scripted) Shard(key string) string { return key + "'s" }
