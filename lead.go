package reservoir

import (
	"sync"
	"time"
)

// lead estimates how long it takes from ordering a batch to having it: the round
// trip as TCP estimates it (RFC 6298: smoothed mean and mean deviation), kept per
// shard, for shards differ.
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

// leadOf is the estimator of the shard that key is on, where the store has
// shards, or the store's.
func (l *Limiter) leadOf(key string) *lead {
	name := ""
	if s, ok := l.store.(interface{ Shard(key string) string }); ok {
		name = s.Shard(key)
	}
	if t, ok := l.leads.Load(name); ok {
		return t.(*lead)
	}
	t, _ := l.leads.LoadOrStore(name, new(lead))
	return t.(*lead)
}
