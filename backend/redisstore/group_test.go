package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// crowd is a store behind a proxy whose lanes the test can fill.
type crowd struct {
	*Store
	t      *testing.T
	server *redistest.Server
	proxy  *redistest.Proxy
	client *redis.Client
	wg     sync.WaitGroup
}

// newCrowd starts with the scripts and the clock known, and a connection for
// each lane, so that what arrives at the proxy is calls alone.
func newCrowd(t *testing.T) *crowd {
	t.Helper()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := server.Client(func(o *redis.Options) { o.Addr, o.MinIdleConns = proxy.Addr(), 2*lanes })
	x := &crowd{Store: New(client), t: t, server: server, proxy: proxy, client: client}
	for _, sc := range []*script{syncScript, takeScript, checkScript, refundScript} {
		require.NoError(t, client.ScriptLoad(t.Context(), sc.source).Err())
	}
	x.await(func() bool { return client.PoolStats().IdleConns >= 2*lanes })
	x.settled()
	server.ResetStats()
	return x
}

func (x *crowd) await(f func() bool) {
	x.t.Helper()
	require.Eventually(x.t, f, soon, time.Millisecond)
}

func (x *crowd) group() *group { return x.primary.whole }

// queued returns how many calls wait, and how many lanes are taken.
func queued(g *group) (waiting, flying int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting, g.flying
}

// settled waits until no flight is under way.
func (x *crowd) settled() {
	x.t.Helper()
	x.await(func() bool { w, f := queued(x.group()); return w == 0 && f == 0 })
}

// take makes n calls on keys name0, name1 … and hands each outcome to check.
func (x *crowd) take(ctx context.Context, name string, n int, check func(backend.TakeReply, error)) {
	for i := range n {
		x.wg.Go(func() {
			r, err := x.Take(ctx, backend.TakeRequest{Key: fmt.Sprint(name, i), Limit: limit10, Tokens: 1})
			check(r, err)
		})
	}
}

// jam makes the proxy hold and fills all lanes with calls that end with ctx.
func (x *crowd) jam(ctx context.Context, check func(backend.TakeReply, error)) {
	x.t.Helper()
	x.proxy.Hold(true)
	before := x.proxy.Held()
	x.take(ctx, "jam", lanes, check)
	x.await(func() bool { return x.proxy.Held() >= before+lanes })
}

// queue makes n calls that find all lanes taken.
func (x *crowd) queue(ctx context.Context, name string, n int, check func(backend.TakeReply, error)) {
	x.t.Helper()
	before, flying := queued(x.group())
	require.Equal(x.t, lanes, flying)
	x.take(ctx, name, n, check)
	x.await(func() bool { w, _ := queued(x.group()); return w == before+n })
}

func (x *crowd) used(key string) string {
	return x.server.Client().Get(x.t.Context(), "{"+key+"}").Val()
}

func (x *crowd) allowed(r backend.TakeReply, err error) {
	assert.NoError(x.t, err)
	assert.True(x.t, r.Allowed)
}

func (x *crowd) unknown(_ backend.TakeReply, err error) {
	x.is(err, backend.Unknown)
}

func (x *crowd) is(err error, class backend.Class) {
	var failure *backend.Error
	if assert.ErrorAs(x.t, err, &failure) {
		assert.Equal(x.t, class, failure.Class, "%v", err)
	}
}

// TestSharedPipeline: who finds a free lane leaves at once and alone, all others
// together, over no more connections than lanes.
func TestSharedPipeline(t *testing.T) {
	const n = 200
	x := newCrowd(t)
	x.jam(t.Context(), x.allowed)
	x.queue(t.Context(), "k", n, x.allowed)
	require.EqualValues(t, lanes, x.proxy.Held(), "one chunk for each call that left, none for those that wait")
	x.proxy.Hold(false)
	x.wg.Wait()
	require.EqualValues(t, n+lanes, x.server.Calls("evalsha"))
	for i := range n {
		require.Equal(t, "1", x.used(fmt.Sprint("k", i)))
	}
	x.settled()
}

