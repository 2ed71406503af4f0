package redisstore_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// failoverLimit is so long that no window ends in a test, and no limiter does
// anything by its timer.
var failoverLimit = reservoir.PerHour(200_000)

// TestFailoverWithLoss promotes a replica that lagged, under limiters that go on until the
// limit is exhausted. They tell the replica what they were granted, so that less is admitted
// over the limit than was lost.
func TestFailoverWithLoss(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		batch []reservoir.Sizing
	}{
		{"adaptive", repeat(reservoir.Adaptive(1, 500), 4)}, // so small that nobody is refused before the primary dies
		{"fixed", repeat(reservoir.Fixed(50), 4)},
		{"both", append(repeat(reservoir.Adaptive(1, 500), 3), repeat(reservoir.Fixed(100), 3)...)},
	} {
		t.Run(row.name, func(t *testing.T) { testFailover(t, row.batch) })
	}
}

func repeat(s reservoir.Sizing, n int) (list []reservoir.Sizing) {
	for range n {
		list = append(list, s)
	}
	return list
}

func testFailover(t *testing.T, batch []reservoir.Sizing) {
	servers := redistest.StartReplicated(t, 1)
	primary, replica := servers.Primary.Client(), servers.Replicas[0].Client()
	link, front := servers.Link(0), redistest.NewProxy(t, servers.Primary.Addr())
	var limiters []*reservoir.Limiter
	for _, b := range batch {
		client := servers.Primary.Client(unhurried, func(o *redis.Options) { o.Addr = front.Addr() })
		limiters = append(limiters, limiterOn(t, client, failoverLimit, reservoir.WithBatch(b), patient))
	}
	var admitted atomic.Int64
	spend := func(each int64) { // or until they are refused
		var wg sync.WaitGroup
		for _, l := range limiters {
			wg.Go(func() {
				for range each {
					r, err := l.Allow(context.Background(), "k")
					if !assert.NoError(t, err) || !r.Allowed {
						return
					}
					admitted.Add(1)
				}
			})
		}
		wg.Wait()
	}
	granted := func() (n int64) {
		for _, l := range limiters {
			n += l.Stats().Taken - l.Stats().Returned
		}
		return n
	}
	used := func(client *redis.Client) int64 {
		n, err := client.Get(context.Background(), "{k}").Int64()
		require.NoError(t, err)
		return n
	}
	quiet := func() { // until the calls made ahead of need have ended
		require.Eventually(t, func() bool { return granted() == used(primary) }, 10*time.Second, time.Millisecond)
	}
	limit := failoverLimit.Tokens
	spend(5)
	quiet()
	caughtUp(t, replica, "k", used(primary))
	link.Hold(true)
	spend(limit / 2 / int64(len(batch)))
	quiet()
	require.Positive(t, link.Held())

	servers.Primary.Kill()
	link.Cut()
	servers.Promote(0)
	lost := granted() - used(replica)
	require.Greater(t, lost, limit/4)
	front.Lead(servers.Replicas[0].Addr())
	for before := int64(-1); before < admitted.Load(); { // until everybody is refused
		before = admitted.Load()
		spend(limit)
	}
	var reasserted int64
	for _, l := range limiters {
		reasserted += l.Stats().Reasserted
	}
	over := max(admitted.Load()-limit, 0)
	t.Logf("%d of %d tokens lost, %d stated again, %d admitted over the limit", lost, limit, reasserted, over)
	require.Positive(t, reasserted)
	require.Less(t, over, lost)
	require.LessOrEqual(t, limit, used(replica), "nothing remains; what was re-asserted late may be above")
}
