package redisstore_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
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
				lost, err := s.Sync(ctx, backend.SyncRequest{Key: "k", Client: "a", Limit: limit10, Want: 4, Strand: -1})
				require.NoError(t, err)
				require.EqualValues(t, 4, lost.Grant)
				require.EqualValues(t, 1, client.Del(ctx, half).Val())
				return lost
			}

			lost := lose()
			state, err := s.Check(ctx, "k", limit10)
			require.NoError(t, err)
			require.Equal(t, backend.State{Remaining: 10}, state)
			back, err := s.Refund(ctx, backend.RefundRequest{Key: "k", Window: lost.Window, Client: "r", Total: 1})
			require.NoError(t, err)
			require.Zero(t, back)
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

// whole expects both halves of the window.
func whole(t *testing.T, client *redis.Client, w backend.Window) {
	t.Helper()
	require.Equal(t, seconds(w), client.Get(t.Context(), "{k}:exp").Val())
	require.Equal(t, int64(w)+1000, client.PExpireTime(t.Context(), "{k}").Val().Milliseconds())
	require.Equal(t, int64(w)+1000+60_000, client.PExpireTime(t.Context(), "{k}:exp").Val().Milliseconds(), "it tells the length of the window")
}
