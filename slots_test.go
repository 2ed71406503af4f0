package reservoir_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// This file has slots that are held for long, and keys that stand in line for long.

// deaf is a store that does not return from some statements, whatever their contexts, before
// the end of the test.
type deaf struct {
	*testnet.Network
	left atomic.Int64 // so many of the next statements
	end  chan struct{}
}

func newDeaf() *deaf {
	d := &deaf{Network: testnet.Far(rtt / 4), end: make(chan struct{})}
	d.Enter = func(ctx context.Context, c *testnet.Call) context.Context {
		if c.Op == "sync" && d.left.Add(-1) >= 0 {
			<-d.end
		}
		return ctx
	}
	return d
}

// A statement that never returns, or a function of WithLimits that does not, holds up no other
// key.
func TestSlotsComeBack(t *testing.T) {
	const keys = 500
	for _, hung := range []int64{1, 40} {
		for _, where := range []string{"store", "limits"} {
			inBubble(t, fmt.Sprint(where, "/hung=", hung), func(t *testing.T) {
				d := newDeaf()
				var blocking atomic.Int64
				l := open(t, d, reservoir.PerHour(1000), reservoir.WithIdle(time.Minute), reservoir.WithBatch(reservoir.Fixed(10)),
					reservoir.WithLimits(func(string) reservoir.Limit {
						if blocking.Add(-1) >= 0 {
							<-d.end
						}
						return reservoir.PerHour(1000)
					}))
				for i := range keys {
					allow(t, l, fmt.Sprint(i), 1)
				}
				if where == "store" {
					d.left.Store(hung)
				} else {
					blocking.Store(hung)
				}
				time.Sleep(5 * time.Minute)
				assert.EqualValues(t, hung, l.Stats().Keys)
				close(d.end)
				time.Sleep(5 * time.Minute)
				assert.Zero(t, l.Stats().Keys)
				assert.EqualValues(t, keys, stats(l).Spent)
			})
		}
	}
}

// A probe that never returns does not keep the circuit open.
func TestDeafProbe(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		d := newDeaf()
		l := open(t, d, reservoir.PerHour(1000))
		breakdown(t, l, d.Network, testnet.Refuse)
		d.left.Store(2)
		d.Faults(nil)
		time.Sleep(4 * toClose)
		assert.Negative(t, d.left.Load(), "both were made")
		allow(t, l, "k", 1)
		close(d.end)
	})
}

// Keys that move to another shard while theirs is away state there what they owe.
func TestKeysInLineMove(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		const keys = 100
		on := new(atomic.Pointer[string])
		on.Store(new("old"))
		net := sharded{testnet.Far(rtt / 4), func() string { return *on.Load() }}
		l := open(t, net, reservoir.PerHour(1000), reservoir.WithFailure(reservoir.FailOpen()), reservoir.WithIdle(time.Minute), reservoir.WithBatch(reservoir.Fixed(1)))
		net.Always(testnet.Refuse)
		_, _ = l.Allow(bg, "old:stays")
		net.Faults(nil)
		for range 2 {
			for i := range keys {
				allow(t, l, fmt.Sprint(i), 1)
			}
			allow(t, l, "old:stays", 1)
			net.Always(testnet.Refuse)
		}
		require.EqualValues(t, keys+1, l.Stats().Owed)
		on.Store(new("new"))
		net.OnKey("old:stays", testnet.Refuse)
		time.Sleep(2 * time.Minute)
		assert.EqualValues(t, 1, l.Stats().Owed)
		net.Faults(nil)
		time.Sleep(toClose)
		assert.Zero(t, l.Stats().Owed)
	})
}

// Keys that are forgotten in an outage take no memory, though they stood in line.
func TestForgottenKeysLeaveTheLine(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		const keys = 20_000
		net := testnet.Far(rtt / 4)
		l := open(t, net, reservoir.PerMinute(1000), reservoir.WithIdle(time.Minute))
		breakdown(t, l, net, testnet.Refuse)
		before := heap()
		for i := range keys {
			ctx, cancel := context.WithTimeout(bg, time.Millisecond)
			require.Error(t, waitFor(ctx, l, fmt.Sprint(i), 1))
			cancel()
		}
		require.Positive(t, l.Stats().Keys)
		time.Sleep(5 * time.Minute)
		require.Zero(t, l.Stats().Keys)
		assert.Less(t, (int64(heap())-int64(before))/keys, int64(200), "bytes a key")
	})
}
