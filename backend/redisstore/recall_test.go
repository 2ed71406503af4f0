package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// visited is some processes that share a limit of 60. Each is behind a proxy, which is far away
// in comparison with the time that a busy machine takes to answer.
type visited struct {
	t        *testing.T
	server   *redistest.Server
	proxies  []*redistest.Proxy
	stores   []*redisstore.Store
	limiters []*reservoir.Limiter
	killed   any // how many connections were
}

const visits = 60 // an hour

func visit(t *testing.T, rights string) *visited {
	t.Helper()
	v := &visited{t: t, server: redistest.Start(t)}
	v.server.SetUser("user limiter on >" + aclPassword + " resetchannels &reservoir:* ~* +@all " + rights)
	for range 4 {
		proxy := redistest.NewProxy(t, v.server.Addr())
		proxy.Delay(20 * time.Millisecond)
		client := v.server.Client(redistest.User("limiter", aclPassword), func(o *redis.Options) { o.Addr = proxy.Addr() })
		v.add(redisstore.New(client), proxy)
	}
	return v
}

func (v *visited) add(store *redisstore.Store, proxy *redistest.Proxy) {
	v.t.Helper()
	l, err := reservoir.New(store, reservoir.PerHour(visits), patient)
	require.NoError(v.t, err)
	v.t.Cleanup(func() { assert.NoError(v.t, l.Close(context.Background())) })
	v.stores, v.limiters, v.proxies = append(v.stores, store), append(v.limiters, l), append(v.proxies, proxy)
}

// hear waits until all processes hear, or one of them does not.
func (v *visited) hear(hears bool, some ...*reservoir.Limiter) {
	v.t.Helper()
	for _, l := range some {
		_, err := l.Allow(v.t.Context(), "warm")
		require.NoError(v.t, err)
		require.Eventually(v.t, func() bool { return l.Stats().Unsubscribed == 0 == hears }, 30*time.Second, time.Millisecond)
	}
}

// burst has requests come to a process, eight or a few more, until they leave tokens there.
func (v *visited) burst(l *reservoir.Limiter, key string) (admitted int64) {
	v.t.Helper()
	for admitted < 8 || admitted < 12 && l.Stats().Held == 0 {
		r, err := l.Allow(v.t.Context(), key)
		require.NoError(v.t, err)
		require.True(v.t, r.Allowed)
		admitted++
	}
	require.Positive(v.t, l.Stats().Held)
	return admitted
}

// bursts has a burst come to each process but the last. After the first it does what is between.
func (v *visited) bursts(key string, between func()) (admitted int64) {
	v.t.Helper()
	for i, l := range v.limiters[:3] {
		if i == 1 {
			between()
		}
		admitted += v.burst(l, key)
	}
	return admitted
}

// untilRefused has requests come to the last process until it refuses one. It returns how many
// were admitted, and how many calls the refused one made.
func (v *visited) untilRefused(key string) (admitted, calls int64) {
	v.t.Helper()
	last := v.limiters[3]
	for {
		before := last.Stats().StoreCalls
		r, err := last.Allow(v.t.Context(), key)
		require.NoError(v.t, err)
		if !r.Allowed {
			return admitted, last.Stats().StoreCalls - before
		}
		admitted++
	}
}

// balanced closes all limiters: then the store has what was used, and nothing is lost.
func (v *visited) balanced(key string, used int64) {
	v.t.Helper()
	for i, l := range v.limiters {
		require.NoError(v.t, l.Close(context.Background()))
		s := l.Stats()
		assert.Equal(v.t, s.Taken+s.Refunded, s.Spent+s.Returned+s.Expired+s.Held, "process %d", i)
	}
	inside, err := v.stores[3].Inspect(v.t.Context(), key)
	require.NoError(v.t, err)
	assert.Equal(v.t, used, inside[0].Used)
}

// TestRecall: before a process refuses, what lies idle in others comes back, also if a message is
// lost, after connections were cut, and beside a program that runs GitHub's script.
func TestRecall(t *testing.T) {
	for name, row := range map[string]struct {
		fault    func(v *visited)
		happened func(v *visited) bool
		theirs   int64 // tokens that another program uses
	}{
		"none": {func(*visited) {}, func(*visited) bool { return true }, 0},
		"a message is lost": {
			func(v *visited) { v.proxies[0].LoseMessages(1) },
			func(v *visited) bool { return v.proxies[0].Lost() == 1 }, 0,
		},
		"connections are cut": {
			func(v *visited) {
				v.killed = v.server.Do("client", "kill", "type", "pubsub").Val()
				admin := v.server.Client()
				require.Eventually(v.t, func() bool { return admin.PubSubNumSub(t.Context(), "reservoir:").Val()["reservoir:"] == 4 }, 30*time.Second, time.Millisecond)
				v.hear(true, v.limiters...)
			},
			func(v *visited) bool { return v.killed == int64(4) }, 0,
		},
		"beside GitHub's script": {
			func(v *visited) {
				in, err := v.stores[3].Inspect(t.Context(), "k")
				require.NoError(v.t, err)
				got, err := rate.Run(t.Context(), v.server.Client(), []string{"{k}:3600s"}, 5, in[0].Window.Time().Unix(), time.Now().Unix()).Int64Slice()
				require.NoError(v.t, err)
				require.Equal(v.t, in[0].Window.Time().Unix(), got[1])
			},
			func(*visited) bool { return true }, 5,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := visit(t, "")
			v.hear(true, v.limiters...)
			published := v.server.Calls("publish")
			admitted := v.bursts("k", func() { row.fault(v) })
			more, calls := v.untilRefused("k")
			require.True(t, row.happened(v))
			require.Greater(t, v.server.Calls("publish"), published)
			require.Equal(t, visits-row.theirs, admitted+more)
			require.LessOrEqual(t, calls, int64(3))
			v.balanced("k", visits)
		})
	}
}
