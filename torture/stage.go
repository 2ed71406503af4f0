package torture

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/sharding"
)

// topology is a set-up of servers.
type topology string

const (
	durable   topology = "durable server"  // one that has all its data again after it was killed
	volatile  topology = "volatile server" // one that has none
	clocked   topology = "server with a clock"
	pair      topology = "primary and replica"
	clustered topology = "cluster of six"
	sharded   topology = "three shards"
)

var topologies = []topology{durable, volatile, clocked, pair, clustered, sharded}

// peer is a server, the proxy by which processes reach it, and ways past that.
type peer struct {
	*redistest.Server
	proxy *redistest.Proxy
	store *redisstore.Store
}

// aof makes a server write down each command before it answers. To sync the file
// too would guard against the machine's failure, which is not among the faults.
var aof = []string{"--appendonly", "yes", "--appendfsync", "no"}

// setUp starts the servers, and says where processes find them.
func (x *run) setUp() {
	x.t.Helper()
	x.Via = make(map[string]string)
	switch x.Topology {
	case durable:
		x.add(redistest.Start(x.t, aof...))
	case volatile:
		x.add(redistest.Start(x.t))
	case clocked:
		x.add(redistest.StartEnv(x.t, x.newClock()))
	case pair:
		x.pair = redistest.StartReplicated(x.t, 1)
		x.link = x.pair.Link(0)
		x.add(x.pair.Primary)
		x.add(x.pair.Replicas[0]).proxy = x.peers[0].proxy
		x.Addrs = x.Addrs[:1]
	case clustered:
		x.cluster = redistest.StartCluster(x.t, 3, 1)
		for _, node := range x.cluster.Nodes {
			x.add(node)
		}
		x.Parts = 3
	case sharded:
		for range shardNames {
			x.add(redistest.Start(x.t, aof...))
		}
		x.Parts, x.shards = 3, x.open().(*sharding.Store)
	}
	for r := range role(roles) { // names are tried until there is one on each part
		for i := 0; len(x.Keys[r]) < x.Parts; i++ {
			if key := fmt.Sprint(r, "-", i); x.nodeOf(key) == len(x.Keys[r]) {
				x.Keys[r] = append(x.Keys[r], key)
			}
		}
	}
}

// add puts a proxy before a server and sends the processes there.
func (x *run) add(server *redistest.Server) *peer {
	p := &peer{
		Server: server, proxy: redistest.NewProxy(x.t, server.Addr()),
		store: redisstore.New(server.Client(func(o *redis.Options) { o.DialTimeout, o.ReadTimeout = 5*time.Second, 5*time.Second })),
	}
	x.peers, x.Addrs = append(x.peers, p), append(x.Addrs, server.Addr())
	x.Via[server.Addr()] = p.proxy.Addr()
	return p
}

// tag is what a key's slot is found by.
func tag(key string) string { return "{" + key + "}" }

// nodeOf is which of the peers has the key as it now is, or -1 while there is none.
func (x *run) nodeOf(key string) int {
	switch x.Topology {
	case clustered:
		return slices.Index(x.cluster.Nodes, x.cluster.NodeOf(tag(key)))
	case sharded:
		return slices.Index(shardNames, x.shards.Shard(key))
	}
	return 0
}

// peer is the server of a part as it now is, or nil while there is none.
func (x *run) peer(part int) *peer {
	if i := x.nodeOf(x.Keys[tight][part]); i >= 0 {
		return x.peers[i]
	}
	return nil
}

// contents is what a server holds for a role's key on a part.
func (x *run) contents(at *peer, r role, part int) backend.Contents {
	x.t.Helper()
	held, err := at.store.Inspect(x.t.Context(), x.Keys[r][part])
	require.NoError(x.t, err)
	return held
}

// unreplicated is how many tokens the primary has granted for a key that the replica
// does not know of, while nothing moves. What was given back of late, which the replica
// does not know of either, is none the fewer: others were granted it.
func (x *run) unreplicated(r role) int64 {
	x.t.Helper()
	there, here := x.contents(x.peers[0], r, 0), x.contents(x.peers[1], r, 0)
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

// newClock compiles the shim, and is the environment of a server that is to have the
// clock.
func (x *run) newClock() []string {
	x.t.Helper()
	lib, offset := filepath.Join(x.t.TempDir(), "clockshim.so"), filepath.Join(x.t.TempDir(), "offset")
	out, err := exec.CommandContext(x.t.Context(), "cc", "-O2", "-shared", "-fPIC", "-o", lib, "testdata/clockshim.c", "-ldl").CombinedOutput()
	require.NoError(x.t, err, "cc: %s", out)
	x.clock, err = os.Create(offset)
	require.NoError(x.t, err)
	x.t.Cleanup(func() { _ = x.clock.Close() })
	x.setClock(0)
	return []string{"LD_PRELOAD=" + lib, "TORTURE_CLOCK=" + offset}
}

// setClock moves the clock to so much ahead of the machine's. The write is of eight
// bytes in place, which a server that reads them sees as one.
func (x *run) setClock(ahead time.Duration) {
	x.t.Helper()
	_, err := x.clock.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead.Microseconds())), 0)
	require.NoError(x.t, err)
}
