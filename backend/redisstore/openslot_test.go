package redisstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// TestWholeLedgerInAnOpenSlot: the slot is on its way and its keys are all still here. No key
// can be made there, and no script needs one: none deletes what it writes next, even from a ledger that it would tidy. The clock is
// ahead, so that no key expires.
func TestWholeLedgerInAnOpenSlot(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2, 0)
	s := redisstore.New(c.Client())
	base := time.Now().Add(time.Hour).Truncate(time.Second)
	at := func(d time.Duration) context.Context { return storeclock.With(t.Context(), base.Add(d)) }
	for name, call := range map[string]func(key string, a *holder) error{
		"reset": func(key string, a *holder) error {
			_, err := s.Reset(at(time.Second), key, limit10)
			if err == nil {
				_, err = a.ask(at(time.Second), 2, 0)
			}
			return err
		},
		"next": func(key string, a *holder) error {
			a.next.Runs = false
			_, err := a.ask(at(60100*time.Millisecond), 2, 0)
			return err
		},
		"newcomer": func(key string, _ *holder) error {
			_, err := newHolder(s, "c", key, limit10).ask(at(60100*time.Millisecond), 2, 0)
			return err
		},
		"back": func(key string, a *holder) error { _, err := a.ask(at(-10*time.Minute), 2, 0); return err },
		"charge": func(key string, _ *holder) error {
			_, err := charge(at(60100*time.Millisecond), s, key, limit10, 3)
			return err
		},
		"check": func(key string, _ *holder) error { _, err := s.Check(at(0), key, limit10); return err },
	} {
		key := name
		large := backend.Limit{Tokens: 1000, Window: time.Minute}
		var a *holder
		for i := range 70 {
			a = newHolder(s, fmt.Sprint("p.", i), key, large)
			_, err := a.ask(at(0), 1, 0)
			require.NoError(t, err)
		}
		from, to := sides(c, key)
		c.OpenSlot(from, to, c.SlotOf(key))
		assert.NoError(t, call(key, a), key)
		require.GreaterOrEqual(t, from.Client().HLen(t.Context(), "{"+key+"}:60s:own").Val(), int64(71), key)
	}
}

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
			require.Equal(t, map[string]int64{"account": 8, "charge": 4, "check": 10, "reset": 10, "roll": 10}[name], state.Remaining, name)
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
	}
}
