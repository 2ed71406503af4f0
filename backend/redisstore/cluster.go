package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file is what is done when a node of a cluster fails. go-redis by itself
// looks for a new topology after MOVED, and every 60 s; a node that hangs says
// nothing, and it took 58 s until its replica was found. So a failure asks for a
// reload. That may still ask the hung node itself first and wait for it, for
// seconds, so that the replica of the slot is asked directly as well.

// rest is the least time between two reloads of a cluster's client, and between
// two looks at a node's replica.
const rest = 100 * time.Millisecond

// searchTime bounds one look.
const searchTime = time.Second

// gate lets one pass in a while.
type gate struct{ last atomic.Int64 }

// epoch is what gates count from.
var epoch = time.Now()

// pass reports whether rest has gone by since it last did, or it never did.
func (g *gate) pass() bool {
	last, now := g.last.Load(), int64(time.Since(epoch))
	return (last == 0 || now-last >= int64(rest)) && g.last.CompareAndSwap(last, now)
}

// cure does what the failure of a call to g calls for. It waits for nothing.
func (r *route) cure(what cure, g *group, tag string) {
	cluster, ok := r.client.(*redis.ClusterClient)
	if !ok || what == noCure {
		return
	}
	if r.reloads.pass() {
		cluster.ReloadState(context.Background()) // returns at once
	}
	if what == findHeir && r.cluster != nil && g != r.whole && tellsMasters(cluster.Options()) && g.searches.pass() {
		quietly(func() { r.search(g, tag) })
	}
}

// tellsMasters reports whether a read shows who is a slot's master. A replica
// answers it in any case behind a client that reads from replicas, and where nodes
// are not in cluster mode: go-redis has to be told then which slots they serve, as
// NewFailoverClusterClient does.
func tellsMasters(o *redis.ClusterOptions) bool { return !o.ReadOnly && o.ClusterSlots == nil }

// search looks whether the slot of tag, which belonged to g, has another master by
// now: the one that go-redis knows of, or the replica. A node that is not the
// slot's master answers a plain GET with MOVED, so an answer is a master's.
func (r *route) search(g *group, tag string) {
	ctx, cancel := context.WithTimeout(context.Background(), searchTime)
	defer cancel()
	if node := serving(ctx, g, tag, r.cluster.MasterForKey); node != nil {
		// Calls go there by themselves, if its slots are not thought to be g's; and
		// it may have got this one alone.
		r.of(node).next.Store(nil)
	} else if node := serving(ctx, g, tag, r.cluster.SlaveForKey); node != nil {
		g.succeed(r.of(node))
	}
}

// serving returns the node that find names, if it is another than g's and serves
// the slot of tag.
func serving(ctx context.Context, g *group, tag string, find func(context.Context, string) (*redis.Client, error)) *redis.Client {
	node, err := find(ctx, tag)
	if err != nil || node == g.client {
		return nil
	}
	if err := node.Get(ctx, tag).Err(); err != nil && err != redis.Nil {
		return nil
	}
	return node
}

// succession is who serves a node's slots in its place. A failover moves all of
// them, so it is kept by node. It is known for as long as go-redis does not know
// better: once it has reloaded, it leads calls to the new node by itself.
type succession struct {
	next     atomic.Pointer[heir]
	searches gate
	denied   atomic.Uint32 // calls that the node said are not for it, whatever the key
	moves    atomic.Int32  // calls whose slot the node said is another's, since it became an heir
	moved    sync.Map      // their tags, up to fewMoves
}

// fewMoves is how many keys of an heir's may belong elsewhere, as those of a slot that
// has moved do, until none of its keys are believed to be its own.
const fewMoves = 16

// deny notes that the node did not serve the tag's key. ASK leaves it the slot.
func (g *group) deny(err error, tag string) {
	switch {
	case redis.HasErrorPrefix(err, "ASK"):
	case redis.HasErrorPrefix(err, "MOVED") && g.moves.Add(1) <= fewMoves:
		g.moved.Store(tag, nil)
	default:
		g.denied.Add(1)
	}
}

// heir is believed until it says itself that a slot is not its own, of that slot's
// key, or that it is a replica: a former master that was paused claims its slots for a moment when it
// comes back.
type heir struct {
	group  *group
	denied uint32 // when it became the heir
}

// succeed makes next the heir of g, and an heir of nobody's slots itself.
func (g *group) succeed(next *group) {
	next.next.Store(nil)
	next.moved.Clear()
	next.moves.Store(0)
	g.next.Store(&heir{next, next.denied.Load()})
}

// current returns the group that serves the tag, one of g's: g itself, or the heir's heir.
func (g *group) current(tag string) *group {
	for range 4 { // two that became each other's at the same time are no way out
		h := g.next.Load()
		if h == nil || h.group.denied.Load() != h.denied {
			break
		}
		if _, moved := h.group.moved.Load(tag); moved {
			break
		}
		g = h.group
	}
	return g
}
