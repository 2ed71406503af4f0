package redisstore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// masterName is the name under which Sentinels watch a primary.
const masterName = "mymaster"

// sentinelConfig takes the port, the directory, the master's name, its host and port, and the
// quorum. The times are short, for tests that wait for a failover, and long enough for a busy
// machine not to cause one.
const sentinelConfig = `
bind 127.0.0.1
port %d
dir %q
protected-mode no
sentinel monitor %[3]s %[4]s %[5]s %[6]d
sentinel down-after-milliseconds %[3]s 1000
sentinel failover-timeout %[3]s 3000
`

// startSentinels runs n Sentinels that watch r, and returns when they have found the replicas
// and each other. They promote a replica some two to four seconds after the primary is gone,
// if a majority of them finds it down.
func startSentinels(t *testing.T, r *redistest.Replicated, n int) (all []*redistest.Server) {
	t.Helper()
	host, port, _ := strings.Cut(r.Primary.Addr(), ":")
	for range n {
		all = append(all, redistest.StartWith(t, func(dir string, own int) []string {
			path := filepath.Join(dir, "sentinel.conf") // a Sentinel keeps its state there
			config := fmt.Sprintf(sentinelConfig, own, dir, masterName, host, port, n/2+1)
			require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
			return []string{path, "--sentinel"}
		}))
	}
	want := fmt.Sprintf("status=ok,address=%s,slaves=%d,sentinels=%d", r.Primary.Addr(), len(r.Replicas), n)
	for _, one := range all {
		require.Eventually(t, func() bool {
			info, _ := one.Do("info", "sentinel").Text()
			return strings.Contains(info, want)
		}, 30*time.Second, 20*time.Millisecond, want)
	}
	return all
}

// failoverClient returns a client that asks the Sentinels for the primary.
func failoverClient(t *testing.T, sentinels []*redistest.Server) *redis.Client {
	o := &redis.FailoverOptions{MasterName: masterName, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true}
	for _, one := range sentinels {
		o.SentinelAddrs = append(o.SentinelAddrs, one.Addr())
	}
	client := redis.NewFailoverClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// failoverLimit is so long that no window ends in a test.
var failoverLimit = reservoir.PerHour(200_000)

// TestSentinelFailover kills a primary that three Sentinels watch, under two
// limiters. They find the new one by themselves, and the key's window goes on there
// with all that was charged.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	servers := redistest.StartReplicated(t, 1)
	sentinels := startSentinels(t, servers, 3)
	limiters := make([]*reservoir.Limiter, 2)
	for i := range limiters {
		client := failoverClient(t, sentinels)
		l, err := reservoir.New(redisstore.New(client), failoverLimit,
			reservoir.WithFixedBatch(100), reservoir.WithFetchTimeout(time.Second))
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		limiters[i] = l
	}
	var admitted int64
	spend := func(l *reservoir.Limiter, most int64) (reset time.Time, err error) {
		for range most {
			r, err := l.Allow(t.Context(), "k")
			if err != nil || !r.Allowed {
				return r.Reset, err
			}
			admitted++
			reset = r.Reset
		}
		return reset, nil
	}
	before, err := spend(limiters[0], 5050)
	require.NoError(t, err)
	_, err = spend(limiters[1], 3010)
	require.NoError(t, err)
	primary, replica := servers.Primary.Client(), servers.Replicas[0].Client()
	require.Eventually(t, func() bool { // batches are ordered ahead, so both may still change
		return primary.Get(t.Context(), "{k}:3600s").Val() == replica.Get(t.Context(), "{k}:3600s").Val()
	}, 5*time.Second, 2*time.Millisecond)

	servers.Primary.Kill()
	for i, l := range limiters {
		require.Eventually(t, func() bool {
			reset, err := spend(l, 1000) // more than is in stock
			return err == nil && reset.Equal(before)
		}, 60*time.Second, 10*time.Millisecond, "limiter %d", i)
	}
	require.Eventually(t, func() bool { // the Sentinel that is asked may learn of it last
		addr, _ := sentinels[0].Do("sentinel", "get-master-addr-by-name", masterName).StringSlice()
		return strings.Join(addr, ":") == servers.Replicas[0].Addr()
	}, 10*time.Second, 10*time.Millisecond)

	for _, l := range limiters { // one of the Sentinels may still name the dead one
		require.Eventually(t, func() bool {
			_, err := spend(l, failoverLimit.Tokens)
			return err == nil
		}, 10*time.Second, 10*time.Millisecond)
	}
	require.LessOrEqual(t, admitted, failoverLimit.Tokens, "one limit over both servers")
	require.GreaterOrEqual(t, admitted, failoverLimit.Tokens-200, "and nothing of it is lost but what is in stock")
}
