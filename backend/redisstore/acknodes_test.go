package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// ackNodes is a store with WithReplicaAck on a cluster whose client does not look
// for the slots by itself, and a key of which it takes one token after another.
type ackNodes struct {
	*nodes
	from, to *redistest.Server
	key      string
	left     int64
}

// newAckNodes has a key on the first of three masters, each with a replica.
func newAckNodes(t *testing.T) *ackNodes {
	t.Helper()
	x := &ackNodes{nodes: &nodes{t: t, cluster: redistest.StartCluster(t, 3, 1)}, left: ackLimit.Tokens}
	x.from, x.to = x.cluster.Nodes[0], x.cluster.Nodes[1]
	x.key = x.keys(x.from, "k", 1)[0]
	for _, node := range x.cluster.Nodes[:3] {
		require.NoError(t, node.Client().ScriptLoad(t.Context(), takeScript.source).Err())
	}
	return x
}

var ackLimit = backend.Limit{Tokens: 100_000, Window: time.Hour}

func (x *ackNodes) store(opts ...func(*redis.ClusterOptions)) *Store {
	opts = append(opts, func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = time.Hour })
	return New(x.cluster.Client(opts...), WithReplicaAck(1, soon), WithWarnings(nil))
}

// take takes n tokens, one by one.
func (x *ackNodes) take(s *Store, n int) {
	x.t.Helper()
	for range n {
		got, err := s.Take(x.t.Context(), backend.TakeRequest{Key: x.key, Limit: ackLimit, Tokens: 1})
		require.NoError(x.t, err)
		require.True(x.t, got.Allowed)
		x.left--
		require.Equal(x.t, x.left, got.Remaining, "charged once")
	}
}

// looks is how often a node was asked where the slots are.
func (x *ackNodes) looks() int64 { return x.cluster.Calls("cluster|slots") }

// empty makes a master without slots, as one is that has just joined: the heir gets
// those of the node.
func (x *ackNodes) empty(node, heir *redistest.Server) {
	x.t.Helper()
	do := func(s *redistest.Server, args ...any) error { return s.Client().Do(x.t.Context(), args...).Err() }
	for _, s := range x.cluster.Nodes { // else it would become the heir's replica, and the cluster stand still meanwhile
		require.NoError(x.t, do(s, "config", "set", "cluster-allow-replica-migration", "no", "cluster-require-full-coverage", "no"))
	}
	list := x.cluster.SlotsOf(node)
	first, last := list[0], list[len(list)-1]
	require.NoError(x.t, do(node, "cluster", "delslotsrange", first, last))
	x.await(func() bool { // what the node said before may come after
		_ = do(heir, "cluster", "delslotsrange", first, last)
		return do(heir, "cluster", "addslotsrange", first, last) == nil
	})
	require.NoError(x.t, do(heir, "cluster", "bumpepoch"))
	for _, s := range x.cluster.Nodes {
		x.await(func() bool { return x.sees(s, 2) })
	}
}

// sees reports whether the node knows so many masters of all slots together.
func (x *ackNodes) sees(s *redistest.Server, masters int) bool {
	ranges, err := s.Client().Do(x.t.Context(), "cluster", "slots").Slice()
	require.NoError(x.t, err)
	found, slots := make(map[any]bool), int64(0)
	for _, r := range ranges {
		r := r.([]any) // the first slot and the last, the master, its replicas
		slots += r[1].(int64) - r[0].(int64) + 1
		found[r[2].([]any)[1]] = true // its port
	}
	return slots == 16384 && len(found) == masters
}

// spares returns the addresses that the store has a client of its own for.
func spares(s *Store) (list []string) {
	p := s.primary.ack.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	for addr := range p.spares {
		list = append(list, addr)
	}
	return list
}

// TestAckFollowsSlot: a slot that moves takes the WAIT with it, while it moves
// (ASK) and afterwards (MOVED), before and after the store knows the nodes. Nobody
// asks for all slots because one call was told where it belongs.
func TestAckFollowsSlot(t *testing.T) {
	const n = 100
	x := newAckNodes(t)
	s, fresh := x.store(), x.store() // the latter asks where the slots are when it is first used
	x.take(s, 1)
	ask, moved := x.slot("{"+x.key+"}", x.to)
	ask()
	x.cluster.ResetStats()
	x.take(s, n)
	require.EqualValues(t, n, x.to.Calls("asking"))
	require.EqualValues(t, n, x.to.Calls("wait"))
	require.Zero(t, x.looks())
	x.take(fresh, 1)
	require.EqualValues(t, n+1, x.to.Calls("asking"))

	moved()
	x.cluster.ResetStats()
	x.take(s, n)
	require.EqualValues(t, n, x.to.Calls("wait"))
	require.EqualValues(t, n, x.to.Calls("evalsha"))
	require.Less(t, x.looks(), int64(n/4))
	x.take(fresh, 1)
	require.EqualValues(t, n+1, x.to.Calls("wait"))
}

