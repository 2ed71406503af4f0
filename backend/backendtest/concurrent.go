package backendtest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-reservoir/reservoir/backend"
)

// Goroutines and calls of each in the tests of concurrency.
const (
	callers = 16
	calls   = 25
)

// testConcurrentTake: of many at once exactly the limit is allowed.
func testConcurrentTake(t *testing.T, s backend.Store) {
	b := newBench(t, s, backend.Limit{Tokens: callers * calls / 2, Window: far})
	var allowed atomic.Int64
	b.race(func(int) {
		for range calls {
			r, err := s.Take(b.at(0), backend.TakeRequest{Key: b.key, Limit: b.limit, Tokens: 1})
			switch {
			case err != nil:
				t.Error(err)
			case r.Allowed:
				allowed.Add(1)
			}
		}
	})
	equal(t, "allowed", allowed.Load(), b.limit.Tokens)
	b.left(0, 0)
}

// race runs f(0) to f(callers-1) at once and waits for all.
func (b *bench) race(f func(i int)) {
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}

// testConcurrentSync: clients and direct callers order until nothing remains;
// together they hold exactly the limit. Each statement is told twice at once.
func testConcurrentSync(t *testing.T, s backend.Store) {
	b := newBench(t, s, backend.Limit{Tokens: 5000, Window: far})
	var held atomic.Int64
	b.race(func(i int) {
		if i%4 == 0 {
			held.Add(b.takeAll())
			return
		}
		held.Add(b.syncAll(fmt.Sprint("client", i)))
	})
	equal(t, "held by all", held.Load(), b.limit.Tokens)
	b.left(0, 0)
}

// takeAll takes 7 tokens at a time, then single ones, until none are left.
func (b *bench) takeAll() (held int64) {
	for n := int64(7); n > 0; {
		r, err := b.store.Take(b.at(0), backend.TakeRequest{Key: b.key, Limit: b.limit, Tokens: n})
		switch {
		case err != nil:
			b.t.Error(err)
			return held
		case r.Allowed:
			held += n
		default:
			n /= 7
		}
	}
	return held
}

// syncAll orders until nothing remains. A duplicate of each statement races with it.
func (b *bench) syncAll(client string) int64 {
	x := say{client: client, want: 100, need: 1, strand: 50}
	for {
		var twin sync.WaitGroup
		twin.Go(func() { _, _ = b.store.Sync(b.at(0), b.request(x)) })
		r, err := b.store.Sync(b.at(0), b.request(x))
		twin.Wait()
		if err != nil {
			b.t.Error(err)
			return x.g
		}
		x.window, x.g = far, r.Granted
		if r.Remaining > 0 {
			continue
		}
		r, err = b.store.Sync(b.at(0), b.request(say{client: client, window: far, g: x.g}))
		if err != nil {
			b.t.Error(err)
		}
		return r.Granted // with what only the duplicate was told
	}
}
