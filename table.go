package reservoir

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
)

// table is the keys in memory, at most max of them: a hash table whose chains run
// through the entries themselves, so that a key costs no more than its entry and
// a pointer. A look-up takes no lock and writes nothing.
//
// sync.Map and xsync.Map were measured first: they add 120 to 180 bytes to a key
// of 20 bytes, this adds 16.
type table struct {
	seed   maphash.Seed
	shards [tableShards]tableShard
	size   atomic.Int64
	max    int64
}

// tableShards is a power of two. Shards are filled and grown each under a lock of
// its own, so that growing holds up few.
const tableShards = 64

type tableShard struct {
	chains atomic.Pointer[[]atomic.Pointer[entry]] // nil while empty; a power of two long
	mu     sync.Mutex                              // for all writes
	size   int
	_      [40]byte // shards do not share a cache line
}

func (t *table) init(max int64) { t.seed, t.max = maphash.MakeSeed(), max }

// get returns the key's entry. While its shard grows it may miss one that is
// there: who is told nil must ask getOrMake.
func (t *table) get(key string) *entry {
	h := maphash.String(t.seed, key)
	chains := t.shards[h%tableShards].chains.Load()
	if chains == nil {
		return nil
	}
	for e := chainOf(*chains, h).Load(); e != nil; e = e.next.Load() {
		if e.hash == h && e.key == key {
			return e
		}
	}
	return nil
}

// find is get, and sure.
func (t *table) find(key string) *entry {
	if e := t.get(key); e != nil {
		return e
	}
	s := &t.shards[maphash.String(t.seed, key)%tableShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.get(key)
}

// getOrMake returns the key's entry, makes one if there is none, or returns nil
// if there is no room. The key is copied: its bytes may be the caller's buffer.
func (t *table) getOrMake(key string, make func(key string, hash uint64) *entry) *entry {
	h := maphash.String(t.seed, key)
	s := &t.shards[h%tableShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := t.get(key); e != nil {
		return e
	}
	if t.size.Add(1) > t.max {
		t.size.Add(-1)
		return nil
	}
	e := make(strings.Clone(key), h)
	s.grow()
	push(chainOf(*s.chains.Load(), h), e)
	s.size++
	return e
}

// drop removes e, if it is still what its key leads to.
func (t *table) drop(e *entry) {
	s := &t.shards[e.hash%tableShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	chains := s.chains.Load()
	if chains == nil {
		return
	}
	at := chainOf(*chains, e.hash)
	for at.Load() != nil && at.Load() != e {
		at = &at.Load().next
	}
	if at.Load() == e { // e keeps its next: a reader may stand on it
		at.Store(e.next.Load())
		s.size--
		t.size.Add(-1)
	}
}

// each calls f with every entry that is there throughout the call, one shard
// after the other.
func (t *table) each(f func(e *entry)) {
	var all []*entry
	for i := range t.shards {
		all = t.shards[i].list(all[:0])
		for _, e := range all {
			f(e)
		}
	}
}

func (s *tableShard) list(to []*entry) []*entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if chains := s.chains.Load(); chains != nil {
		for i := range *chains {
			for e := (*chains)[i].Load(); e != nil; e = e.next.Load() {
				to = append(to, e)
			}
		}
	}
	return to
}

// grow doubles the shard's chains when there would be more than one entry to a
// chain. An entry is moved by pushing it onto its new chain: a reader that stands
// on it goes on along the new one and may miss the rest of the old. It cannot go
// round in circles, for an entry that was moved points only to others that were.
func (s *tableShard) grow() {
	old := s.chains.Load()
	if old != nil && s.size < len(*old) {
		return
	}
	n := 8
	if old != nil {
		n = 2 * len(*old)
	}
	chains := make([]atomic.Pointer[entry], n)
	if old != nil {
		for i := range *old {
			for e := (*old)[i].Load(); e != nil; {
				next := e.next.Load()
				push(chainOf(chains, e.hash), e)
				e = next
			}
		}
	}
	s.chains.Store(&chains)
}

func chainOf(chains []atomic.Pointer[entry], hash uint64) *atomic.Pointer[entry] {
	return &chains[hash/tableShards&uint64(len(chains)-1)]
}

func push(chain *atomic.Pointer[entry], e *entry) {
	e.next.Store(chain.Load())
	chain.Store(e)
}
