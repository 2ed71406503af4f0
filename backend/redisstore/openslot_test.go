package redisstore_test

import (
	"context"
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
// can be made there, and no script needs one: none deletes what it writes next. The clock is
// ahead, so that no key expires.
func TestWholeLedgerInAnOpenSlot(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2, 0)
	s := redisstore.New(c.Client())
	base := time.Now().Add(time.Hour).Truncate(time.Second)
	at := func(d time.Duration) context.Context { return storeclock.With(t.Context(), base.Add(d)) }
	sync := func(key, client string, d time.Duration) error {
		r, err := s.Sync(at(d), backend.SyncRequest{Key: key, Client: client, Limit: limit10, Want: 2, Need: 2, Exact: true})
		assert.True(t, err != nil || r.Grant == 2, "%s %s: %v", key, client, r)
		return err
	}
	for key, row := range map[string]struct {
		call func(key string) error
		left []string // in the ledger
	}{
		"reset": {func(key string) error {
			_, err := s.Reset(at(time.Second), key, limit10)
			return err
		}, []string{"a", "b", "era", "w"}},
		"next":     {func(key string) error { return sync(key, "b", 60100*time.Millisecond) }, []string{"b", "era", "w"}},
		"newcomer": {func(key string) error { return sync(key, "c", 60100*time.Millisecond) }, []string{"c", "era", "w"}},
		"back":     {func(key string) error { return sync(key, "a", -10*time.Minute) }, []string{"a", "era", "w"}},
		"settle": {func(key string) error {
			taken, err := charge(at(60100*time.Millisecond), s, key, limit10, 3)
			if err != nil {
				return err
			}
			_, err = s.Settle(at(61*time.Second), backend.SettleRequest{Key: key, Window: taken.Window, Tokens: -1, Limit: 10})
			return err
		}, []string{"a", "b", "w"}},
	} {
		require.NoError(t, sync(key, "a", 0))
		require.NoError(t, sync(key, "b", 0))
		from, to := c.NodeOf(key), c.Nodes[0]
		if from == to {
			to = c.Nodes[1]
		}
		c.OpenSlot(from, to, c.SlotOf(key))
		assert.NoError(t, row.call(key), key)
		ledger, err := from.Client().HKeys(t.Context(), "{"+key+"}:own").Result()
		require.NoError(t, err)
		assert.ElementsMatch(t, row.left, ledger, key)
	}
}
