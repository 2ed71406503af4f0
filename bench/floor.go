package bench

import (
	"sync"
	"sync/atomic"
	"time"
)

// bare is the least that a check in memory can be: read the clock, compare, and
// take one by compare-and-swap. It decides nothing that anybody could use, and
// says what a figure is to be held against on the machine at hand.
type bare struct {
	began time.Time
	ends  time.Duration // since then
	stock atomic.Int64
}

func newBare() *bare {
	b := &bare{began: time.Now(), ends: 24 * time.Hour}
	b.stock.Store(1 << 60)
	return b
}

func (b *bare) take() bool {
	if time.Since(b.began) > b.ends {
		return false
	}
	for {
		n := b.stock.Load()
		if n < 1 {
			return false
		}
		if b.stock.CompareAndSwap(n, n-1) {
			return true
		}
	}
}

func openBareHandle(*rig) peer {
	b := newBare()
	return peer{loop: looping(func(w *worker) bool { return b.take() })}
}

// openBareMap adds the look-up of the key.
func openBareMap(*rig) peer {
	m := perKey[bare]{make: func(string) *bare { return newBare() }}
	return peer{loop: looping(func(w *worker) bool { return m.get(w.keys.cycle()).take() })}
}

// perKey are limiters of one key each, for those that leave the map to their
// users.
type perKey[T any] struct {
	keys sync.Map // string → *T
	make func(key string) *T
}

func (m *perKey[T]) get(key string) *T {
	if v, ok := m.keys.Load(key); ok {
		return v.(*T)
	}
	v, _ := m.keys.LoadOrStore(key, m.make(key))
	return v.(*T)
}
