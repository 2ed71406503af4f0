package torture

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/sharding"
)

// topology is a set-up of servers.
type topology int

const (
	durable  topology = iota // a server that has all its data again after it was killed
	volatile                 // a server that has none
	clocked                  // a server whose clock can be set
	pair                     // a primary and a replica that can lag
	clustered
	sharded    // three servers
	topologies = iota
)

var topologyNames = [topologies]string{"durable server", "volatile server", "server with a clock", "primary and replica", "cluster of six", "three shards"}

func (t topology) String() string { return topologyNames[t] }

// stage is the servers of a scenario, and the proxies before them.
type stage struct {
	t       testing.TB
	kind    topology
	target  target
	servers []*redistest.Server // by part
	proxies []*redistest.Proxy  // before each of them; of a cluster, before every node
	clock   *clock
	pair    *replicas
	cluster *redistest.Cluster
	nodes   []*redis.Client // of a cluster, past the proxies
	stores  []*redisstore.Store
}

// aof makes a server write down each command before it answers. To sync the file
// too would guard against the machine's failure, which is not among the faults.
var aof = []string{"--appendonly", "yes", "--appendfsync", "no"}

func newStage(t testing.TB, kind topology) *stage {
	t.Helper()
	s := &stage{t: t, kind: kind}
	switch kind {
	case durable:
		s.singles(1, aof...)
	case volatile:
		s.singles(1)
	case clocked:
		s.clock = newClock(t)
		s.clock.under(func() { s.add(redistest.Start(t)) })
		s.target.Suffixes = even("")
	case pair:
		plainly(func() { s.pair = startReplicas(t) })
		s.front(s.pair.gate.addr())
		s.target.Suffixes = even("")
	case clustered:
		plainly(func() { s.startCluster() })
	case sharded:
		s.singles(3, aof...)
	}
	return s
}

// singles starts servers of which each is a part of the store.
func (s *stage) singles(n int, args ...string) {
	plainly(func() {
		for range n {
			s.add(redistest.Start(s.t, args...))
		}
	})
	s.target.Suffixes = even("")
	if n > 1 {
		s.target.Suffixes = s.shardKeys(n)
	}
}

func (s *stage) add(server *redistest.Server) {
	s.servers = append(s.servers, server)
	s.front(server.Addr())
	s.stores = append(s.stores, redisstore.New(s.direct(server)))
}

// front puts a proxy before an address and sends the processes there.
func (s *stage) front(addr string) {
	p := redistest.NewProxy(s.t, addr)
	s.proxies = append(s.proxies, p)
	s.target.Addrs = append(s.target.Addrs, p.Addr())
}

// direct is a client that the faults of proxies do not reach.
func (s *stage) direct(server *redistest.Server) *redis.Client {
	return server.Client(quietly)
}

func quietly(o *redis.Options) {
	o.MaintNotificationsConfig = noNotifications()
	o.DialTimeout, o.ReadTimeout = 5*time.Second, 5*time.Second
}

// shardKeys finds for each role and part a key that lies there.
func (s *stage) shardKeys(n int) (all [roles][]string) {
	shards := make(map[string]backend.Store)
	for i := range n {
		shards[shardName(i)] = s.stores[i]
	}
	store, err := sharding.New(shards)
	require.NoError(s.t, err)
	return findKeys(n, func(key string) int {
		for i := range n {
			if store.Shard(key) == shardName(i) {
				return i
			}
		}
		return -1
	})
}

// findKeys tries suffixes until each role has a key on each part.
func findKeys(parts int, partOf func(key string) int) (all [roles][]string) {
	for r := range role(roles) {
		all[r] = make([]string, parts)
		for i, found := 0, 0; found < parts; i++ {
			if p := partOf(keyOf(r, suffix(i))); p >= 0 && all[r][p] == "" {
				all[r][p] = suffix(i)
				found++
			}
		}
	}
	return all
}

// startCluster has a part for every master, and a proxy before every node.
func (s *stage) startCluster() {
	s.cluster = redistest.StartCluster(s.t, 3, 1)
	s.target.Cluster = true
	s.target.Addrs = s.cluster.Addrs()
	s.target.Via = make(map[string]string)
	for _, node := range s.cluster.Nodes {
		p := redistest.NewProxy(s.t, node.Addr())
		s.proxies = append(s.proxies, p)
		s.target.Via[node.Addr()] = p.Addr()
		s.nodes = append(s.nodes, node.Client(quietly))
	}
	s.servers = s.cluster.Nodes[:3]
	ctx := context.Background()
	s.target.Suffixes = findKeys(3, func(key string) int {
		slot, err := s.nodes[0].ClusterKeySlot(ctx, "{"+key+"}").Result()
		require.NoError(s.t, err)
		return int(slot) * 3 / clusterSlots
	})
	client := s.cluster.Client(func(o *redis.ClusterOptions) { o.MaintNotificationsConfig = noNotifications() })
	s.stores = []*redisstore.Store{redisstore.New(client)}
}

// contents is what the store holds for a role's key on a part.
func (s *stage) contents(r role, part int) (backend.Contents, error) {
	return s.store(part).Inspect(s.t.Context(), keyOf(r, s.target.Suffixes[r][part]))
}

// store reads a part of the store as it now is, past the proxies.
func (s *stage) store(part int) *redisstore.Store {
	switch {
	case s.pair != nil:
		return s.pair.stores[s.pair.primary]
	case s.cluster != nil:
		return s.stores[0]
	}
	return s.stores[part]
}
