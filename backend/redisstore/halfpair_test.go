package redisstore_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// TestHalfPair: Redis evicts keys one by one. A window of which the count or the
// end is gone is a lost one, to every script.
func TestHalfPair(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	for _, half := range []string{"{k}", "{k}:exp"} {
		t.Run("without "+half, func(t *testing.T) {
			ctx := t.Context()
			lose := func() (lost backend.SyncReply) {
				require.NoError(t, client.FlushDB(ctx).Err())
				lost, err := s.Sync(ctx, backend.SyncRequest{Key: "k", Client: "a", Limit: limit10, Want: 4, Exact: true})
				require.NoError(t, err)
				require.EqualValues(t, 4, lost.Grant)
				require.EqualValues(t, 1, client.Del(ctx, half).Val())
				return lost
			}

			lost := lose()
			state, err := s.Check(ctx, "k", limit10)
			require.NoError(t, err)
			require.Equal(t, backend.State{Remaining: 10}, state)
			settled, err := s.Settle(ctx, backend.SettleRequest{Key: "k", Window: lost.Window, Tokens: -1, Limit: 10})
			require.NoError(t, err)
			require.False(t, settled.Open)
			before := time.Now()
			r := take(t, s, "k", 1)
			require.True(t, r.Allowed)
			require.EqualValues(t, 9, r.Remaining, "a window that opens")
			require.WithinRange(t, r.Window.Time(), before.Add(time.Minute-time.Second), time.Now().Add(time.Minute+time.Second))
			whole(t, client, r.Window)

			lost = lose()
			sync, err := s.Sync(ctx, backend.SyncRequest{Key: "k", Client: "a", Limit: limit10, Window: lost.Window, Granted: 4})
			require.NoError(t, err)
			require.Equal(t, lost.Window, sync.Window, "the holder tells what it was")
			require.EqualValues(t, 4, sync.Reasserted)
			require.EqualValues(t, 6, sync.Remaining)
			require.True(t, sync.Learning)
			whole(t, client, sync.Window)
		})
	}
}

// TestHalfPairBeforeATake: a take that opens a window of the calendar again sees no ledger.
// What a client was granted before is charged to the new window at its next statement, also
// if that window was lost again.
func TestHalfPairBeforeATake(t *testing.T) {
	client := redistest.Start(t).Client()
	s, ctx, limit := redisstore.New(client), t.Context(), backend.Limit{Tokens: 100, Window: 24 * time.Hour}
	for _, half := range []string{"{k}", "{k}:exp"} {
		require.NoError(t, client.FlushDB(ctx).Err())
		start := time.Now()
		end := backend.Window(start.Add(12 * time.Hour).UnixMilli())
		q := backend.SyncRequest{Key: "k", Client: "a", Limit: limit, End: end, Want: 90, Need: 90, Exact: true}
		r, err := s.Sync(ctx, q)
		require.NoError(t, err)
		require.EqualValues(t, 90, r.Grant)
		for i := range 3 {
			require.EqualValues(t, 1, client.Del(ctx, half).Val())
			later := storeclock.With(ctx, start.Add(time.Duration(i)*1001*time.Millisecond))
			took, err := s.Take(later, backend.TakeRequest{Key: "k", Limit: limit, Tokens: 1, End: end})
			require.NoError(t, err)
			require.EqualValues(t, 99, took.Remaining)
			q.Want, q.Need, q.Window, q.Granted, q.Total, q.Used = 0, 0, r.Window, r.Granted, r.Total, 90
			r, err = s.Sync(later, q)
			require.NoError(t, err)
			require.True(t, r.Carried)
			require.Equal(t, took.Window, r.Window)
			require.EqualValues(t, 9, r.Remaining)
		}
	}
}

// TestCountOfAWindowThatIsOver: it expires long before the end of its window does, which is
// no loss. The next window ends at a whole second.
func TestCountOfAWindowThatIsOver(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	require.NoError(t, client.Set(t.Context(), "{k}:exp", time.Now().Unix()-2, time.Minute).Err())
	require.Zero(t, take(t, s, "k", 1).Window%1000)
}

// whole expects both halves of the window.
func whole(t *testing.T, client *redis.Client, w backend.Window) {
	t.Helper()
	require.Equal(t, seconds(w), client.Get(t.Context(), "{k}:exp").Val())
	require.Equal(t, int64(w)+1000, client.PExpireTime(t.Context(), "{k}").Val().Milliseconds())
	require.Equal(t, int64(w)+1000+60_000, client.PExpireTime(t.Context(), "{k}:exp").Val().Milliseconds(), "it tells the length of the window")
}
