package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
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