// TestAckFollowsSlotToNewMaster: go-redis does not know of a master that has no
// slot yet. Calls go there all the same, and by go-redis' client once it knows.
func TestAckFollowsSlotToNewMaster(t *testing.T) {
	const n = 20
	x := newAckNodes(t)
	x.empty(x.to, x.cluster.Nodes[2])
	s := x.store(func(o *redis.ClusterOptions) { o.MinIdleConns = 1 })
	x.take(s, 1)
	ask, moved := x.slot("{"+x.key+"}", x.to)
	ask()
	x.cluster.ResetStats()
	x.take(s, n)
	require.EqualValues(t, n, x.to.Calls("asking"))
	require.EqualValues(t, n, x.to.Calls("wait"))
	require.Zero(t, x.looks(), "it would not show the new master")
	require.Equal(t, []string{x.to.Addr()}, spares(s))

	moved()
	for _, node := range x.cluster.Nodes {
		x.await(func() bool { return x.sees(node, 3) })
	}
	x.await(func() bool {
		x.take(s, 1)
		return len(spares(s)) == 0
	})
	x.take(s, n)
}

// TestAckWhereLoopbackIsAnother: the nodes believe that their host is 127.0.0.1,
// and the client reaches them by another name, which go-redis puts in its place.
func TestAckWhereLoopbackIsAnother(t *testing.T) {
	x := newAckNodes(t)
	x.empty(x.to, x.cluster.Nodes[2])
	s := x.store(func(o *redis.ClusterOptions) {
		for i, addr := range o.Addrs {
			o.Addrs[i] = strings.Replace(addr, "127.0.0.1", "elsewhere.test", 1)
		}
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(addr)
			if err != nil || host != "elsewhere.test" {
				return nil, fmt.Errorf("nobody is at %s here", addr)
			}
			return new(net.Dialer).DialContext(ctx, network, "127.0.0.1:"+port)
		}
	})
	x.take(s, 1)
	ask, moved := x.slot("{"+x.key+"}", x.to)
	ask()
	x.take(s, 1)
	_, port, err := net.SplitHostPort(x.to.Addr())
	require.NoError(t, err)
	require.Equal(t, []string{"elsewhere.test:" + port}, spares(s))
	moved()
	x.take(s, 1)

	// A node that go-redis has handed out is found by either address.
	node, err := s.primary.ack.peers.master(t.Context(), "{"+x.keys(x.cluster.Nodes[2], "k", 1)[0]+"}")
	require.NoError(t, err)
	found, done := s.primary.ack.peers.at(x.cluster.Nodes[2].Addr(), node)
	done()
	require.Same(t, node, found)
}

// TestAckAfterClosedClient: go-redis closes the client of a node that was away for
// a while. Calls that are told of the node go there by another.
func TestAckAfterClosedClient(t *testing.T) {
	x := newAckNodes(t)
	s := x.store()
	x.take(s, 1)
	closed := redis.NewClient(&redis.Options{Addr: x.to.Addr()})
	require.NoError(t, closed.Close())
	s.primary.ack.peers.learn(closed)
	ask, _ := x.slot("{"+x.key+"}", x.to)
	ask()
	x.take(s, 2)
	require.Equal(t, []string{x.to.Addr()}, spares(s))

	require.NoError(t, s.client.Close())
	_, err := s.Take(t.Context(), backend.TakeRequest{Key: x.key, Limit: ackLimit, Tokens: 1})
	require.ErrorIs(t, err, redis.ErrClosed, "the caller's word is the last")
}

// newTestPeers is of a cluster that is not there.
func newTestPeers(t *testing.T, o *redis.ClusterOptions) (*peers, *redis.Client) {
	t.Helper()
	o.Addrs = []string{"127.0.0.1:1"}
	cluster := redis.NewClusterClient(o)
	by := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { require.NoError(t, errors.Join(cluster.Close(), by.Close())) })
	return newPeers(cluster, new(gate)), by
}

func (x *nodes) isClosed(node *redis.Client) func() bool {
	return func() bool { return errors.Is(node.Ping(x.t.Context()).Err(), redis.ErrClosed) }
}

