package redisstore_test

import (
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

// TestLedgerLost: {k}:own is evicted or deleted, and the count is not. Its holders
// state what they hold, and nobody is charged twice.
func TestLedgerLost(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	limit := backend.Limit{Tokens: 1200, Window: time.Minute}
	holders := make([]backend.SyncRequest, 3)
	state := func(i int) backend.SyncReply {
		h := &holders[i]
		r, err := s.Sync(t.Context(), *h)
		require.NoError(t, err)
		h.Window, h.Granted, h.Returned, h.Total, h.Used = r.Window, r.Granted, r.Returned, r.Total, limit.Tokens-r.Remaining
		h.Want = 0
		return r
	}
	for i, client := range []string{"a", "b", "c"} {
		holders[i] = backend.SyncRequest{Key: "k", Client: client, Limit: limit, Want: 200, Exact: true}
		require.EqualValues(t, 200, state(i).Grant)
	}
	holders[2].Returned = 50
	require.EqualValues(t, 650, state(2).Remaining)
	taken, err := charge(t.Context(), s, "k", limit, 100)
	require.NoError(t, err)
	require.EqualValues(t, 550, taken.Remaining)

	for range 2 {
		require.EqualValues(t, 1, client.Del(t.Context(), "{k}:own").Val())
		for i := range holders {
			r := state(i)
			require.EqualValues(t, 550, r.Remaining, "holder %d", i)
			require.EqualValues(t, 200, r.Granted)
			require.Zero(t, r.Grant)
			require.EqualValues(t, i+1, r.Clients)
		}
	}

	// The count is lost with it, but for the last charges: the difference is charged.
	require.NoError(t, client.Del(t.Context(), "{k}:own").Err())
	require.NoError(t, client.Set(t.Context(), "{k}", 100, time.Minute).Err())
	for i := range holders {
		require.EqualValues(t, 550, state(i).Remaining, "holder %d", i)
	}
}

// TestLedgerOfManyProcesses: 10,000 processes have used a key in a window, and a few use it in
// the next. No call does more than a few dozen fields' work, none of the old fields counts, and
// the ledger shrinks.
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
		"taken first": func(t *testing.T, s *redisstore.Store) time.Duration {
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
			sync := func(at time.Duration, name string) backend.SyncReply {
				r, err := s.Sync(storeclock.With(t.Context(), base.Add(at)), backend.SyncRequest{Key: "k", Client: name, Limit: minute, Want: 2, Exact: true})
				require.NoError(t, err)
				return r
			}
			sync(0, "a")
			fields := make([]any, 0, 2*processes)
			for i := range processes {
				fields = append(fields, fmt.Sprint("gone", i), "2")
			}
			for part := range slices.Chunk(fields, 10_000) {
				require.NoError(t, client.HSet(t.Context(), "{k}:own", part...).Err())
			}
			at := next(t, s)
			server.ResetStats()
			for i := range few {
				r := sync(at, fmt.Sprint("new", i))
				require.EqualValues(t, 2, r.Grant, "a newcomer")
				require.EqualValues(t, i+1, r.Clients)
			}
			require.Zero(t, server.Calls("hkeys", "hgetall", "hscan", "del", "unlink"))
			require.LessOrEqual(t, server.Calls("hdel", "hrandfield"), int64(2*few))
			left := client.HLen(t.Context(), "{k}:own").Val()
			require.Less(t, left, int64(processes-10*few), "it shrinks")
			require.Greater(t, left, int64(processes-17*few), "some fields a call")
			r := sync(at, "gone7")
			require.Zero(t, r.Recovered, "what it was granted is of the old window")
			require.EqualValues(t, 2, r.Granted)
			contents, err := s.Inspect(storeclock.With(t.Context(), base.Add(at)), "k")
			require.NoError(t, err)
			require.Len(t, contents.Clients, few+1)
		})
	}
}

// TestUnknownLength: GitHub's scripts do not say how long their windows are. No call
// of ours moves one, whatever its own length, and nobody is refused for it.
func TestUnknownLength(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	now := time.Now()
	end := now.Unix() + 3600
	require.NoError(t, rate.Run(t.Context(), client, []string{"{k}"}, 3, end, now.Unix()).Err())
	for _, window := range []time.Duration{time.Second, time.Minute, time.Hour} {
		limit := backend.Limit{Tokens: 10, Window: window}
		r, err := charge(t.Context(), s, "k", limit, 1)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Zero(t, r.Length)
		require.EqualValues(t, end*1000, r.Window)
		sync, err := s.Sync(t.Context(), backend.SyncRequest{Key: "k", Client: window.String(), Limit: limit, Want: 1, Need: 1, Exact: true})
		require.NoError(t, err)
		require.EqualValues(t, 1, sync.Grant)
		require.EqualValues(t, end*1000, sync.Window)
		state, err := s.Check(t.Context(), "k", limit)
		require.NoError(t, err)
		require.Zero(t, state.Length)
	}
	// An operator may reset it. The fresh one is of the operator's length.
	fresh, err := s.Reset(t.Context(), resetK)
	require.NoError(t, err)
	require.EqualValues(t, 10, fresh.Remaining)
	require.LessOrEqual(t, fresh.Left, time.Minute)
	whole(t, client, fresh.Window)
	// Only what lies further ahead than any window can be is brought back.
	require.NoError(t, client.Set(t.Context(), "{k}:exp", now.Unix()+400*24*3600, time.Hour).Err())
	r, err := charge(t.Context(), s, "k", limit10, 1)
	require.NoError(t, err)
	require.LessOrEqual(t, r.Left, time.Minute)
}
