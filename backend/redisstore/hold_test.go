package redisstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// hold holds a limit for d.
func hold(t *testing.T, ctx context.Context, s *redisstore.Store, l backend.Limit, d time.Duration) backend.Reply {
	t.Helper()
	r, err := s.Sync(ctx, backend.Statement{Key: "k", Limit: l, Hold: d})
	require.NoError(t, err)
	require.Zero(t, r.Remaining)
	return r
}

// TestHoldLayout: what lies in Redis while a limit is held. All keys of the counter last as long as the hold, so that none
// is missing alone while a slot moves, and no shorter than before.
func TestHoldLayout(t *testing.T) {
	client := redistest.Start(t).Client()
	s, base := redisstore.New(client), time.Now().Add(time.Hour).Truncate(time.Second)
	at := func(d time.Duration) context.Context { return storeclock.With(t.Context(), base.Add(d)) }
	ms := func(d time.Duration) int64 { return base.Add(d).UnixMilli() }
	head := func() string { return client.HGet(t.Context(), "{k}:60s:own", "head").Val() }
	last := func(want int64) {
		t.Helper()
		require.Equal(t, []int64{want, want, want}, expiries(t, client, "{k}:60s"))
	}

	hold(t, at(0), s, limit10, time.Minute) // of a counter that has no key
	require.Equal(t, fmt.Sprintf("0 0 0!%d", ms(time.Minute)), head())
	last(ms(61 * time.Second))
	hold(t, at(0), s, limit10, time.Second)
	require.Equal(t, fmt.Sprintf("0 0 0!%d", ms(time.Minute)), head(), "it is not shortened")

	h := newHolder(s, "a.1", "k", limit10)
	_, err := h.ask(at(time.Minute), 3, 0) // when it is over
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%d 3 1", ms(2*time.Minute)), head())
	last(ms(181 * time.Second))
	hold(t, at(90*time.Second), s, limit10, 10*time.Second)
	last(ms(181 * time.Second)) // as the window wants it
	hold(t, at(100*time.Second), s, limit10, time.Hour)
	require.Equal(t, fmt.Sprintf("%d 3 1!%d", ms(2*time.Minute), ms(time.Hour+100*time.Second)), head())
	last(ms(time.Hour + 101*time.Second))
	_, err = h.ask(at(2*time.Minute), 1, 0)
	require.NoError(t, err)
	all, err := s.Inspect(at(2*time.Minute), "k")
	require.NoError(t, err)
	require.Equal(t, []backend.Contents{{Counter: "60s", Held: time.Hour - 20*time.Second}}, all, "of an operator who asks")
	_, err = s.Reset(at(3*time.Minute), "k", limit10)
	require.NoError(t, err)
	require.NotContains(t, head(), "!")
	last(ms(4*time.Minute + time.Second))

	require.NoError(t, client.FlushAll(t.Context()).Err())
	hold(t, at(0), s, limit10, time.Hour)
	h.next.Window, h.next.Mine, h.next.Runs = backend.Window{End: ms(30 * time.Second)}, 3, true
	r, err := h.ask(at(0), 1, 0)
	require.NoError(t, err)
	require.EqualValues(t, 3, r.Used, "taken over")
	last(ms(time.Hour + time.Second))

	hold(t, t.Context(), s, rolling10, time.Hour)
	require.InDelta(t, 3601_000, client.PTTL(t.Context(), "{k}:60s:roll").Val().Milliseconds(), 5000)
	hold(t, t.Context(), s, rolling10, 2*time.Hour)
	roll(t, s, "k", 1)
	require.InDelta(t, 7201_000, client.PTTL(t.Context(), "{k}:60s:roll").Val().Milliseconds(), 5000, "in the bucket of the first")
	_, err = s.Reset(t.Context(), "k", rolling10)
	require.NoError(t, err)
	require.InDelta(t, 121_000, client.PTTL(t.Context(), "{k}:60s:roll").Val().Milliseconds(), 5000)
}
