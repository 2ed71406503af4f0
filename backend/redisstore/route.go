package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// route chooses the group of a call. A single server is one group. A cluster has a group
// for every master: a pipeline waits for its slowest reply, so a node that hangs must not
// share pipelines with other nodes. A call that its node no longer serves goes alone to
// the cluster's client, which follows MOVED and ASK: see [group.complete].
type route struct {
	whole    *group
	cluster  *redis.ClusterClient // its nodes have groups of their own; nil = no cluster
	known    atomic.Bool          // a call has succeeded, so the cluster's client has a slot table
	nodes    sync.Map             // *redis.Client -> *group
	made     atomic.Int32         // number of groups made
	reloaded atomic.Int64         // Unix ns
}

// manyNodes bounds the number of groups, because nodes of a cluster may change their
// addresses for ever. A group that is still needed is made again.
const manyNodes = 1024

// betweenReloads is the least time between two reloads of a cluster's slot table.
const betweenReloads = 100 * time.Millisecond

// newGroup returns a group for client. Only a *redis.Client gets pipelines. Clients
// that are not go-redis' own may repeat commands in unknown ways, and a client that reads
// from a cluster's replicas chooses a node for each command.
func (s *Store) newGroup(client redis.UniversalClient) *group {
	g := &group{client: client, clock: &s.clock, ack: s.ack, pipelines: unbounded, earned: mostSaved}
	if node, ok := client.(*redis.Client); ok {
		g.pipelines, g.obeysDeadline = pipelines, node.Options().ContextTimeoutEnabled
	}
	return g
}

// group returns the group of the key, without I/O. Until the cluster's client has served
// a call, and so has a slot table, each call goes alone to that client.
func (s *Store) group(ctx context.Context, tag string) *group {
	node := s.node(ctx, tag)
	if node == nil {
		return s.whole
	}
	if g, ok := s.nodes.Load(node); ok {
		return g.(*group)
	}
	if s.made.Add(1)%manyNodes == 0 {
		s.nodes.Clear()
	}
	g := s.newGroup(node)
	if s.ack == nil {
		g.redirects = s.whole
	}
	kept, _ := s.nodes.LoadOrStore(node, g)
	return kept.(*group)
}

// node returns the master of the key's slot, or nil if it is unknown.
func (s *Store) node(ctx context.Context, tag string) *redis.Client {
	if s.cluster == nil || !s.known.Load() {
		return nil
	}
	node, _ := s.cluster.MasterForKey(ctx, tag)
	return node
}

// reload asks go-redis to reload the cluster's slot table after a failure that may mean
// that another node has taken over. go-redis itself reloads only after MOVED and every
// 60 s, so it took 58 s to find the replica of a node that hung.
func (s *Store) reload(f fault) {
	last, now := s.reloaded.Load(), time.Now().UnixNano()
	if s.cluster != nil && f.reload && now-last >= int64(betweenReloads) && s.reloaded.CompareAndSwap(last, now) {
		s.cluster.ReloadState(context.Background()) // returns at once
	}
}