// TestFleet: no pipeline is longer than a fleet.
func TestFleet(t *testing.T) {
	x := newCrowd(t)
	x.jam(t.Context(), x.allowed)
	x.queue(t.Context(), "k", 2*fleet+1, x.allowed)
	x.group().mu.Lock()
	f := &flight{group: x.group()}
	require.True(t, x.group().fill(f))
	x.group().mu.Unlock()
	require.Len(t, f.calls, fleet)
	x.wg.Go(f.leg)
	x.proxy.Hold(false)
	x.wg.Wait()
	require.EqualValues(t, 2*fleet+1+lanes, x.server.Calls("evalsha"))
}

// TestPipelineLosesReply: no take of a pipeline is executed a second time, under
// the default options of go-redis, which repeats pipelines.
func TestPipelineLosesReply(t *testing.T) {
	const n = 50
	x := newCrowd(t)
	x.jam(t.Context(), x.allowed)
	x.queue(t.Context(), "lost", n, x.unknown)
	x.proxy.SwallowReply("{lost7}", 1)
	x.proxy.Hold(false)
	x.wg.Wait()
	require.EqualValues(t, 1, x.proxy.Swallowed())
	require.EqualValues(t, n+lanes, x.server.Calls("evalsha"))
	for i := range n {
		require.Equal(t, "1", x.used(fmt.Sprint("lost", i)))
	}
	// The control: a pipeline of anybody else's commands.
	x.proxy.SwallowReply("{control}", 1)
	_, err := x.client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		return p.Incr(t.Context(), "{control}").Err()
	})
	require.NoError(t, err)
	require.Equal(t, "2", x.used("control"), "executed twice")
}

// TestPipelineIsLost: a sync in a pipeline is said again, on its own account.
func TestPipelineIsLost(t *testing.T) {
	const n = 50
	x := newCrowd(t)
	x.group().budget.have = n // as on a server with as many calls in a second as pipelines of 50 take
	x.jam(t.Context(), x.allowed)
	for i := range n {
		x.wg.Go(func() {
			r, err := x.Sync(t.Context(), backend.SyncRequest{Key: fmt.Sprint("lost", i), Client: "a", Limit: limit10, Want: 4, Strand: -1})
			assert.NoError(t, err)
			assert.EqualValues(t, 4, r.Grant)
		})
	}
	x.await(func() bool { w, _ := queued(x.group()); return w == n })
	x.proxy.DropRequests("{lost7}", 1)
	x.proxy.Hold(false)
	x.wg.Wait()
	require.EqualValues(t, 1, x.proxy.Dropped())
	require.EqualValues(t, n+lanes, x.server.Calls("evalsha"))
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
	x.queue(ctx, "gone", 10, func(_ backend.TakeReply, err error) {
		defer gone.Done()
		assert.ErrorIs(t, err, context.Canceled)
		x.is(err, backend.Unavailable)
	})
	x.queue(t.Context(), "late", 10, x.allowed)
	cancel()
	gone.Wait() // while nothing moves
	x.proxy.Hold(false)
	x.wg.Wait()
	require.EqualValues(t, lanes+20, x.server.Calls("evalsha"))
	require.Empty(t, x.used("gone3"))
	x.settled()
}

// TestPipelineComesLate: the callers of a pipeline leave while it is under way.
// Each charge is given back when the replies come.
func TestPipelineComesLate(t *testing.T) {
	const n = 20
	x := newCrowd(t)
	x.jam(t.Context(), x.allowed)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var gone sync.WaitGroup
	gone.Add(n)
	x.queue(ctx, "k", n, func(_ backend.TakeReply, err error) {
		defer gone.Done()
		assert.ErrorIs(t, err, context.Canceled)
		x.unknown(backend.TakeReply{}, err)
	})
	x.proxy.Delay(300 * time.Millisecond)
	x.proxy.Hold(false)
	x.await(func() bool { return x.server.Calls("evalsha") == lanes+n }) // executed, and not known of
	cancel()
	gone.Wait()
	require.Equal(t, "1", x.used("k3"))
	x.await(func() bool { return x.server.Calls("evalsha") == lanes+2*n })
	for i := range n {
		require.Equal(t, "0", x.used(fmt.Sprint("k", i)))
	}
	require.Positive(t, x.proxy.Delayed())
	x.wg.Wait()
}

