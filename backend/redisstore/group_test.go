package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// soon is how long a test waits for what must happen.
const soon = 10 * time.Second

// crowd is a store behind a proxy whose pipelines the test can hold.
type crowd struct {
	*Store
	t      *testing.T
	server *redistest.Server
	proxy  *redistest.Proxy
	client *redis.Client
	wg     sync.WaitGroup
}

// newCrowd starts with the scripts and the clock known, and a connection for
// each pipeline, so that what arrives at the proxy is calls alone.
func newCrowd(t *testing.T) *crowd {
	t.Helper()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := server.Client(func(o *redis.Options) { o.Addr, o.MinIdleConns = proxy.Addr(), 2*pipelines })
	x := &crowd{Store: New(client), t: t, server: server, proxy: proxy, client: client}
	for _, sc := range scripts {
		require.NoError(t, client.ScriptLoad(t.Context(), sc.source).Err())
	}
	x.await(func() bool { return client.PoolStats().IdleConns >= 2*pipelines })
	x.settled()
	x.whole.extraDue = true // no extra pipeline
	server.ResetStats()
	return x
}

func (x *crowd) await(f func() bool) {
	x.t.Helper()
	require.Eventually(x.t, f, soon, time.Millisecond)
}

// queued returns how many calls wait, and how many pipelines are taken.
func queued(g *group) (waiting, inFlight int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.queue), g.inFlight
}

// settled waits until no pipeline is in flight.
func (x *crowd) settled() {
	x.t.Helper()
	x.await(func() bool { w, f := queued(x.whole); return w == 0 && f == 0 })
}

// take makes n calls on keys name0, name1 … and hands each outcome to check.
func (x *crowd) take(ctx context.Context, name string, n int, check func(backend.Reply, error)) {
	for i := range n {
		x.wg.Go(func() {
			r, err := charge(ctx, x, fmt.Sprint(name, i), limit10, 1)
			check(r, err)
		})
	}
}

// jam makes the proxy hold and fills all pipelines with calls that end with ctx.
func (x *crowd) jam(ctx context.Context, check func(backend.Reply, error)) {
	x.t.Helper()
	x.proxy.Hold(true)
	before := x.proxy.Held()
	x.take(ctx, "jam", pipelines, check)
	x.await(func() bool { return x.proxy.Held() >= before+pipelines })
}

// queue makes n calls that find all pipelines taken.
func (x *crowd) queue(ctx context.Context, name string, n int, check func(backend.Reply, error)) {
	x.t.Helper()
	before, inFlight := queued(x.whole)
	require.Equal(x.t, pipelines, inFlight)
	x.take(ctx, name, n, check)
	x.await(func() bool { w, _ := queued(x.whole); return w == before+n })
}

func (x *crowd) used(key string) string {
	return x.server.Client().Get(x.t.Context(), "{"+key+"}:60s").Val()
}

func (x *crowd) allowed(r backend.Reply, err error) {
	assert.NoError(x.t, err)
	assert.True(x.t, r.Grant == 1)
}

func (x *crowd) unknown(_ backend.Reply, err error) {
	x.is(err, backend.Unknown)
}

func (x *crowd) is(err error, class backend.Class) {
	var failure *backend.Error
	if assert.ErrorAs(x.t, err, &failure) {
		assert.Equal(x.t, class, failure.Class, "%v", err)
	}
}

// TestSharedPipeline: a call that finds a free pipeline is sent at once and alone. All other
// calls share pipelines, over no more connections than pipelines.
func TestSharedPipeline(t *testing.T) {
	const n = 200
	x := newCrowd(t)
	x.jam(t.Context(), x.allowed)
	x.queue(t.Context(), "k", n, x.allowed)
	require.EqualValues(t, pipelines, x.proxy.Held(), "one chunk for each call that left, none for those that wait")
	x.proxy.Hold(false)
	x.wg.Wait()
	require.EqualValues(t, n+pipelines, x.server.Calls("evalsha"))
	for i := range n {
		require.Equal(t, "1", x.used(fmt.Sprint("k", i)))
	}
	x.settled()
}

// TestLongest: no pipeline is longer, so that the first of its calls is served soon.
func TestLongest(t *testing.T) {
	x := newCrowd(t)
	x.jam(t.Context(), x.allowed)
	x.queue(t.Context(), "k", 2*longest+1, x.allowed)
	x.whole.mu.Lock()
	x.whole.inFlight++
	x.whole.proceed()
	x.whole.mu.Unlock()
	left, _ := queued(x.whole)
	require.Equal(t, longest+1, left)
	x.proxy.Hold(false)
	x.wg.Wait()
	require.EqualValues(t, 2*longest+1+pipelines, x.server.Calls("evalsha"))
}

