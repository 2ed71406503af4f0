package redisstore_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// fetchTimeout is the limiter's default.
const fetchTimeout = 100 * time.Millisecond

var millions = backend.Limit{Tokens: 1_000_000, Window: time.Hour}

// documented gives a client the options that the package comment asks for.
func documented(o *redis.Options) {
	o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
	o.DialTimeout, o.ReadTimeout = 500*time.Millisecond, 200*time.Millisecond
}

func documentedCluster(o *redis.ClusterOptions) {
	o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
	o.DialTimeout, o.ReadTimeout = 500*time.Millisecond, 200*time.Millisecond
}

// unhurried is for calls that a busy machine must not fail.
func unhurried(o *redis.Options) {
	documented(o)
	o.DialTimeout, o.ReadTimeout = 10*time.Second, 10*time.Second
}

// away returns a dial function whose connections open after a round trip, as a
// proxy's do not.
func away(trip time.Duration, proxies ...*redistest.Proxy) func(context.Context, string, string) (net.Conn, error) {
	dial := redistest.Dialer(proxies...)
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		select {
		case <-time.After(trip):
		case <-ctx.Done():
			return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
		}
		return dial(ctx, network, addr)
	}
}

// farClients are clients of servers that are a round trip away, by their kind.
var farClients = map[string]func(t *testing.T, trip time.Duration) redis.UniversalClient{
	"plain": func(t *testing.T, trip time.Duration) redis.UniversalClient {
		server := redistest.Start(t)
		proxy := redistest.NewProxy(t, server.Addr())
		proxy.Delay(trip)
		return server.Client(documented, func(o *redis.Options) { o.Dialer = away(trip, proxy) })
	},
	"TLS": func(t *testing.T, trip time.Duration) redis.UniversalClient {
		server := redistest.StartTLS(t, serverName)
		proxy := redistest.NewProxy(t, server.Addr())
		proxy.Delay(trip)
		return server.Client(documented, func(o *redis.Options) {
			o.TLSConfig = nil
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := away(trip, proxy)(ctx, network, addr)
				if err != nil {
					return nil, err
				}
				secure := tls.Client(conn, server.Config(serverName))
				return secure, secure.HandshakeContext(ctx)
			}
		})
	},
	"cluster": func(t *testing.T, trip time.Duration) redis.UniversalClient {
		cluster := redistest.StartCluster(t, 3, 0)
		var proxies []*redistest.Proxy
		for _, node := range cluster.Nodes {
			proxy := redistest.NewProxy(t, node.Addr())
			proxy.Delay(trip)
			proxies = append(proxies, proxy)
		}
		return cluster.Client(func(o *redis.ClusterOptions) {
			o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
			o.DialTimeout, o.ReadTimeout = 500*time.Millisecond, 200*time.Millisecond
			o.Dialer = away(trip, proxies...)
		})
	},
}

// TestFar: connecting to a server takes several round trips, longer than any
// caller waits, and so does the first load of a script. It is done once, and later
// callers find a connection. At 80 ms a busy machine may be too slow for a limiter's
// 100, but not for ever.
func TestFar(t *testing.T) {
	t.Parallel()
	const calls = 12
	for kind, dial := range farClients {
		for trip, least := range map[time.Duration]int{40 * time.Millisecond: calls / 2, 80 * time.Millisecond: 1} {
			t.Run(fmt.Sprint(kind, trip), func(t *testing.T) {
				t.Parallel()
				s := redisstore.New(dial(t, trip))
				began := time.Now()
				require.Eventually(t, func() bool { return takeWithin(s, "k", fetchTimeout) == nil }, 20*time.Second, time.Millisecond)
				t.Logf("served after %v", time.Since(began).Round(time.Millisecond))
				served := 0
				for i := range calls {
					if takeWithin(s, fmt.Sprint("k", i%2), fetchTimeout) == nil {
						served++
					}
				}
				assert.GreaterOrEqual(t, served, least, "of %d", calls)
			})
		}
	}
}

// TestFarLimiter: so it is by way of a limiter with the default options.
func TestFarLimiter(t *testing.T) {
	t.Parallel()
	for kind, dial := range farClients {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			l, err := reservoir.New(redisstore.New(dial(t, 40*time.Millisecond)), reservoir.PerHour(1_000_000))
			require.NoError(t, err)
			defer l.Close(context.Background())
			require.Eventually(t, func() bool {
				r, err := l.Allow(t.Context(), "k")
				return err == nil && r.Allowed
			}, 20*time.Second, time.Millisecond)
		})
	}
}

// takeWithin makes a call whose context can be cancelled, as a request's can.
func takeWithin(s *redisstore.Store, key string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := s.Take(ctx, backend.TakeRequest{Key: key, Limit: millions, Tokens: 1})
	return err
}

// TestFarCrowd: many callers at once need more connections than the first. Once
// those are there, all are served in time.
func TestFarCrowd(t *testing.T) {
	t.Parallel()
	const callers, rounds = 40, 12
	for _, trip := range []time.Duration{40 * time.Millisecond, 80 * time.Millisecond} {
		t.Run(fmt.Sprint(trip), func(t *testing.T) {
			t.Parallel()
			s := redisstore.New(farClients["plain"](t, trip))
			round := func(n int) (served int64) {
				var sum atomic.Int64
				var wg sync.WaitGroup
				for i := range n {
					wg.Go(func() {
						for range rounds {
							if takeWithin(s, fmt.Sprint(i), fetchTimeout) == nil {
								sum.Add(1)
							}
						}
					})
				}
				wg.Wait()
				return sum.Load()
			}
			first := round(callers)
			second := round(callers)
			t.Logf("served %d, then %d of %d", first, second, callers*rounds)
			assert.GreaterOrEqual(t, second, int64(callers*rounds/2))
		})
	}
}
