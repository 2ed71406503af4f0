package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// route leads calls to groups. A single server is one group. A cluster has one for
// every master, for a pipeline waits for the slowest of its replies: a node that hangs
// must not keep those of other nodes. What a node does not serve any more goes to the
// cluster's client by itself, which follows MOVED and ASK.
type route struct {
	whole    *group
	cluster  *redis.ClusterClient // whose nodes have groups of their own; nil = none
	known    atomic.Bool          // it has learned where the slots are
	nodes    sync.Map             // *redis.Client -> *group
	made     atomic.Int32         // groups
	reloaded atomic.Int64         // Unix ns
}

// manyNodes is how many groups are kept. A cluster whose nodes change their addresses
// has new ones for ever; who is forgotten and needed is made again.
const manyNodes = 1024

// betweenReloads is the least time between two looks for where a cluster's slots are.
const betweenReloads = 100 * time.Millisecond

// newGroup is the group of a client. Those that are not go-redis' own get no pipelines:
// nothing is known of how they repeat commands. A client that reads from a cluster's
// replicas chooses one for each command, so none can share a pipeline.
func (s *Store) newGroup(client redis.UniversalClient) *group {
	g := &group{client: client, clock: &s.clock, ack: s.ack, lanes: alone, retries: initial}
	if node, ok := client.(*redis.Client); ok {
		g.lanes, g.punctual = lanes, node.Options().ContextTimeoutEnabled
	}
	return g
}

// group returns the one that the key belongs to. It does no I/O: until the cluster's
// client has served a call, and so knows its slots, each goes by itself.
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
	if s.ack.replicas == 0 {
		g.elsewhere = s.whole
	}
	kept, _ := s.nodes.LoadOrStore(node, g)
	return kept.(*group)
}

// node is the master of the key's slot as far as that is known, or nil.
func (s *Store) node(ctx context.Context, tag string) *redis.Client {
	if s.cluster == nil || !s.known.Load() {
		return nil
	}
	node, _ := s.cluster.MasterForKey(ctx, tag)
	return node
}

// served notes that a call through g has succeeded.
func (s *Store) served(g *group) {
	s.known.Store(true)
	if (s.cluster == nil || g != s.whole) && s.warn != nil && g.looked.CompareAndSwap(false, true) {
		go s.look(g.client)
	}
}

// cure asks go-redis for the cluster's slots anew after a failure that may mean that
// another node has taken over. By itself it does so after MOVED, and every 60 s: a
// node that hangs says nothing, and 58 s passed until its replica was found.
func (s *Store) cure(f fault) {
	last, now := s.reloaded.Load(), time.Now().UnixNano()
	if s.cluster != nil && f.reload && now-last >= int64(betweenReloads) && s.reloaded.CompareAndSwap(last, now) {
		s.cluster.ReloadState(context.Background()) // returns at once
	}
}
