package reservoir

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/memstore"
)

// A key that was made before the store knew its shards has a breaker of its own
// shard once it does.
func TestShardIsFoundLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &late{sharded: sharded{overNetwork(memstore.New(), 0)}}
		l := open(t, net, PerMinute(100), WithBatch(Fixed(1)))
		allow(t, l, "well:1", 1)
		net.knows.Store(true)
		net.set(always(hang))
		for i := range failuresToOpen {
			_, err := l.Allow(context.Background(), fmt.Sprint("sick:", i))
			assert.Error(t, err)
		}
		synctest.Wait()
		net.set(nil)
		assert.True(t, allow(t, l, "well:1", 1).Allowed)
		e := l.table.get("well:1")
		e.mu.Lock()
		defer e.mu.Unlock()
		assert.Equal(t, "well", e.shard.name)
	})
}

// A key that moves to another shard is answered for by that one's breaker.
func TestShardMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &moving{sharded: sharded{overNetwork(memstore.New(), 0)}}
		net.to.Store("sick")
		told := make(chan ShardState, 2)
		l := open(t, net, PerMinute(100), WithBatch(Fixed(1)),
			WithHooks(Hooks{ShardState: func(s ShardState) { told <- s }}))
		allow(t, l, "k", 1)
		net.set(always(hang))
		for range failuresToOpen {
			_, err := l.Allow(context.Background(), "k")
			assert.Error(t, err)
		}
		synctest.Wait()
		net.set(nil)
		_, err := l.Allow(context.Background(), "k")
		assert.ErrorIs(t, err, errAway)
		net.to.Store("well")
		assert.True(t, allow(t, l, "k", 1).Allowed)

		// Nobody asks the other one any more. It is not told of as away for ever.
		require.True(t, (<-told).Away)
		time.Sleep(longestPause)
		require.Empty(t, told)
		allow(t, l, "k", 1)
		require.Equal(t, ShardState{Shard: "sick"}, <-told)
		_, known := l.shards.Load("sick")
		assert.False(t, known)
		_, known = l.shards.Load("well")
		assert.True(t, known)
	})
}

// A probe is the affair of the shard that asked for it, also when its key moves
// while it is sent: else that shard would wait for its outcome for ever.
func TestShardMovesUnderProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &moving{sharded: sharded{overNetwork(memstore.New(), 0)}}
		net.to.Store("sick")
		l := open(t, net, PerMinute(100), WithBatch(Fixed(1)))
		net.set(always(hang))
		for range failuresToOpen {
			_, err := l.Allow(context.Background(), "k")
			assert.Error(t, err)
		}
		synctest.Wait()
		net.set(nil)
		time.Sleep(longestPause) // a probe is due
		sick := l.shardOf("k")
		net.leaves.Store("well")
		calls := net.count("")
		_, err := l.Allow(context.Background(), "k") // which sends it
		assert.ErrorIs(t, err, errAway)
		synctest.Wait()
		require.Equal(t, calls+1, net.count(""))
		require.Equal(t, "well", net.Shard("k"), "the key did not move")
		assert.False(t, sick.open.Load())
		net.to.Store("sick")
		assert.True(t, allow(t, l, "k", 1).Allowed)
	})
}

// moving is a store of one shard at a time.
type moving struct {
	sharded
	to     atomic.Value
	leaves atomic.Value // for this one, as soon as to has been told once more; "" = it stays
}

func (s *moving) Shard(string) string {
	if next, ok := s.leaves.Swap("").(string); ok && next != "" {
		return s.to.Swap(next).(string)
	}
	return s.to.Load().(string)
}

type late struct {
	sharded
	knows atomic.Bool
}

func (s *late) Shard(key string) string {
	if s.knows.Load() {
		return s.sharded.Shard(key)
	}
	return ""
}
