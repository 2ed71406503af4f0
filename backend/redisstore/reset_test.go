package redisstore_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

var resetK = backend.ResetRequest{Key: "k", Limit: limit10}

// TestResetLayout: what lies in Redis after a reset, and that no script forgets what
// the ledger says of it.
func TestResetLayout(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	old := take(t, s, "k", 10).Window
	require.Zero(t, client.Exists(t.Context(), "{k}:own").Val(), "no ledger yet")
	state, err := s.Reset(t.Context(), resetK)
	require.NoError(t, err)
	w := state.Window
	require.NotEqual(t, old, w)
	require.Equal(t, "0", client.Get(t.Context(), "{k}").Val())
	whole(t, client, w)
	require.Equal(t, map[string]string{"w": fmt.Sprintf("%d 0 0 0 0 0 1", w), "era": "1"}, client.HGetAll(t.Context(), "{k}:own").Val())
	require.Equal(t, int64(w)+1000, client.PExpireTime(t.Context(), "{k}:own").Val().Milliseconds())

	late := backend.SyncRequest{Key: "k", Client: "a", Limit: limit10, Window: old, Granted: 10, Want: 1, Exact: true}
	for i, rewrite := range []func() error{
		func() error { _, err := s.Sync(t.Context(), late); return err },
		func() error {
			_, err := s.Settle(t.Context(), backend.SettleRequest{Key: "k", Window: w, Tokens: -1, Limit: 10})
			return err
		},
		func() error { // a sign of loss, and the limit is exhausted
			_, err := s.Sync(t.Context(), backend.SyncRequest{Key: "k", Client: "c", Limit: limit10, Window: w, Granted: 10, Debt: 3})
			return err
		},
	} {
		before := client.HGet(t.Context(), "{k}:own", "w").Val()
		require.NoError(t, rewrite())
		require.Regexp(t, fmt.Sprintf(`^%d \d+ \d+ \d+ \d+ \d+ 1(\+\d+)?$`, w), client.HGet(t.Context(), "{k}:own", "w").Val(), "%d", i)
		if i != 1 { // a settlement has changed the count alone
			require.NotEqual(t, before, client.HGet(t.Context(), "{k}:own", "w").Val())
		}
		late.Client, late.Want = fmt.Sprint("late", i), 0
		got, err := s.Sync(t.Context(), late)
		require.NoError(t, err)
		require.False(t, got.Carried)
		require.Zero(t, got.Granted)
	}
}

// TestResetIsReplicated: with WithReplicaAck, a reset that a failover may forget is an
// error that says so; one that changed nothing waits for no replica.
func TestResetIsReplicated(t *testing.T) {
	p := newReplicatedPair(t)
	s := p.store(brief)
	_, err := p.store(brief).Reset(t.Context(), resetK)
	require.NoError(t, err)
	take(t, p.store(brief*500), "k", 9)
	p.link.Hold(true)
	_, err = s.Reset(t.Context(), resetK)
	require.ErrorIs(t, err, redisstore.ErrNotReplicated)
	require.Equal(t, backend.Unknown, class(t, err))
	require.Equal(t, "0", p.used(t, p.Primary))
	require.Equal(t, "9", p.used(t, p.Replicas[0]))
	other := resetK
	other.Limit.Window *= 2
	state, err := s.Reset(t.Context(), other)
	require.NoError(t, err)
	require.Equal(t, limit10.Window, state.Length)
	require.Positive(t, p.link.Held())

	p.link.Hold(false)
	_, err = p.store(brief*500).Reset(t.Context(), resetK)
	require.NoError(t, err)
	require.Equal(t, "0", p.used(t, p.Replicas[0]), "no later than the answer")
}
