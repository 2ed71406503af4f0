package torture

import (
	_ "embed" // the shim
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

func (t topology) String() string {
	return [...]string{"durable server", "volatile server", "server with a clock", "primary and replica", "cluster of six", "three shards"}[t]
}

// stage is the servers of a scenario.
type stage struct {
	t       testing.TB
	target  target
	peers   []*peer // by part; of a cluster, all nodes; of a pair, first the primary
	cluster *redistest.Cluster
	pair    *redistest.Replicated // who is the primary changes at each failover
	link    *redistest.Proxy      // by which the replica follows
	clock   string                // path of the file that holds the offset
}

// peer is a server, the proxy by which processes reach it, and ways past that.
type peer struct {
	*redistest.Server
	proxy *redistest.Proxy
	admin *redis.Client
	store *redisstore.Store
}

// aof makes a server write down each command before it answers. To sync the file
// too would guard against the machine's failure, which is not among the faults.
var aof = []string{"--appendonly", "yes", "--appendfsync", "no"}

func newStage(t testing.TB, sc scenario) *stage {
	t.Helper()
	s := &stage{t: t, target: target{scenario: sc}}
	partOf, parts := func(string) int { return 0 }, 1
	switch sc.Topology {
	case durable:
		s.add(redistest.Start(t, aof...))
	case volatile:
		s.add(redistest.Start(t))
	case clocked:
		s.add(redistest.StartEnv(t, s.newClock()))
	case pair:
		s.pair = redistest.StartReplicated(t, 1)
		s.link = s.pair.Link(0)
		s.add(s.pair.Primary)
		s.add(s.pair.Replicas[0]).proxy = s.peers[0].proxy
		s.target.Addrs = s.target.Addrs[:1]
	case clustered:
		s.cluster = redistest.StartCluster(t, 3, 1)
		s.target.Via = make(map[string]string)
		for _, node := range s.cluster.Nodes {
			s.target.Via[node.Addr()] = s.add(node).proxy.Addr()
		}
		s.target.Addrs = s.cluster.Addrs()
		parts, partOf = 3, func(key string) int { return slices.Index(s.cluster.Nodes, s.cluster.NodeOf(tag(key))) }
	case sharded:
		shards := make(map[string]backend.Store)
		for _, name := range shardNames {
			shards[name] = s.add(redistest.Start(t, aof...)).store
		}
		store, err := sharding.New(shards)
		require.NoError(t, err)
		parts, partOf = 3, func(key string) int { return slices.Index(shardNames, store.Shard(key)) }
	}
	for r := range role(roles) { // names are tried until there is one on each part
		for i := 0; len(s.target.Keys[r]) < parts; i++ {
			if key := fmt.Sprint(r, "-", i); partOf(key) == len(s.target.Keys[r]) {
				s.target.Keys[r] = append(s.target.Keys[r], key)
			}
		}
	}
	return s
}

// add puts a proxy before a server and sends the processes there.
func (s *stage) add(server *redistest.Server) *peer {
	p := &peer{Server: server, proxy: redistest.NewProxy(s.t, server.Addr()), admin: server.Client(func(o *redis.Options) {
		o.MaintNotificationsConfig = noNotifications()
		o.DialTimeout, o.ReadTimeout = 5*time.Second, 5*time.Second
	})}
	p.store = redisstore.New(p.admin)
	s.peers = append(s.peers, p)
	s.target.Addrs = append(s.target.Addrs, p.proxy.Addr())
	return p
}

// tag is what a key's slot is found by.
func tag(key string) string { return "{" + key + "}" }

// peer is the server of a part as it now is, of a cluster nil while there is none.
func (s *stage) peer(part int) *peer {
	if s.cluster == nil {
		return s.peers[part]
	}
	if i := slices.Index(s.cluster.Nodes, s.cluster.NodeOf(tag(s.target.Keys[tight][part]))); i >= 0 {
		return s.peers[i]
	}
	return nil
}

// contents is what a server holds for a role's key on a part.
func (s *stage) contents(at *peer, r role, part int) backend.Contents {
	s.t.Helper()
	held, err := at.store.Inspect(s.t.Context(), s.target.Keys[r][part])
	require.NoError(s.t, err)
	return held
}

// unreplicated is how many tokens the primary has granted for a key that the replica
// does not know of, while nothing moves. What was given back of late, which the replica
// does not know of either, is none the fewer: others were granted it.
func (s *stage) unreplicated(r role) int64 {
	s.t.Helper()
	there, here := s.contents(s.peers[0], r, 0), s.contents(s.peers[1], r, 0)
	if there.Window != here.Window {
		return granted(there)
	}
	return max(granted(there)-granted(here), 0)
}

// granted is all that was, less what direct calls have refunded.
func granted(c backend.Contents) int64 {
	n := c.Used
	for _, a := range c.Clients {
		n += a.Returned
	}
	return n
}

//go:embed testdata/clockshim.c
var clockShim []byte

// newClock compiles the shim, and is the environment of a server that is to have the
// clock.
func (s *stage) newClock() []string {
	s.t.Helper()
	dir := s.t.TempDir()
	source, lib := filepath.Join(dir, "clockshim.c"), filepath.Join(dir, "clockshim.so")
	require.NoError(s.t, os.WriteFile(source, clockShim, 0o600))
	out, err := exec.CommandContext(s.t.Context(), "cc", "-O2", "-shared", "-fPIC", "-o", lib, source, "-ldl").CombinedOutput()
	require.NoError(s.t, err, "cc: %s", out)
	s.clock = filepath.Join(dir, "offset")
	s.setClock(0)
	return []string{"LD_PRELOAD=" + lib, "TORTURE_CLOCK=" + s.clock}
}

// setClock moves the clock to so much ahead of the machine's. The write is of eight
// bytes in place, which a server that reads them sees as one.
func (s *stage) setClock(ahead time.Duration) {
	s.t.Helper()
	f, err := os.OpenFile(s.clock, os.O_WRONLY|os.O_CREATE, 0o600)
	require.NoError(s.t, err)
	defer f.Close()
	_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead.Microseconds())), 0)
	require.NoError(s.t, err)
}
