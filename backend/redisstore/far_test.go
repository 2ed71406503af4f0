package redisstore_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

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
		server := startTLS(t, serverName)
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
		return cluster.Client(documentedCluster, func(o *redis.ClusterOptions) { o.Dialer = away(trip, proxies...) })
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

// takeWithin makes a call whose context can be cancelled, as a request's can.
func takeWithin(s *redisstore.Store, key string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := charge(ctx, s, key, millions, 1)
	return err
}

// TestVeryFar is a limiter with WithFetchTimeout(5s), by Open, before replies that take longer than callers usually wait. The
// client's timeouts end no call before that.
func TestVeryFar(t *testing.T) {
	t.Parallel()
	const timeout, tokens = 5 * time.Second, 2
	for trip, modes := range map[time.Duration]map[string][]reservoir.Option{
		210 * time.Millisecond: {"batched": nil, "direct": {reservoir.WithDirect()}},
		600 * time.Millisecond: {"batched": nil, "direct": {reservoir.WithDirect()}},
	} {
		t.Run(trip.String(), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			proxy := redistest.NewProxy(t, server.Addr())
			proxy.Delay(trip)
			store, err := redisstore.Open("redis://" + proxy.Addr())
			require.NoError(t, err)
			defer store.Close()
			for name, opts := range modes {
				l, err := reservoir.New(store, reservoir.PerHour(tokens), append(opts, reservoir.WithFetchTimeout(timeout), reservoir.WithName(name))...)
				require.NoError(t, err)
				admitted := 0
				for range tokens + 1 {
					r, err := l.Allow(t.Context(), "k")
					require.NoError(t, err)
					if r.Allowed {
						admitted++
					}
				}
				require.Equal(t, tokens, admitted)
				if name == "direct" {
					require.NoError(t, l.Reset(t.Context(), "k"))
					r, err := l.Check(t.Context(), "k")
					require.NoError(t, err)
					require.EqualValues(t, tokens, r.Remaining)
				}
				require.Eventually(t, func() bool { return l.Stats().Unsubscribed == 0 }, 30*time.Second, time.Millisecond)
				require.NoError(t, l.Close(context.Background()))
			}
			require.Positive(t, proxy.Delayed())
		})
	}
}

// TestShortTimeouts: if a timeout of the client ends a call before the caller's own, the error and Verify name it.
func TestShortTimeouts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	s := redisstore.New(server.Client(unhurried, noGreeting, func(o *redis.Options) { o.Addr, o.ReadTimeout = proxy.Addr(), 50*time.Millisecond }))
	proxy.Delay(10 * time.Second)
	require.ErrorContains(t, takeWithin(s, "k", time.Minute), "no answer within the client's ReadTimeout")
	require.ErrorContains(t, s.Verify(t.Context()), "no answer within the client's ReadTimeout")
	require.Positive(t, proxy.Delayed())
	require.NotContains(t, takeWithin(s, "k", time.Millisecond).Error(), "ReadTimeout", "the caller was in a greater hurry")
}

// TestPoolInUse: if others use all connections of the pool, the error and Verify say so.
func TestPoolInUse(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(unhurried, func(o *redis.Options) { o.PoolSize = 2 })
	s := redisstore.New(client)
	require.NoError(t, s.Verify(t.Context()))
	for range 2 {
		go func() { _ = client.BLPop(t.Context(), 0, "never").Err() }() // until the client is closed
	}
	require.Eventually(t, func() bool { return client.PoolStats().IdleConns == 0 && client.PoolStats().TotalConns == 2 }, 10*time.Second, time.Millisecond)
	err := takeWithin(s, "k", fetchTimeout)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, backend.Unavailable, class(t, err))
	for _, err := range []error{err, s.Verify(t.Context())} {
		require.ErrorContains(t, err, "all 2 connections of the client's pool are in use")
	}
}

// TestForgottenConnections: a load balancer forgets connections that are idle, without a word. The client drops them before, so no
// call is lost on one. A client that keeps them loses several, which shows that they were forgotten.
func TestForgottenConnections(t *testing.T) {
	t.Parallel()
	const idle = 100 * time.Millisecond
	for keep, kept := range map[time.Duration]bool{idle: false, time.Hour: true} {
		proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
		o, err := redisstore.Options("redis://" + proxy.Addr())
		require.NoError(t, err)
		require.LessOrEqual(t, o.ConnMaxIdleTime, time.Minute)
		o.ConnMaxIdleTime = keep
		client := redis.NewUniversalClient(o)
		defer client.Close()
		s := redisstore.New(client)
		proxy.Delay(50 * time.Millisecond) // so that several are in use at the same time
		var calls errgroup.Group
		for i := range 4 {
			calls.Go(func() error { return takeWithin(s, fmt.Sprint("k", i), 10*time.Second) })
		}
		require.NoError(t, calls.Wait())
		proxy.Delay(0)
		require.Eventually(t, func() bool { return client.PoolStats().IdleConns >= 3 }, 10*time.Second, time.Millisecond)
		proxy.Forget()
		last := time.Now()
		require.Eventually(t, func() bool { return time.Since(last) > 2*idle }, 10*time.Second, time.Millisecond)
		lost := 0
		for range 10 {
			if takeWithin(s, "k", time.Second) != nil {
				lost++
			}
		}
		require.Equal(t, kept, lost > 1, "%d calls are lost", lost)
		require.Equal(t, kept, proxy.Forgotten() > 0)
	}
}
