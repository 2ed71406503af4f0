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

// sides are the node that has the key's slot, and another one.
func sides(c *redistest.Cluster, key string) (from, to *redistest.Server) {
	from, to = c.NodeOf(key), c.Nodes[0]
	if from == to {
		to = c.Nodes[1]
	}
	return from, to
}

// TestFreshKeyInAnOpenSlot: a key that is nowhere is made where its slot moves to, by every call and also the first of a client
// that knows no slots, and goes on there with all that it has. One without a ledger that is still here is charged here.
func TestFreshKeyInAnOpenSlot(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2, 0)
	s := redisstore.New(c.Client())
	ctx := t.Context()
	_, _ = charge(ctx, s, "any", limit10, 1)
	for name, call := range map[string]func(s *redisstore.Store, key string) error{
		"account": func(s *redisstore.Store, key string) error {
			_, err := newHolder(s, "a.1", key, limit10).ask(ctx, 2, 0)
			return err
		},
		"charge": func(s *redisstore.Store, key string) error { _, err := charge(ctx, s, key, limit10, 2); return err },
		"check":  func(s *redisstore.Store, key string) error { _, err := s.Check(ctx, key, limit10); return err },
		"reset":  func(s *redisstore.Store, key string) error { _, err := s.Reset(ctx, key, limit10); return err },
		"hold": func(s *redisstore.Store, key string) error {
			_, err := s.Sync(ctx, backend.Statement{Key: key, Limit: limit10, Hold: time.Hour})
			return err
		},
		"roll": func(s *redisstore.Store, key string) error {
			_, err := newHolder(s, "a.1", key, rolling10).ask(ctx, 2, 0)
			return err
		},
	} {
		from, to := sides(c, name)
		c.OpenSlot(from, to, c.SlotOf(name))
		for _, known := range []bool{true, false} {
			key := keysOfSlot(c.SlotOf(name), fmt.Sprint(name, known))()
			store := s
			if !known {
				store = redisstore.New(c.Client())
			}
			for range 3 {
				require.NoError(t, call(store, key), "%s %t", name, known)
			}
			require.Zero(t, from.Client().Exists(ctx, "{"+key+"}:60s").Val())
		}
		require.Positive(t, to.Calls("asking"))
		c.Reshard(from, to, []int{c.SlotOf(name)})
		for _, known := range []bool{true, false} {
			state, err := s.Check(ctx, keysOfSlot(c.SlotOf(name), fmt.Sprint(name, known))(), limit10)
			require.NoError(t, err)
			require.Equal(t, map[string]int64{"account": 8, "charge": 4, "check": 10, "reset": 10, "hold": 0, "roll": 10}[name], state.Remaining, name)
		}
	}
	for _, key := range []string{"h1", "h2"} { // opened before the slot was on its way, without a ledger
		_, err := charge(ctx, s, key, limit10, 2)
		require.NoError(t, err)
		from, to := sides(c, key)
		c.OpenSlot(from, to, c.SlotOf(key))
		r, err := charge(ctx, s, key, limit10, 2)
		require.NoError(t, err)
		require.EqualValues(t, 4, r.Used)
		require.Equal(t, "4", from.Client().Get(ctx, "{"+key+"}:60s").Val())
		_, err = s.Sync(ctx, backend.Statement{Key: key, Limit: limit10, Hold: time.Hour})
		require.Equal(t, backend.Unavailable, class(t, err), "a hold is in the ledger, which cannot be made here")
	}
}

// TestManyAccounts: when a window begins, more than 64 accounts of old ones go at once. While the slot is on its way they stay, because
// a key that a script deletes there cannot be written again.
func TestManyAccounts(t *testing.T) {
	t.Parallel()
	const old = 70
	c := redistest.StartCluster(t, 2, 0)
	s, base, large := redisstore.New(c.Client()), time.Now().Add(time.Hour).Truncate(time.Second), backend.Limit{Tokens: 1000, Window: time.Minute}
	at := func(d time.Duration) context.Context { return storeclock.With(t.Context(), base.Add(d)) }
	for what, next := range map[string]func(key string) time.Duration{
		"next": func(string) time.Duration { return time.Minute },
		"reset": func(key string) time.Duration {
			_, err := s.Reset(at(time.Second), key, large)
			require.NoError(t, err)
			return time.Second
		},
		"charged": func(key string) time.Duration {
			_, err := charge(at(time.Minute), s, key, large, 1)
			require.NoError(t, err)
			return time.Minute
		},
		"back": func(string) time.Duration { return -10 * time.Minute },
	} {
		for _, moves := range []bool{false, true} {
			key := fmt.Sprint(what, moves)
			for i := range old {
				_, err := newHolder(s, fmt.Sprint("old", i), key, large).ask(at(0), 1, 0)
				require.NoError(t, err)
			}
			from, to := sides(c, key)
			if moves {
				c.OpenSlot(from, to, c.SlotOf(key))
			}
			r, err := newHolder(s, "new", key, large).ask(at(next(key)), 1, 0)
			require.NoError(t, err)
			require.Equal(t, []int64{1, 1}, []int64{r.Grant, r.Clients}, key)
			fields := map[bool]int64{false: 2, true: old + 2}[moves]
			require.Equal(t, fields, from.Client().HLen(t.Context(), "{"+key+"}:60s:own").Val(), "%s: with the head", key)
		}
	}
}