// TestHungPipelines: connections that hang, as go-redis lets them for seconds, keep
// nobody else's calls.
func TestHungPipelines(t *testing.T) {
	server := redistest.Start(t)
	require.NoError(t, server.Client().ScriptLoad(t.Context(), syncScript.source).Err())
	proxy := redistest.NewProxy(t, server.Addr())
	proxy.Hold(true)
	var away atomic.Bool
	away.Store(true)
	dial := redistest.Dialer(proxy)
	s := New(server.Client(func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if away.Load() {
				return dial(ctx, network, addr)
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for range pipelines {
		wg.Go(func() { assert.Error(t, one(ctx, s, syncScript)) })
	}
	require.Eventually(t, func() bool { return proxy.Held() >= pipelines }, soon, time.Millisecond)
	away.Store(false)
	for range pipelines {
		require.NoError(t, one(t.Context(), s, syncScript))
	}
	require.EqualValues(t, pipelines, server.Calls("evalsha"), "the others hang")
	cancel()
	wg.Wait()
	proxy.Hold(false)
	require.NoError(t, s.Close())
	require.EqualValues(t, 2*pipelines, server.Calls("evalsha"), "what comes late does nothing")
}

// TestScriptStorm: one EVAL for a pipeline, however many of its calls find the script missing.
func TestScriptStorm(t *testing.T) {
	const n = 200
	x := newCrowd(t)
	x.jam(t.Context(), x.allowed)
	x.queue(t.Context(), "k", n, x.allowed)
	require.NoError(t, x.server.Client().ScriptFlush(t.Context()).Err())
	x.proxy.Hold(false)
	x.wg.Wait()
	require.Positive(t, x.server.Calls("eval"))
	require.LessOrEqual(t, x.server.Calls("eval"), int64(2*pipelines))
	for i := range n {
		require.Equal(t, "1", x.used(fmt.Sprint("k", i)))
	}
}

// TestWrittenLater: a take whose caller left before it was on the wire does nothing
// when it comes there, and need not be given back.
func TestWrittenLater(t *testing.T) {
	server := redistest.Start(t)
	require.NoError(t, server.Client().ScriptLoad(t.Context(), syncScript.source).Err())
	proxy := redistest.NewProxy(t, server.Addr())
	proxy.Hold(true) // the greeting, with which a connection begins
	s := New(server.Client(func(o *redis.Options) { o.Addr = proxy.Addr() }))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := charge(ctx, s, "k", limit10, 3)
	failure, ok := errors.AsType[*backend.Error](err)
	require.True(t, ok)
	require.Equal(t, backend.Unavailable, failure.Class, "it was surely not sent: %v", err)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Positive(t, proxy.Held())
	require.Zero(t, server.Calls("evalsha"))
	server.ResetStats()
	proxy.Hold(false)
	require.NoError(t, s.Close())
	require.EqualValues(t, 1, server.Calls("evalsha"), "it came, and nothing to undo it")
	require.Empty(t, server.Client().Keys(t.Context(), "*").Val())
}

// TestCloseWaits: for a take whose caller has left.
func TestCloseWaits(t *testing.T) {
	x := newCrowd(t)
	x.proxy.Delay(200 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := charge(ctx, x, "k", limit10, 3)
	x.unknown(backend.Reply{}, err)
	require.NoError(t, x.Close())
	require.EqualValues(t, 1, x.server.Calls("evalsha"))
	require.Equal(t, "3", x.used("k"))
	require.NoError(t, x.client.Ping(t.Context()).Err(), "the client is not the store's")
}

// TestNumbersReadAsNumbers: in the hooks and traces of go-redis.
func TestNumbersReadAsNumbers(t *testing.T) {
	x := newCrowd(t)
	var seen []string
	x.client.AddHook(sees{seen: &seen})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := charge(ctx, x, "k", limit10, 3)
	require.NoError(t, err)
	_, err = x.Check(ctx, "k", limit10)
	require.NoError(t, err)
	require.Regexp(t, `^evalsha [0-9a-f]{40} 3 \{k}:60s \{k}:60s:exp \{k}:60s:own  10 60000 3 0 \d+: `, seen[0])
	require.Regexp(t, `^evalsha [0-9a-f]{40} 3 \{k}:60s \{k}:60s:exp \{k}:60s:own : `, seen[1])
}

// sees notes what the commands of a client read like.
type sees struct {
	redis.Hook
	seen *[]string
}

func (sees) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h sees) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	if h.seen == nil {
		return next
	}
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		*h.seen = append(*h.seen, cmd.String())
		return err
	}
}

func (sees) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestPipelineLosesReply: no take of a pipeline is executed a second time, under
// the default options of go-redis, which repeats pipelines.
func TestPipelineLosesReply(t *testing.T) {
	const n = 50
	x := newCrowd(t)
	x.jam(t.Context(), x.allowed)
	x.queue(t.Context(), "lost", n, x.unknown)
	x.proxy.SwallowReply("{lost7}:60s", 1)
	x.proxy.Hold(false)
	x.wg.Wait()
	require.EqualValues(t, 1, x.proxy.Swallowed())
	require.EqualValues(t, n+pipelines, x.server.Calls("evalsha"))
	for i := range n {
		require.Equal(t, "1", x.used(fmt.Sprint("lost", i)))
	}
}

// TestLeavesQueue: a caller that leaves before its call was sent is charged
// nothing, surely, and those behind it are served.
func TestLeavesQueue(t *testing.T) {
	x := newCrowd(t)
	x.jam(t.Context(), x.allowed)
	x.queue(t.Context(), "early", 10, x.allowed)
	ctx, cancel := context.WithCancel(t.Context())
	var gone sync.WaitGroup
	gone.Add(10)
	x.queue(ctx, "gone", 10, func(_ backend.Reply, err error) {
		defer gone.Done()
		assert.ErrorIs(t, err, context.Canceled)
		x.is(err, backend.Unavailable)
	})
	x.queue(t.Context(), "late", 10, x.allowed)
	cancel()
	gone.Wait() // while nothing moves
	x.proxy.Hold(false)
	x.wg.Wait()
	require.EqualValues(t, pipelines+20, x.server.Calls("evalsha"))
	require.Empty(t, x.used("gone3"))
	x.settled()
}