// TestHungLanes: connections that hang, as go-redis lets them for seconds, keep
// their lanes only as long as somebody waits for them.
func TestHungLanes(t *testing.T) {
	x := newCrowd(t)
	ctx, cancel := context.WithCancel(t.Context())
	x.jam(ctx, x.unknown)
	patient, leave := context.WithCancel(t.Context())
	x.queue(patient, "k", 3, x.unknown)
	held := x.proxy.Held()
	cancel() // the first give up, and those behind them get their lanes
	x.await(func() bool { w, _ := queued(x.group()); return w == 0 && x.proxy.Held() > held })
	leave()
	x.wg.Wait()
	_, flying := queued(x.group())
	require.Zero(t, flying, "all were given up")
	x.proxy.Hold(false)
	x.await(func() bool { return x.server.Calls("evalsha") == 2*(lanes+3) }) // all given back
	x.settled()
}

// TestScriptStorm: one EVAL, however many calls find the script missing.
func TestScriptStorm(t *testing.T) {
	const n = 200
	x := newCrowd(t)
	x.group().patience = soon // of a busy machine
	x.jam(t.Context(), x.allowed)
	x.queue(t.Context(), "k", n, x.allowed)
	require.NoError(t, x.server.Client().ScriptFlush(t.Context()).Err())
	x.proxy.Hold(false)
	x.wg.Wait()
	require.EqualValues(t, 1, x.server.Calls("eval"))

	// A pipeline in which no script is known: one EVAL for each, first of its kind.
	require.NoError(t, x.server.Client().ScriptFlush(t.Context()).Err())
	x.server.ResetStats()
	f := &flight{group: x.group()}
	var list []*call
	for i := range n {
		c := newCall(t.Context(), takeScript, "", fmt.Sprint("p", i))
		c.numbers(1, 10, 60000, 0)
		if i%2 == 1 {
			c = newCall(t.Context(), checkScript, "", fmt.Sprint("p", i))
			c.numbers(10, 60000)
		}
		c.finish()
		c.ready()
		list = append(list, c)
		f.board(c)
	}
	f.leg()
	for _, c := range list {
		<-c.done
		require.NoError(t, c.err)
	}
	require.EqualValues(t, 1, x.server.Calls("eval"))
	require.EqualValues(t, 1, x.server.Calls("eval_ro"))
	require.EqualValues(t, n/2+n/2-1, x.server.Calls("evalsha"), "once in vain, then all but the first")
	for i := 0; i < n; i += 2 {
		require.Equal(t, "1", x.used(fmt.Sprint("p", i)))
	}
}

// TestOwnInstant: each call of a pipeline carries the end of its own caller's
// patience, by what is known of the server's clock when it leaves.
func TestOwnInstant(t *testing.T) {
	x := newCrowd(t)
	x.clock.heard(time.Now().UnixMicro())
	f := &flight{group: x.group()}
	now := time.Now()
	for i := range 3 {
		ctx, cancel := context.WithDeadline(t.Context(), now.Add(time.Duration(i+1)*time.Minute))
		defer cancel()
		c := newCall(ctx, takeScript, "", fmt.Sprint("k", i))
		c.numbers(1, 10, 60000, 0)
		c.finish()
		c.ready()
		require.Zero(t, *c.after, "not before it leaves")
		f.board(c)
	}
	f.leg()
	for i, c := range f.calls {
		want := now.Add(time.Duration(i+1)*time.Minute + margin)
		require.WithinDuration(t, want, time.UnixMicro(*c.after), time.Second)
		require.NoError(t, c.err)
	}
}

