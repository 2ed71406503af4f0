package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// TestOpenSlot: a reshard was interrupted and one slot is open. Its new keys are not
// served, and the error says that this is theirs alone. All other keys of the master
// are served, each at the first try, whoever calls beside them.
func TestOpenSlot(t *testing.T) {
	const each, rounds = 8, 40
	c := redistest.StartCluster(t, 3, 0)
	s := redisstore.New(c.Client(), redisstore.WithWarnings(nil))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	call := func(key string, patience time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		_, err := s.Take(ctx, backend.TakeRequest{Key: key, Limit: millions, Tokens: 1})
		return err
	}
	master, other := c.NodeOf("open"), c.Nodes[0]
	if other == master {
		other = c.Nodes[1]
	}
	c.OpenSlot(master, other, c.SlotOf("open"))
	var others []string
	for i := 0; len(others) < each; i++ {
		if key := fmt.Sprint("k", i); c.NodeOf(key) == master && c.SlotOf(key) != c.SlotOf("open") {
			others = append(others, key)
		}
	}
	for _, key := range others {
		require.NoError(t, call(key, 10*time.Second))
	}
	var told atomic.Int64
	var wg sync.WaitGroup
	for _, key := range others {
		wg.Go(func() {
			for range rounds {
				assert.NoError(t, call(key, 10*time.Second), key)
			}
		})
		wg.Go(func() {
			for range rounds {
				err := call("open", 50*time.Millisecond)
				failure, ok := errors.AsType[*backend.Error](err)
				if !assert.True(t, ok, "%v", err) {
					return
				}
				if !errors.Is(err, context.DeadlineExceeded) { // else it was still trying
					assert.True(t, failure.KeyOnly, "%v", err)
					assert.Equal(t, backend.Unavailable, failure.Class, "%v", err)
					assert.Contains(t, err.Error(), "TRYAGAIN")
					told.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.Positive(t, told.Load())
}
