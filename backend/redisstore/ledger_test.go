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
		holders[i] = backend.SyncRequest{Key: "k", Client: client, Limit: limit, Want: 200, Strand: -1}
		require.EqualValues(t, 200, state(i).Grant)
	}
	holders[2].Returned = 50
	require.EqualValues(t, 650, state(2).Remaining)
	taken, err := s.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit, Tokens: 100})
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

// TestRefundRepeated: a reply that is lost costs nothing, since a refund may be repeated.
func TestRefundRepeated(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	direct := redisstore.New(server.Client())
	taken := take(t, direct, "k", 8)
	s := redisstore.New(server.Client(func(o *redis.Options) { o.Addr = proxy.Addr() }))
	_, err := s.Check(t.Context(), "k", limit10) // the connection is up
	require.NoError(t, err)
	r := backend.RefundRequest{Key: "k", Client: "r", Window: taken.Window, Total: 3}
	_, err = s.Refund(t.Context(), r) // and the script is known
	require.NoError(t, err)
	server.ResetStats()
	proxy.SwallowReply("evalsha", 1)
	r.Total = 5
	total, err := s.Refund(t.Context(), r)
	require.NoError(t, err)
	require.EqualValues(t, 5, total)
	require.EqualValues(t, 2, server.Calls("evalsha"))
	require.EqualValues(t, 7, remaining(t, direct, "k"))
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
		r, err := s.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit, Tokens: 1})
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Zero(t, r.Length)
		require.EqualValues(t, end*1000, r.Window)
		sync, err := s.Sync(t.Context(), backend.SyncRequest{Key: "k", Client: window.String(), Limit: limit, Want: 1, Need: 1, Strand: -1})
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
	r, err := s.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 1})
	require.NoError(t, err)
	require.LessOrEqual(t, r.Left, time.Minute)
}
