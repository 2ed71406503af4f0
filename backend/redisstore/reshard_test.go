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

// TestInspectFollowsASlot: a look at a key whose slot has moved asks for the new slot table. While the slot moves, a key of which
// something has left is not taken for one without a window.
func TestInspectFollowsASlot(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	s := redisstore.New(c.Client())
	key := keysIn(c, c.SlotsOf(c.Nodes[0]), "k", 1)[0]
	_, err := newHolder(s, "a.1", key, millions).ask(t.Context(), 7, 0)
	require.NoError(t, err)
	c.OpenSlot(c.Nodes[0], c.Nodes[1], c.SlotOf(key))
	got, err := s.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.EqualValues(t, 7, got[0].Used)
	for _, part := range []string{":own", "", ":exp"} {
		c.Nodes[0].MigrateKeys(c.Nodes[1], "{"+key+"}:3600s"+part)
		_, err = s.Inspect(t.Context(), key)
		require.ErrorContains(t, err, "slot moves")
		require.Equal(t, backend.Unavailable, class(t, err))
	}
	c.Reshard(c.Nodes[0], c.Nodes[1], []int{c.SlotOf(key)})
	_, err = s.Inspect(t.Context(), key)
	require.ErrorContains(t, err, "MOVED")
	require.Equal(t, backend.Unavailable, class(t, err))
	require.Eventually(t, func() bool {
		got, err := s.Inspect(t.Context(), key)
		return err == nil && len(got) == 1 && got[0].Used == 7
	}, 20*time.Second, 10*time.Millisecond)
}

// keysIn returns n keys whose slots are among the list's.
func keysIn(c *redistest.Cluster, list []int, name string, n int) (keys []string) {
	in := make(map[int]bool)
	for _, slot := range list {
		in[slot] = true
	}
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint(name, i); in[c.SlotOf(key)] {
			keys = append(keys, key)
		}
	}
	return keys
}
