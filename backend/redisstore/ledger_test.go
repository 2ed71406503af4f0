package redisstore_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// TestLedgerLost: {k}:60s:own is evicted or deleted, and the count is not. Its holders
// state what they hold, and nobody is charged twice.
func TestLedgerLost(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	limit := backend.Limit{Tokens: 1200, Window: time.Minute}
	var holders []*holder
	state := func(i int, change int64) backend.Reply {
		r, err := holders[i].ask(t.Context(), 0, change)
		require.NoError(t, err)
		return r
	}
	for i, client := range []string{"a", "b", "c"} {
		holders = append(holders, newHolder(s, client, "k", limit))
		r, err := holders[i].ask(t.Context(), 200, 0)
		require.NoError(t, err)
		require.EqualValues(t, 200, r.Grant)
	}
	require.EqualValues(t, 650, state(2, -50).Remaining)
	charged, err := charge(t.Context(), s, "k", limit, 100)
	require.NoError(t, err)
	require.EqualValues(t, 550, charged.Remaining)
	for i := range holders {
		state(i, 0) // each knows how much is charged
	}
	for range 2 {
		require.EqualValues(t, 1, client.Del(t.Context(), "{k}:60s:own").Val())
		for i := range holders {
			r := state(i, 0)
			require.EqualValues(t, 550, r.Remaining, "holder %d", i)
			require.Equal(t, []int64{200, 200, 150}[i], r.Mine)
			require.EqualValues(t, i+1, r.Clients)
		}
	}

	// The count is lost with it, but for the last charges: never less than what they hold.
	require.NoError(t, client.Del(t.Context(), "{k}:60s:own").Err())
	require.NoError(t, client.Set(t.Context(), "{k}:60s", 100, time.Minute).Err())
	for i := range holders {
		state(i, 0)
	}
	r := state(0, 0)
	require.LessOrEqual(t, r.Remaining, int64(650))
	require.GreaterOrEqual(t, r.Remaining, int64(550), "and no more than is charged")
}

// TestLedgerOfManyProcesses: 10,000 processes have used a key in a window, and a few use it in
// the next. Their fields go at once, and none of them counts.
func TestLedgerOfManyProcesses(t *testing.T) {
	const processes, few = 10_000, 20
	minute := backend.Limit{Tokens: 1_000_000, Window: time.Minute}
	base := time.Now().Add(time.Hour).Truncate(time.Second)
	for what, next := range map[string]func(t *testing.T, s *redisstore.Store) time.Duration{
		"next window": func(*testing.T, *redisstore.Store) time.Duration { return time.Minute + 100*time.Millisecond },
		"reset": func(t *testing.T, s *redisstore.Store) time.Duration {
			_, err := s.Reset(storeclock.With(t.Context(), base.Add(time.Second)), "k", minute)
			require.NoError(t, err)
			return time.Second
		},
		"charged first": func(t *testing.T, s *redisstore.Store) time.Duration {
			_, err := charge(storeclock.With(t.Context(), base.Add(time.Minute+100*time.Millisecond)), s, "k", minute, 1)
			require.NoError(t, err)
			return time.Minute + 200*time.Millisecond
		},
		"clock stepped back": func(*testing.T, *redisstore.Store) time.Duration { return -10 * time.Minute },
	} {
		t.Run(what, func(t *testing.T) {
			server := redistest.Start(t)
			client := server.Client()
			s := redisstore.New(client)
			ask := func(at time.Duration, h *holder) backend.Reply {
				r, err := h.ask(storeclock.With(t.Context(), base.Add(at)), 2, 0)
				require.NoError(t, err)
				require.EqualValues(t, 2, r.Grant)
				return r
			}
			old := newHolder(s, "gone7", "k", minute)
			w := ask(0, old).Window
			fields := make([]any, 0, 2*processes)
			for i := range processes {
				if i != 7 {
					fields = append(fields, fmt.Sprint("gone", i), fmt.Sprintf("%d 1 1 2", w.End))
				}
			}
			for part := range slices.Chunk(fields, 10_000) {
				require.NoError(t, client.HSet(t.Context(), "{k}:60s:own", part...).Err())
			}
			at := next(t, s)
			server.ResetStats()
			for i := range few {
				require.EqualValues(t, i+1, ask(at, newHolder(s, fmt.Sprint("new", i), "k", minute)).Clients)
			}
			require.Zero(t, server.Calls("hkeys", "hgetall", "hscan", "del", "hdel", "hrandfield"))
			require.EqualValues(t, 1, server.Calls("unlink"))
			require.EqualValues(t, few+1, client.HLen(t.Context(), "{k}:60s:own").Val(), "with the head")
			old.next.Runs = false
			require.EqualValues(t, 2, ask(at, old).Mine, "what it was granted is of the old window")
			contents, err := s.Inspect(storeclock.With(t.Context(), base.Add(at)), "k")
			require.NoError(t, err)
			require.Len(t, contents[0].Clients, few+1)
		})
	}
}

// TestForeignWindow: GitHub's scripts open a window whose end is not ours. No call of ours moves it, unless it lies
// further ahead than a window of this length can.
func TestForeignWindow(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	now := time.Now()
	ctx := func(d time.Duration) context.Context { return storeclock.With(t.Context(), now.Add(d)) }
	end := now.Unix() + 45
	require.NoError(t, rate.Run(t.Context(), client, []string{"{k}:60s"}, 3, end, now.Unix()).Err())
	r, err := charge(ctx(0), s, "k", limit10, 1)
	require.NoError(t, err)
	require.EqualValues(t, end*1000, r.Window.End)
	r, err = newHolder(s, "a", "k", limit10).ask(ctx(time.Second), 1, 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Grant)
	require.EqualValues(t, end*1000, r.Window.End)
	require.EqualValues(t, 5, r.Used)
	require.NoError(t, client.Set(t.Context(), "{k}:60s:exp", now.Unix()+90, time.Hour).Err())
	r, err = charge(ctx(0), s, "k", limit10, 1)
	require.NoError(t, err)
	require.LessOrEqual(t, r.Left, time.Minute)
	require.EqualValues(t, 6, r.Used, "and what was charged counts")
}