// endless is a context that ends by its deadline alone.
type endless struct {
	context.Context
	at time.Time
}

func (e endless) Deadline() (time.Time, bool) { return e.at, true }

// TestUncancellable: a call that keeps its caller's goroutine ends with its
// deadline all the same, whoever does not answer.
func TestUncancellable(t *testing.T) {
	for _, punctual := range []bool{true, false} {
		t.Run(fmt.Sprint("punctual=", punctual), func(t *testing.T) {
			server := redistest.Start(t)
			proxy := redistest.NewProxy(t, server.Addr())
			client := server.Client(func(o *redis.Options) { o.Addr, o.ContextTimeoutEnabled = proxy.Addr(), punctual })
			s := New(client)
			try := func(patience time.Duration) error {
				ctx := endless{context.Background(), time.Now().Add(patience)}
				_, err := s.Take(ctx, backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 1})
				return err
			}
			bounded := func() {
				proxy.Hold(true)
				defer proxy.Hold(false)
				before, began := proxy.Held(), time.Now()
				err := try(50 * time.Millisecond)
				require.Error(t, err)
				require.Less(t, time.Since(began), time.Second)
				require.Greater(t, proxy.Held(), before)
			}
			bounded() // in the dial
			require.NoError(t, try(soon))
			bounded() // in the read
			require.Eventually(t, func() bool { return try(soon) == nil }, soon, time.Millisecond)
			require.ErrorIs(t, errors.Unwrap(try(-time.Second)), context.DeadlineExceeded)
		})
	}
}

// TestFlightsFindScriptMissing: of flights that were told so at the same time,
// one tells the script.
func TestFlightsFindScriptMissing(t *testing.T) {
	x := newCrowd(t)
	x.group().patience = soon
	require.NoError(t, x.server.Client().ScriptFlush(t.Context()).Err())
	x.group().teaching <- struct{}{} // until all have been told
	x.take(t.Context(), "k", lanes, x.allowed)
	x.await(func() bool { return x.server.Calls("evalsha") == lanes })
	<-x.group().teaching
	x.wg.Wait()
	require.EqualValues(t, 1, x.server.Calls("eval"))
	require.EqualValues(t, 2*lanes-1, x.server.Calls("evalsha"))
}

// TestTeacherHangs: a load that hangs does not keep other flights from their own.
func TestTeacherHangs(t *testing.T) {
	x := newCrowd(t)
	require.NoError(t, x.server.Client().ScriptFlush(t.Context()).Err())
	x.group().teaching <- struct{}{} // somebody is at it, for ever
	x.take(t.Context(), "k", 1, x.allowed)
	x.wg.Wait()
	require.EqualValues(t, 1, x.server.Calls("eval"))
}

// TestPanicFreesLane: a hook that panics in a caller's own goroutine takes no
// lane with it.
func TestPanicFreesLane(t *testing.T) {
	x := newCrowd(t)
	x.client.AddHook(panics{on: "evalsha"})
	for range lanes + 1 {
		require.Panics(t, func() {
			_, _ = x.Take(context.Background(), backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 1})
		})
		_, flying := queued(x.group())
		require.Zero(t, flying)
	}
}

// TestPanicEndsLoad: nor does it keep others from telling the server a script.
func TestPanicEndsLoad(t *testing.T) {
	x := newCrowd(t)
	require.NoError(t, x.client.ScriptFlush(t.Context()).Err())
	x.client.AddHook(panics{on: "eval"})
	require.Panics(t, func() {
		_, _ = x.Take(context.Background(), backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 1})
	})
	require.Empty(t, x.group().teaching)
}

// panics is a hook with a bug.
type panics struct {
	redis.Hook
	on string // the command's name
}

func (panics) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p panics) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == p.on {
			panic("a hook")
		}
		return next(ctx, cmd)
	}
}

func (panics) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
