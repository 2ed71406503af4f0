package torture

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

const syncLimit = 20 * time.Second

// replicas is two servers of which one replicates the other, by a proxy that can
// make it lag. They change roles at each failover.
type replicas struct {
	t       testing.TB
	servers [2]*redistest.Server
	links   [2]*redistest.Proxy // before each server, for the other to replicate by
	admin   [2]*redis.Client
	stores  [2]*redisstore.Store
	gate    *gate // leads to the primary
	primary int
}

func startReplicas(t testing.TB) *replicas {
	t.Helper()
	p := &replicas{t: t}
	for i := range p.servers {
		p.servers[i] = redistest.Start(t)
		p.links[i] = redistest.NewProxy(t, p.servers[i].Addr())
		p.admin[i] = p.servers[i].Client(quietly)
		p.stores[i] = redisstore.New(p.admin[i])
	}
	p.gate = newGate(t, p.servers[0].Addr())
	p.follow()
	return p
}

func (p *replicas) replica() int { return 1 - p.primary }

// follow makes the other server the primary's replica and waits until it is in sync.
func (p *replicas) follow() {
	p.t.Helper()
	host, port, err := net.SplitHostPort(p.links[p.primary].Addr())
	require.NoError(p.t, err)
	ctx := context.Background()
	require.NoError(p.t, p.admin[p.replica()].Do(ctx, "replicaof", host, port).Err())
	p.awaitSync()
}

func (p *replicas) awaitSync() {
	p.t.Helper()
	await(p.t, syncLimit, "the replica is in sync", func() bool {
		there, here := p.info(p.primary), p.info(p.replica())
		return here["master_link_status"] == "up" && here["master_repl_offset"] == there["master_repl_offset"]
	})
}

// info is the section on replication, empty when the server does not answer.
func (p *replicas) info(i int) map[string]string {
	return infoOf(p.admin[i], "replication")
}

func infoOf(c *redis.Client, section string) map[string]string {
	text, _ := c.Info(context.Background(), section).Result()
	fields := make(map[string]string)
	for l := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(l), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// unreplicated is how many tokens the primary has granted for a key that the replica
// does not know of, while nothing moves. What was given back of late, which the replica
// does not know of either, is none the fewer: others were granted it.
func (p *replicas) unreplicated(key string) int64 {
	p.t.Helper()
	var held [2]backend.Contents
	for i, store := range p.stores {
		var err error
		held[i], err = store.Inspect(p.t.Context(), key)
		require.NoError(p.t, err)
	}
	there, here := held[p.primary], held[p.replica()]
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

// promote makes the replica the primary for everybody.
func (p *replicas) promote() {
	p.t.Helper()
	old := p.primary
	p.servers[old].Kill()
	p.links[old].Cut()
	require.NoError(p.t, p.admin[p.replica()].Do(context.Background(), "replicaof", "no", "one").Err())
	p.primary = p.replica()
	p.gate.lead(p.servers[p.primary].Addr())
}

// rejoin starts the former primary as the replica of the new one.
func (p *replicas) rejoin() {
	p.t.Helper()
	p.links[p.replica()].Hold(false)
	plainly(p.servers[p.replica()].Restart)
	p.follow()
}
