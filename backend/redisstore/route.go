package redisstore

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// route leads calls to the groups of one client.
//
// A single server is one group. A cluster has one for every master, for a
// pipeline waits for the slowest of its replies: a node that hangs must not keep
// those of other nodes. Pipelines go to the node's own client, because go-redis'
// pipeline for a whole cluster keeps the error of a first try, such as MOVED or a
// failed dial, for a command that it sent again and that may have run. What a
// node does not serve any more goes to the cluster's client by itself, which
// follows MOVED and ASK.
type route struct {
	client redis.UniversalClient
	clock  *serverClock
	ack    ack
	second *route // for further attempts; nil = this one
	// punctual says that go-redis ends a call by its context's deadline.
	punctual bool
	whole    *group
	cluster  *redis.ClusterClient // whose nodes have groups of their own
	known    atomic.Bool          // cluster has learned where the slots are
	nodes    sync.Map             // *redis.Client -> *group
	made     atomic.Uint32        // groups so far, for sweep
	reloads  gate
}

// manyNodes is after how many new groups the idle ones are dropped. A cluster
// whose nodes change their addresses gets new clients for them, for ever; who is
// dropped and needed again is made again.
const manyNodes = 64

// newRoute is the route to a primary. Clients that are not go-redis' own get no
// pipelines: nothing is known of how those repeat commands.
func newRoute(client redis.UniversalClient, clock *serverClock) *route {
	r := &route{client: client, clock: clock}
	switch c := client.(type) {
	case *redis.Client:
		r.whole, r.punctual = newGroup(c, clock, lanes), c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		r.punctual = c.Options().ContextTimeoutEnabled
		r.cluster, r.whole = c, newGroup(c, clock, alone)
	default:
		r.whole = newGroup(c, clock, alone)
	}
	return r
}

// newReadRoute is the route to a replica. A cluster's client chooses one for
// each command, so none can share a pipeline.
func newReadRoute(client redis.UniversalClient, clock *serverClock) *route {
	r := newRoute(client, clock)
	if r.cluster != nil {
		r.cluster, r.punctual = nil, false
	}
	return r
}

// require makes all calls of the route wait for replicas.
func (r *route) require(a ack) {
	if r.cluster != nil {
		a.peers = newPeers(r.cluster, &r.reloads)
	}
	r.ack, r.whole.ack = a, a
}

// prompt reports whether a call is surely over at its context's deadline. That of
// a cluster's client may wait for another that learns where the slots are.
func (r *route) prompt() bool {
	return r.punctual && (r.cluster == nil || r.known.Load())
}

// group returns the one that the key belongs to. It does no I/O: until the
// cluster's client has served a call, and so knows its slots, each goes by itself.
func (r *route) group(ctx context.Context, tag string) *group {
	if node := r.node(ctx, tag); node != nil {
		return r.of(node).current(tag)
	}
	return r.whole
}

// node is the master of the key's slot as far as that is known, or nil.
func (r *route) node(ctx context.Context, tag string) *redis.Client {
	if r.cluster == nil || !r.known.Load() {
		return nil
	}
	node, err := r.cluster.MasterForKey(ctx, tag)
	if err != nil {
		return nil
	}
	return node
}

// of returns the group of the node.
func (r *route) of(node *redis.Client) *group {
	if g, ok := r.nodes.Load(node); ok {
		return g.(*group)
	}
	if r.made.Add(1)%manyNodes == 0 {
		r.sweep()
	}
	g := newGroup(node, r.clock, lanes)
	g.elsewhere, g.ack = r.whole, r.ack
	all, _ := r.nodes.LoadOrStore(node, g)
	return all.(*group)
}

// sweep drops the groups that nobody uses. A call that has just found one of them
// goes through it all the same.
func (r *route) sweep() {
	r.nodes.Range(func(node, g any) bool {
		if g.(*group).idle() {
			r.nodes.Delete(node)
		}
		return true
	})
}
