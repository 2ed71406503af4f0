// Package keytable is a concurrent hash table from keys to state, with a bound on
// the number of keys.
//
// Its chains run through the nodes, so that a key costs its node and a pointer. For a key
// of 20 bytes sync.Map and xsync.Map were measured at 120 to 180 bytes; this table adds
// 16. A look-up takes no lock and writes nothing.
package keytable

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
)

// Node is one key and its state. The address of State is stable. What a look-up reads, and the first words
// of State, share a cache line if the size of a Node is a multiple of one.
type Node[S any] struct {
	Key   string
	Hash  uint32 // of Key, by the table's seed
	Tag   uint32 // the owner's, 0 at first
	next  atomic.Pointer[Node[S]]
	State S
}

// Table holds at most max nodes. Call Init first. It is safe for concurrent use.
type Table[S any] struct {
	seed   maphash.Seed
	shards [shards]shard[S]
	size   atomic.Int64
	max    int64
}

// shards is a power of two. Each shard has a lock of its own for writes, so that growth
// delays few of them.
const shards = 64

type shard[S any] struct {
	chains atomic.Pointer[[]chain[S]] // nil while empty; a power of two long
	mu     sync.Mutex                 // for all writes; readers take it only to be sure that they miss nothing
	size   int                        // nodes
	_      [40]byte                   // shards do not share a cache line
}

type chain[S any] = atomic.Pointer[Node[S]]

// Init prepares the table for at most max keys.
func (t *Table[S]) Init(max int64) { t.seed, t.max = maphash.MakeSeed(), max }

// Len returns the number of keys.
func (t *Table[S]) Len() int64 { return t.size.Load() }

// Get returns the key's node, or nil. While a shard grows, Get may miss a node that is
// there, so a caller that gets nil must call Find or GetOrMake.
func (t *Table[S]) Get(key string) *Node[S] {
	h := uint32(maphash.String(t.seed, key))
	if chains := t.shards[h%shards].chains.Load(); chains != nil {
		for n := of(*chains, h).Load(); n != nil; n = n.next.Load() {
			if n.Hash == h && n.Key == key {
				return n
			}
		}
	}
	return nil
}

// Find is Get, but misses no node; it takes a lock if Get finds none.
func (t *Table[S]) Find(key string) *Node[S] {
	if n := t.Get(key); n != nil {
		return n
	}
	s := &t.shards[uint32(maphash.String(t.seed, key))%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.Get(key)
}

// GetOrMake returns the key's node, or makes one whose State init sets, or returns nil
// if there is no room. It copies the key, whose bytes may be the caller's buffer. init
// returns the node, or one of the key that was deleted and comes back. It must not use the table.
func (t *Table[S]) GetOrMake(key string, init func(n *Node[S]) *Node[S]) *Node[S] {
	h := uint32(maphash.String(t.seed, key))
	s := &t.shards[h%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := t.Get(key); n != nil {
		return n
	}
	if t.size.Add(1) > t.max {
		t.size.Add(-1)
		return nil
	}

	// Double the chains, so that there are never more nodes than chains. Each node is pushed onto its new chain. A reader
	// at that node goes on along the new chain and may miss the rest of the old one. The reader cannot go round in circles,
	// because a moved node points only to moved nodes.
	chains := s.chains.Load()
	if chains == nil || s.size == len(*chains) {
		var old []chain[S]
		if chains != nil {
			old = *chains
		}
		more := make([]chain[S], max(2*len(old), 8))
		for i := range old {
			for n := old[i].Load(); n != nil; {
				next, to := n.next.Load(), of(more, n.Hash)
				n.next.Store(to.Load())
				to.Store(n)
				n = next
			}
		}
		chains = &more
		s.chains.Store(chains)
	}

	// Push the new one. It points to the rest of its chain before a reader can find it.
	to := of(*chains, h)
	n := init(&Node[S]{Key: strings.Clone(key), Hash: h})
	n.next.Store(to.Load())
	to.Store(n)
	s.size++
	return n
}

// Delete removes n, if it is still the node of its key.
func (t *Table[S]) Delete(n *Node[S]) {
	s := &t.shards[n.Hash%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	chains := s.chains.Load()
	if chains == nil {
		return
	}
	link := of(*chains, n.Hash)
	for link.Load() != nil && link.Load() != n {
		link = &link.Load().next
	}
	if link.Load() == n { // n keeps its next, because a reader may be at n
		link.Store(n.next.Load())
		s.size--
		t.size.Add(-1)
	}
}

// All calls yield with every node that is in the table throughout the call, one shard
// after the other, until yield returns false. It holds no lock while it calls yield.
func (t *Table[S]) All(yield func(*Node[S]) bool) {
	// A shard's nodes are copied first, because yield may take long, and may delete nodes.
	var nodes []*Node[S]
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		nodes = nodes[:0]
		if chains := s.chains.Load(); chains != nil {
			for i := range *chains {
				for n := (*chains)[i].Load(); n != nil; n = n.next.Load() {
					nodes = append(nodes, n)
				}
			}
		}
		s.mu.Unlock()
		for _, n := range nodes {
			if !yield(n) {
				return
			}
		}
	}
}

// of returns the chain of nodes with that hash.
func of[S any](chains []chain[S], hash uint32) *chain[S] {
	return &chains[hash/shards&uint32(len(chains)-1)]
}
