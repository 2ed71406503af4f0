package backendtest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-reservoir/reservoir/backend"
)

// Number of goroutines, and of calls by each, in the concurrent tests.
const (
	callers = 16
	calls   = 25
)

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

// both runs a test with a limit and with the rolling one.
func both(l backend.Limit, test func(l backend.Limit)) {
	test(l)
	test(l.Rolling())
}

// testConcurrentSync: clients and direct callers ask until nothing remains. Together
// they hold exactly the limit. Each statement is made twice at once.
func testConcurrentSync(t testing.TB, s backend.Store) {
	both(backend.Limit{Tokens: 5000, Window: far}, func(l backend.Limit) {
		b := newBench(t, s, l)
		var held atomic.Int64
		b.race(func(i int) {
			if i%4 == 0 {
				held.Add(b.takeAll())
				return
			}
			held.Add(b.syncAll(fmt.Sprint("client", i)))
		})
		equal(t, "held by all of "+l.Counter(), held.Load(), l.Tokens)
		equal(t, "remaining", must(s.Check(b.at(0), b.key, l))(t).Remaining, 0)
		equal(t, "charged", b.charged(0), b.inspected(fmt.Sprint("charged=", l.Tokens)))
	})
}

// testConcurrentReset: in each window that a reset opens while many take, no more than
// the limit is allowed.
func testConcurrentReset(t testing.TB, s backend.Store) {
	both(backend.Limit{Tokens: callers * calls / 8, Window: far}, func(l backend.Limit) {
		b := newBench(t, s, l)
		var mu sync.Mutex
		allowed := map[backend.Window]int64{}
		b.race(func(i int) {
			for n := range calls {
				if i == 0 && n%5 == 4 {
					if _, err := s.Reset(b.at(0), b.key, l); err != nil {
						t.Error(err)
					}
				}
				if r := b.take(1); r.Grant == 1 {
					mu.Lock()
					allowed[r.Window]++
					mu.Unlock()
				}
			}
		})
		equal(t, "windows of "+l.Counter(), len(allowed), 1+calls/5)
		for _, n := range allowed {
			if n > l.Tokens {
				t.Errorf("%d tokens of %d in one window", n, l.Tokens)
			}
		}
		last := must(s.Check(b.at(0), b.key, l))(t)
		equal(t, "remaining", last.Remaining, l.Tokens-allowed[last.Window])
	})
}

// takeAll takes 7 tokens at a time, then single ones, until none are left.
func (b *bench) takeAll() (held int64) {
	for n := int64(7); n > 0; {
		if b.take(n).Grant == n {
			held += n
		} else {
			n /= 7
		}
	}
	return held
}

// take charges n tokens without an account, or none. An error fails the test, which goes on.
func (b *bench) take(n int64) backend.Reply {
	r, err := b.store.Sync(b.at(0), backend.Statement{Key: b.key, Limit: b.limit, Need: n})
	if err != nil {
		b.t.Error(err)
	}
	return r
}

// syncAll asks until nothing remains, and returns what the account is charged. A duplicate of each statement races with
// it: the reply of one of the two is void, and the grant of a void one goes with the next statement.
func (b *bench) syncAll(client string) (held int64) {
	q := backend.Statement{Key: b.key, Limit: b.limit, Client: client, Life: 1, Want: 100, Need: 1}
	for range 10_000 {
		var twin sync.WaitGroup
		q.Seq++
		twin.Go(func() { _, _ = b.store.Sync(b.at(0), q) })
		r, err := b.store.Sync(b.at(0), q)
		twin.Wait()
		switch {
		case err != nil:
			b.t.Error(err)
			return held
		case r.Void:
			continue
		case b.limit.Rolls:
			held += r.Grant
			q.Known, q.Window.Gen, q.Pace = q.Seq, r.Window.Gen, b.limit.Tokens
		default:
			held = r.Mine
			q.Window, q.Mine, q.Used, q.Runs = r.Window, r.Mine, r.Used, true
		}
		if q.Want == 0 {
			return held
		}
		if r.Remaining == 0 { // once more, for grants that only the duplicate's reply reported
			q.Want, q.Need = 0, 0
		}
	}
	b.t.Errorf("%s never finds that nothing remains", client)
	return held
}