// TestSpareEnds: a spare stays while it is used, and not for long after.
func TestSpareEnds(t *testing.T) {
	server := redistest.Start(t)
	x := &nodes{t: t}
	p, by := newTestPeers(t, &redis.ClusterOptions{})
	p.linger = time.Millisecond
	node, done := p.at(server.Addr(), by)
	again, doneAgain := p.at(server.Addr(), by)
	require.Same(t, node, again)
	doneAgain()
	require.NoError(t, node.Ping(t.Context()).Err())
	p.expire(server.Addr(), p.spares[server.Addr()]) // as the timer does
	require.NoError(t, node.Ping(t.Context()).Err(), "it is used")
	done()
	x.await(x.isClosed(node))
	require.Empty(t, p.spares)

	node, done = p.at(server.Addr(), by)
	p.learn(server.Client())
	require.NoError(t, node.Ping(t.Context()).Err(), "its user's reply may be on its way")
	require.Empty(t, p.spares)
	done()
	x.await(x.isClosed(node))
}

func TestSparesAreFew(t *testing.T) {
	x := &nodes{t: t}
	p, by := newTestPeers(t, &redis.ClusterOptions{})
	var all []*redis.Client
	for i := range 3 * manySpares {
		node, done := p.at(fmt.Sprint("127.0.0.1:", i+1), by)
		all = append(all, node)
		done()
	}
	require.Len(t, p.spares, manySpares)
	for addr, s := range p.spares {
		p.expire(addr, s)
	}
	for _, node := range all {
		x.await(x.isClosed(node))
	}
}

func TestSpareHasTheClustersOptions(t *testing.T) {
	for _, want := range []redis.ClusterOptions{
		{ReadTimeout: -1, WriteTimeout: -1, MinRetryBackoff: -1, MaxRetryBackoff: -1, MaxRetries: -1},
		{ReadTimeout: time.Second, WriteTimeout: 2 * time.Second, MaxRetries: 5, Username: "u", Password: "p", ClientName: "c"},
		{MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}},
		{},
	} {
		var told []redis.Options
		want.NewClient = func(o *redis.Options) *redis.Client {
			told = append(told, *o)
			wrapped := *o // as who counts connections does
			wrapped.Dialer = func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }
			wrapped.OnConnect = func(context.Context, *redis.Conn) error { return nil }
			return redis.NewClient(&wrapped)
		}
		p, _ := newTestPeers(t, &want)
		p.cluster.Options().MinIdleConns = 0
		node, err := redisNode(t, p.cluster)
		require.NoError(t, err)
		spare, done := p.at("127.0.0.1:2", node)
		done()
		got, old := *spare.Options(), *node.Options()
		require.Equal(t, "127.0.0.1:2", got.Addr)
		require.Equal(t, "127.0.0.1:2", got.NodeAddress)
		require.Len(t, told, 2)
		require.Nil(t, told[1].Dialer, "else NewClient would wrap it twice")
		require.Nil(t, told[1].OnConnect)
		require.Equal(t, told[0].MaintNotificationsConfig, told[1].MaintNotificationsConfig)
		if told[1].MaintNotificationsConfig != nil {
			require.NotSame(t, node.Options().MaintNotificationsConfig, told[1].MaintNotificationsConfig, "the node writes there")
		}
		for _, o := range []*redis.Options{&got, &old} { // what cannot be compared, and what differs
			o.Addr, o.NodeAddress, o.Dialer, o.OnConnect, o.PushNotificationProcessor = "", "", nil, nil, nil
		}
		require.Equal(t, old, got)
		p.expire("127.0.0.1:2", p.spares["127.0.0.1:2"])
	}
}

// redisNode is a client as a cluster's makes it.
func redisNode(t *testing.T, cluster *redis.ClusterClient) (node *redis.Client, err error) {
	t.Helper()
	cluster.Options().ClusterSlots = func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: "127.0.0.1:1"}}}}, nil
	}
	return cluster.MasterForKey(t.Context(), "k")
}

func TestRedirectedTo(t *testing.T) {
	for _, row := range []struct{ addr, by, want string }{
		{"10.0.0.2:7000", "10.0.0.1:7000", "10.0.0.2:7000"},
		{"::1:7000", "[::1]:7001", "[::1]:7000"},
		{"fe80::2:7000", "10.0.0.1:7000", "[fe80::2]:7000"},
		{"[fe80::2]:7000", "10.0.0.1:7000", "[fe80::2]:7000"},
		{":7000", "10.0.0.1:7001", "10.0.0.1:7000"},
		{"127.0.0.1:7000", "10.0.0.1:7001", "10.0.0.1:7000"},
		{"127.0.0.1:7000", "localhost:7001", "127.0.0.1:7000"},
		{"a.test:7000", "b.test:7000", "a.test:7000"},
		{"127.0.0.1:7000", ":7001", "127.0.0.1:7000"},
		{"nonsense", "b.test:7000", "nonsense"},
	} {
		require.Equal(t, row.want, reachable(bracketed(row.addr), row.by), row)
	}
}
