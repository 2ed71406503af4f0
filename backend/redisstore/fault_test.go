package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// patience is what a call may take on a busy machine after its context has ended.
// Without a bound of ours, go-redis' own time-outs would make it many seconds.
const patience = time.Second

// faulty is a store behind a proxy, with go-redis' default options, and what
// executes its commands.
type faulty struct {
	*redisstore.Store
	client redis.UniversalClient
	limit  backend.Limit
	proxy  *redistest.Proxy
	server string // one's address
	calls  func(...string) int64
	reset  func()
}

func newFaulty(t *testing.T, opts ...func(*redis.Options)) *faulty {
	t.Helper()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := server.Client(append(opts, func(o *redis.Options) { o.Addr = proxy.Addr() })...)
	return ready(t, &faulty{redisstore.New(client), client, limit10, proxy, server.Addr(), server.Calls, server.ResetStats})
}

func newFaultyCluster(t *testing.T) *faulty {
	t.Helper()
	cluster := redistest.StartCluster(t, 3, 0)
	proxy := redistest.NewProxy(t, cluster.NodeOf("{k}").Addr())
	client := cluster.Client(func(o *redis.ClusterOptions) { o.Dialer = redistest.Dialer(proxy) })
	return ready(t, &faulty{redisstore.New(client), client, limit10, proxy, "", cluster.Calls, cluster.ResetStats})
}

// noGreeting is for tests that hold a call: go-redis now and then drops a connection when it
// is put back, and what is held would be the greeting of the next one.
func noGreeting(o *redis.Options) {
	o.Protocol, o.DisableIdentity = 2, true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// ready makes the connection, and lets the server know the scripts and the store
// the server's clock.
func ready(t *testing.T, f *faulty) *faulty {
	t.Helper()
	for op, err := range allCalls(t.Context(), f, "k") {
		require.NoError(t, err, op)
	}
	require.NoError(t, f.client.Del(t.Context(), "{k}:60s", "{k}:60s:exp", "{k}:60s:own", "{k}:60s:roll").Err())
	f.reset()
	return f
}

func (f *faulty) used(t *testing.T) int64 {
	t.Helper()
	state, err := f.Check(t.Context(), "k", f.limit)
	require.NoError(t, err)
	return f.limit.Tokens - state.Remaining
}

func class(t *testing.T, err error) backend.Class {
	t.Helper()
	var failure *backend.Error
	require.ErrorAs(t, err, &failure)
	return failure.Class
}

// TestLostReply: no call is sent twice, by go-redis' default options, which send everything
// four times. The next statement says what the account should be, so a lost grant is not charged any more.
func TestLostReply(t *testing.T) {
	t.Parallel()
	t.Run("client", func(t *testing.T) { testLostReply(t, newFaulty(t)) })
	t.Run("cluster", func(t *testing.T) { testLostReply(t, newFaultyCluster(t)) })
}

func testLostReply(t *testing.T, f *faulty) {
	for _, f.limit = range []backend.Limit{limit10, rolling10} {
		require.NoError(t, f.one(t.Context(), "charge"))
		for _, row := range []struct {
			op   string
			used int64
		}{{"charge", 4}, {"sync", 6}, {"reset", 0}} {
			f.reset()
			swallowed := f.proxy.Swallowed()
			f.proxy.SwallowReply("evalsha", 1)
			require.Equal(t, backend.Unknown, class(t, f.one(t.Context(), row.op)), row.op)
			require.EqualValues(t, swallowed+1, f.proxy.Swallowed())
			require.EqualValues(t, 1, f.calls("evalsha"), row.op)
			require.Equal(t, row.used, f.used(t), row.op)
			if row.op == "sync" {
				next := f.statement()
				next.Seq++
				got, err := f.Sync(t.Context(), next)
				require.NoError(t, err)
				require.EqualValues(t, 2, got.Grant)
				require.Equal(t, row.used, f.used(t), "the one that nobody read went")
				again, err := f.Sync(t.Context(), next)
				require.NoError(t, err)
				require.True(t, again.Void, "and nothing happens twice")
				require.Equal(t, row.used, f.used(t))
			}
		}
	}
}

// TestNotAfter: what sat in a queue through an outage does nothing when it is
// delivered.
func TestNotAfter(t *testing.T) {
	const timeout = 50 * time.Millisecond
	for _, limit := range []backend.Limit{limit10, rolling10} {
		for _, op := range []string{"sync", "charge", "reset"} {
			t.Run(limit.Counter()+" "+op, func(t *testing.T) {
				f := newFaulty(t, noGreeting)
				f.limit = limit
				require.NoError(t, f.one(t.Context(), "charge"))
				admin := redis.NewClient(&redis.Options{Addr: f.server})
				defer admin.Close()
				before := contents(t, admin)
				f.reset()
				f.proxy.Hold(true)
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				defer cancel()
				began := time.Now()
				require.ErrorIs(t, f.one(ctx, op), context.DeadlineExceeded)
				require.Less(t, time.Since(began), patience, "bounded by its context, whatever go-redis' time-outs")

				over := time.Now().Add(50 * time.Millisecond) // the store's margin, and more
				require.Eventually(t, func() bool { return f.proxy.Held() > 0 && time.Now().After(over) }, 5*time.Second, time.Millisecond)
				require.Zero(t, f.calls("evalsha"))
				f.proxy.Hold(false)
				require.Eventually(t, func() bool { return f.calls("evalsha") == 1 }, 5*time.Second, 2*time.Millisecond)
				require.Equal(t, before, contents(t, admin))
			})
		}
	}
}

// statement asks for two tokens.
func (f *faulty) statement() backend.Statement {
	return backend.Statement{Key: "k", Client: "a", Life: 1, Seq: 7, Limit: f.limit, Want: 2, Hints: backend.Hints{Exact: true}}
}

// one makes one call on k, for two tokens.
func (f *faulty) one(ctx context.Context, op string) (err error) {
	switch op {
	case "sync":
		_, err = f.Sync(ctx, f.statement())
	case "charge":
		_, err = charge(ctx, f, "k", f.limit, 2)
	case "reset":
		_, err = f.Reset(ctx, "k", f.limit)
	}
	return err
}

// TestBlackHole: nobody answers, from the first dial on or later.
func TestBlackHole(t *testing.T) {
	t.Parallel()
	const timeout = 100 * time.Millisecond
	bounded := func(t *testing.T, s backend.Store) {
		for _, c := range callsOf(s, "k") {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			began := time.Now()
			require.ErrorIs(t, c.do(ctx), context.DeadlineExceeded, c.op)
			require.Less(t, time.Since(began), patience)
			cancel()
		}
	}
	t.Run("from the start", func(t *testing.T) {
		server := redistest.Start(t)
		proxy := redistest.NewProxy(t, server.Addr())
		proxy.Hold(true)
		defer proxy.Hold(false)
		bounded(t, redisstore.New(server.Client(func(o *redis.Options) { o.Addr = proxy.Addr() })))
		require.Positive(t, proxy.Held())
	})
	t.Run("stopped process", func(t *testing.T) {
		server := redistest.Start(t)
		s := redisstore.New(server.Client())
		take(t, s, "k", 1)
		server.Pause()
		defer server.Resume()
		bounded(t, s)
	})
}
