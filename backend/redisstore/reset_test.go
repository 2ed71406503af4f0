package redisstore_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// TestResetLayout: what lies in Redis after a reset, also of a counter that has no ledger yet or no window, and that what
// is void stays so.
func TestResetLayout(t *testing.T) {
	client := redistest.Start(t).Client()
	s, ctx := redisstore.New(client), t.Context()
	const count, end, own = "{k}:60s", "{k}:60s:exp", "{k}:60s:own"
	h := newHolder(s, "a.1", "k", limit10)
	var last int64
	for i, before := range []func() backend.Window{
		func() backend.Window { return backend.Window{} },
		func() backend.Window { return take(t, s, "k", 10).Window },
		func() backend.Window {
			r, err := h.ask(ctx, 4, 0)
			require.NoError(t, err)
			return r.Window
		},
		func() backend.Window { return backend.Window{Gen: last} },
	} {
		want := before()
		void, err := s.Reset(ctx, "k", limit10)
		require.NoError(t, err)
		require.Equal(t, want, void, "%d", i)
		require.Equal(t, "0", client.Get(ctx, count).Val())
		require.Equal(t, "0", client.Get(ctx, end).Val())
		head, clients := client.HGet(ctx, own, "head").Val(), int64(0)
		gen := int64(0)
		_, err = fmt.Sscanf(head, "0.%d 0 %d", &gen, &clients)
		require.NoError(t, err, head)
		require.Greater(t, gen, last, "each reset begins a generation")
		last = gen
		at := expiries(t, client, count)
		require.Equal(t, []int64{at[0], at[0], at[0]}, at)
		require.EqualValues(t, 10, remaining(t, s, "k"))
	}
	require.EqualValues(t, 4, h.next.Mine, "the holder has not heard of it")
	r, err := h.ask(ctx, 0, 0)
	require.NoError(t, err)
	require.Zero(t, r.Mine)
	require.Zero(t, r.Window.End, "what it states is charged to nobody")
	require.EqualValues(t, 10, remaining(t, s, "k"))
	r, err = h.ask(ctx, 3, 0)
	require.NoError(t, err)
	require.EqualValues(t, 3, r.Mine)
	require.Equal(t, last, r.Window.Gen)
}

// TestResetIsReplicated: with WithReplicaAck, a reset that a failover may forget is an
// error that says so.
func TestResetIsReplicated(t *testing.T) {
	p := newReplicatedPair(t)
	take(t, p.store(brief*500), "k", 9)
	p.link.Hold(true)
	_, err := p.store(brief).Reset(t.Context(), "k", limit10)
	require.ErrorIs(t, err, redisstore.ErrNotReplicated)
	require.Equal(t, backend.Unknown, class(t, err))
	require.Equal(t, "0", p.used(t, p.Primary))
	require.Equal(t, "9", p.used(t, p.Replicas[0]))
	require.Positive(t, p.link.Held())

	p.link.Hold(false)
	_, err = p.store(brief*500).Reset(t.Context(), "k", limit10)
	require.NoError(t, err)
	require.Equal(t, "0", p.used(t, p.Replicas[0]), "no later than the answer")
}
