package redisstore

import (
	"context"
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

// nodes is a store on a cluster, with a proxy in front of each master.
type nodes struct {
	*Store
	t       *testing.T
	cluster *redistest.Cluster
	proxies map[*redistest.Server]*redistest.Proxy
	wg      sync.WaitGroup
}

func newNodes(t *testing.T) *nodes {
	t.Helper()
	x := &nodes{t: t, cluster: redistest.StartCluster(t, 3, 0), proxies: make(map[*redistest.Server]*redistest.Proxy)}
	var all []*redistest.Proxy
	for _, node := range x.cluster.Nodes {
		p := redistest.NewProxy(t, node.Addr())
		x.proxies[node], all = p, append(all, p)
		for _, sc := range scripts {
			require.NoError(t, node.Client().ScriptLoad(t.Context(), sc.source).Err())
		}
	}
	client := x.cluster.Client(func(o *redis.ClusterOptions) {
		o.Dialer, o.MinIdleConns = redistest.Dialer(all...), 2*pipelines
	})
	x.Store = New(client)
	_, err := charge(t.Context(), x, "first", limit10, 1)
	require.NoError(t, err)
	require.True(t, x.known.Load(), "the slots are known now")
	x.await(func() bool { return client.PoolStats().IdleConns >= 3*2*pipelines })
	x.cluster.ResetStats()
	return x
}

func (x *nodes) await(f func() bool) {
	x.t.Helper()
	require.Eventually(x.t, f, soon, time.Millisecond)
}

// keys returns n keys of the node that begin with name.
func (x *nodes) keys(node *redistest.Server, name string, n int) (list []string) {
	x.t.Helper()
	for i := 0; len(list) < n; i++ {
		if key := fmt.Sprint(name, i); x.cluster.NodeOf(key) == node {
			list = append(list, key)
		}
	}
	return list
}

// take takes a token of each key.
func (x *nodes) take(ctx context.Context, keys []string, check func(backend.Reply, error)) {
	for _, key := range keys {
		x.wg.Go(func() {
			check(charge(ctx, x, key, backend.Limit{Tokens: 1000, Window: time.Hour}, 1))
		})
	}
}

func (x *nodes) allowed(r backend.Reply, err error) {
	assert.NoError(x.t, err)
	assert.True(x.t, r.Grant == 1)
}

// jam makes the node hang under a call in each pipeline and queues one for each key.
func (x *nodes) jam(node *redistest.Server, keys []string, check func(backend.Reply, error)) {
	x.t.Helper()
	g, proxy := x.Store.group(x.t.Context(), "{"+keys[0]+"}"), x.proxies[node]
	require.NotSame(x.t, x.whole, g)
	g.extraDue = true // no extra pipeline
	proxy.Hold(true)
	before := proxy.Held()
	x.take(x.t.Context(), x.keys(node, "jam", pipelines), x.allowed)
	x.await(func() bool { return proxy.Held() >= before+pipelines })
	x.take(x.t.Context(), keys, check)
	x.await(func() bool { w, _ := queued(g); return w == len(keys) })
}

// TestSickNode: a master that hangs keeps nobody's calls but its own.
func TestSickNode(t *testing.T) {
	t.Parallel()
	const n = 50
	x := newNodes(t)
	sick, well := x.cluster.Nodes[0], x.cluster.Nodes[1:]
	x.jam(sick, x.keys(sick, "sick", n), x.allowed)
	done := make(chan struct{})
	var others sync.WaitGroup
	for _, node := range well {
		for _, key := range x.keys(node, "well", n) {
			others.Go(func() {
				x.allowed(charge(t.Context(), x, key, limit10, 1))
			})
		}
	}
	go func() { others.Wait(); close(done) }()
	x.await(func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	require.Zero(t, sick.Calls("evalsha"), "it still hangs")
	require.EqualValues(t, 2*n, x.cluster.Calls("evalsha"))
	x.proxies[sick].Hold(false)
	x.wg.Wait()
	require.EqualValues(t, 2*n+n+pipelines, x.cluster.Calls("evalsha"))
}

// repeated is the key n times.
func repeated(key string, n int) (list []string) {
	for range n {
		list = append(list, key)
	}
	return list
}

// TestSlotMoves: the calls of a pipeline whose slot goes to another node follow
// it, each charged once.
func TestSlotMoves(t *testing.T) {
	t.Parallel()
	const n = 30
	x := newNodes(t)
	from, to := x.cluster.Nodes[0], x.cluster.Nodes[1]
	key := x.keys(from, "k", 1)[0]
	used := func() string { return to.Client().Get(t.Context(), "{"+key+"}:3600s").Val() }
	count, slot := "{"+key+"}:3600s", x.cluster.SlotOf(key)

	x.take(t.Context(), []string{key}, x.allowed) // a window is open
	x.wg.Wait()
	x.jam(from, repeated(key, n), x.allowed)
	x.cluster.OpenSlot(from, to, slot)
	from.MigrateKeys(to, count, count+":exp")
	x.proxies[from].Hold(false)
	x.wg.Wait()
	require.EqualValues(t, n, to.Calls("evalsha"), "each was asked for there")
	require.EqualValues(t, n, to.Calls("asking"), "by its first key, because it has no ledger")

	x.jam(from, repeated(key, n), x.allowed)
	x.cluster.Reshard(from, to, []int{slot})
	x.proxies[from].Hold(false)
	x.wg.Wait()
	require.EqualValues(t, 2*n, to.Calls("evalsha"))
	require.Equal(t, fmt.Sprint(1+2*n), used())
}

// TestSlotMovesAndReplyIsLost: what was sent again after MOVED may have run, and
// is not sent a third time.
func TestSlotMovesAndReplyIsLost(t *testing.T) {
	t.Parallel()
	const n = 30
	x := newNodes(t)
	from, to := x.cluster.Nodes[0], x.cluster.Nodes[1]
	key := x.keys(from, "k", 1)[0]
	lost := make(chan error, n)
	x.jam(from, repeated(key, n), func(_ backend.Reply, err error) { lost <- err })
	x.cluster.Reshard(from, to, []int{x.cluster.SlotOf(key)})
	x.proxies[to].SwallowReply("{"+key+"}", 10*n)
	x.proxies[from].Hold(false)
	x.wg.Wait()
	close(lost)
	for err := range lost {
		var failure *backend.Error
		require.ErrorAs(t, err, &failure)
		require.Equal(t, backend.Unknown, failure.Class, "%v", err)
	}
	require.GreaterOrEqual(t, x.proxies[to].Swallowed(), int64(n), "of calls, and of looks for the slot's master")
	require.EqualValues(t, n, to.Calls("evalsha"))
	require.Equal(t, fmt.Sprint(n), to.Client().Get(t.Context(), "{"+key+"}:3600s").Val())
}

// TestGoneNode: a node's client that go-redis has closed is no end of the calls.
func TestGoneNode(t *testing.T) {
	t.Parallel()
	x := newNodes(t)
	key := x.keys(x.cluster.Nodes[0], "k", 1)[0]
	g := x.Store.group(t.Context(), "{"+key+"}")
	closed := redis.NewClient(&redis.Options{Addr: x.cluster.Nodes[0].Addr()})
	require.NoError(t, closed.Close())
	g.client = closed
	x.take(t.Context(), []string{key}, x.allowed)
	x.wg.Wait()
}
