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
	durable   topology = "durable server"  // it keeps all its data when it is killed
	volatile  topology = "volatile server" // it keeps none
	clocked   topology = "server with a clock"
	pair      topology = "primary and replica"
	clustered topology = "cluster of six"
	sharded   topology = "three shards"
)

var topologies = []topology{durable, volatile, clocked, pair, clustered, sharded}

// peer is a server, the proxy by which processes reach it, and a store that bypasses the
// proxy.
type peer struct {
	*redistest.Server
	proxy *redistest.Proxy
	store *redisstore.Store
}

// aof makes a server log each command before it replies. It does not sync the file,
// because a failure of the machine is not among the faults.
var aof = []string{"--appendonly", "yes", "--appendfsync", "no"}

// setUp starts the servers and records where processes find them.
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
	for r := range role(roles) { // try names until each part has one
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

// tag returns the hash tag that decides a key's slot.
func tag(key string) string { return "{" + key + "}" }

// nodeOf returns the index of the peer that has the key now, or -1 while none has.
func (x *run) nodeOf(key string) int {
	switch x.Topology {
	case clustered:
		return slices.Index(x.cluster.Nodes, x.cluster.NodeOf(tag(key)))
	case sharded:
		return slices.Index(shardNames, x.shards.Shard(key))
	}
	return 0
}

// peer returns the present server of a part, or nil while none serves it.
func (x *run) peer(part int) *peer {
	if i := x.nodeOf(x.Keys[tight][part]); i >= 0 {
		return x.peers[i]
	}
	return nil
}

// contents returns what a server holds for a role's key on a part.
func (x *run) contents(at *peer, r role, part int) backend.Contents {
	x.t.Helper()
	held, err := at.store.Inspect(x.t.Context(), x.Keys[r][part])
	require.NoError(x.t, err)
	return held
}

// unreplicated returns how many tokens of a key the primary has granted without the
// replica's knowledge, while all traffic is held. Unreplicated returns do not lower it,
// because others may have got those tokens.
func (x *run) unreplicated(r role) int64 {
	x.t.Helper()
	there, here := x.contents(x.peers[0], r, 0), x.contents(x.peers[1], r, 0)
	if there.Window != here.Window {
		return granted(there)
	}
	return max(granted(there)-granted(here), 0)
}

// granted returns all tokens that were granted, less the refunds of direct calls.
func granted(c backend.Contents) int64 {
	n := c.Used
	for _, a := range c.Clients {
		n += a.Returned
	}
	return n
}

// newClock compiles the shim and returns the environment of a server that uses it.
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

// setClock sets the server's clock ahead of the machine's. It writes eight bytes in
// place, which a server reads as one.
func (x *run) setClock(ahead time.Duration) {
	x.t.Helper()
	_, err := x.clock.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead.Microseconds())), 0)
	require.NoError(x.t, err)
}
