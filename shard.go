package reservoir

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/internal/placement"
)

// shard is what is known of one shard of the store, or of the whole store where
// it has none: how long it takes to answer, and whether it does.
type shard struct {
	name string
	left atomic.Bool // keys that were on it are on another one now
	lead
	breaker
}

// shardOf is the shard that key is on. A store that has shards, whose failures
// are not each other's, has a method Shard which names them without I/O.
func (l *Limiter) shardOf(key string) *shard {
	name := placement.Shard(l.store, key)
	if s, ok := l.shards.Load(name); ok {
		return s.(*shard)
	}
	s, _ := l.shards.LoadOrStore(name, &shard{name: name})
	return s.(*shard)
}

// findShard looks again for the shard of a key before the store is asked. A cluster
// knows none until its first answer, its slots move, and so do keys in a roll-out.
// Under entry.mu.
func (e *entry) findShard() {
	s := e.l.shardOf(e.key)
	if s == e.shard {
		return
	}
	e.shard.left.Store(true)
	if e.shard.open.Load() {
		e.l.leaving.Store(e.l.clock.now() + int64(longestPause))
	}
	e.shard = s
}

// tidy forgets, a while after keys have left a shard that is away, and while others
// answer, the shards that no key is on any more: nobody would ask whether they are back.
func (l *Limiter) tidy() {
	t := l.leaving.Load()
	if t == 0 || l.clock.now() < t || !l.leaving.CompareAndSwap(t, 0) {
		return
	}
	l.sweeper.mu.Lock()
	defer l.sweeper.mu.Unlock()
	if !l.sweeper.over {
		l.flights.Add(1) // Close waits for it
		go l.forget()
	}
}

func (l *Limiter) forget() {
	defer l.flights.Done()
	inUse := make(map[*shard]bool)
	l.table.each(func(e *entry) { inUse[l.shardOf(e.key)] = true })
	l.shards.Range(func(name, value any) bool {
		if s := value.(*shard); s.left.Load() && !inUse[s] {
			l.shards.CompareAndDelete(name, s)
			l.noted(s, l.clock.now(), nil)
		}
		return true
	})
}

// lead estimates how long it takes from ordering a batch to having it: the round
// trip as TCP estimates it (RFC 6298: smoothed mean and mean deviation).
type lead struct {
	mu        sync.Mutex
	mean, dev time.Duration
}

// slop is added to the lead time for the scheduling of goroutines.
const slop = time.Millisecond

func (t *lead) heard(trip time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mean == 0 {
		t.mean, t.dev = trip, trip/2
		return
	}
	t.dev += (max(t.mean-trip, trip-t.mean) - t.dev) / 4
	t.mean += (trip - t.mean) / 8
}

func (t *lead) time() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mean + 4*t.dev + slop
}
