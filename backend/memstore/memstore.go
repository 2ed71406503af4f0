// Package memstore is an exact store in memory, for one process.
//
// It is for programs that need no shared limit, for tests, and for trying the library
// without a server. It follows the same rules as the Redis scripts and passes the same
// suite. The data is lost when the process ends.
package memstore

import (
	"cmp"
	"context"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/ledger"
	"github.com/go-reservoir/reservoir/internal/mailbox"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

const shards = 64 // more than the cores that contend; a power of two

// Store implements [backend.Store], [backend.Inspector] and [backend.Listener]. Make it with [New]. It is
// safe for concurrent use, and several limiters may share it. A call costs a hash, a lock
// that 1/64 of the keys share, and well under a microsecond. A counter with an open window
// takes about 150 bytes, or about 600 with the account of a client
// (go test -bench=Memory); those that are over are dropped as new ones come.
//
// The clock of a Store starts as the wall clock at New and follows the monotonic clock.
// If the machine is suspended or its clock is set later, Reset times are off by as much,
// but the lengths of windows and RetryAfter are not.
type Store struct {
	start time.Time
	seed  maphash.Seed
	shard [shards]shard
	mail  mailbox.Office
}

type shard struct {
	mu    sync.Mutex
	held  map[place]*ledger.Counter
	sweep int // number of counters at which those that are over are next dropped
}

// place is where a counter is.
type place struct{ key, counter string }

const minSweep = 256

var (
	_ backend.Store     = (*Store)(nil)
	_ backend.Inspector = (*Store)(nil)
	_ backend.Listener  = (*Store)(nil)
)

// New returns an empty store. It runs no goroutine, except to deliver messages, and needs no
// closing.
func New() *Store {
	s := &Store{start: time.Now(), seed: maphash.MakeSeed()}
	for i := range s.shard {
		s.shard[i].held, s.shard[i].sweep = make(map[place]*ledger.Counter), minSweep
	}
	return s
}

// Sync implements backend.Store.
func (s *Store) Sync(ctx context.Context, q backend.Statement) (reply backend.Reply, err error) {
	var messages []ledger.Message
	err = s.step(ctx, "sync", q.Key, q.Limit, q.Validate(), func(c *ledger.Counter, now int64) { reply, messages = c.Sync(q, now) })
	s.send(messages, q.Key, q.Limit)
	return reply, err
}

// Check implements backend.Store.
func (s *Store) Check(ctx context.Context, key string, l backend.Limit) (state backend.State, err error) {
	faulty := cmp.Or(backend.ValidateKey(key), l.Validate())
	err = s.step(ctx, "check", key, l, faulty, func(c *ledger.Counter, now int64) { state = c.Check(l, now) })
	return state, err
}

// Reset implements backend.Store.
func (s *Store) Reset(ctx context.Context, key string, l backend.Limit) (void backend.Window, err error) {
	faulty := cmp.Or(backend.ValidateKey(key), l.Validate())
	err = s.step(ctx, "reset", key, l, faulty, func(c *ledger.Counter, now int64) {
		void, _ = c.Reset(l.At(time.UnixMicro(now)), now)
	})
	if err == nil {
		s.mail.SendAll(backend.Message{Kind: backend.Voided, Key: key, Counter: l.Counter(), Window: void})
	}
	return void, err
}

// send delivers messages about a key's counter.
func (s *Store) send(messages []ledger.Message, key string, l backend.Limit) {
	for _, m := range messages {
		m.Key, m.Counter = key, l.Counter()
		if m.Process == "" {
			s.mail.SendAll(m.Message)
		} else {
			s.mail.Send(m.Process, m.Message)
		}
	}
}

// Listen implements backend.Listener. Messages are delivered in a goroutine that ends when
// there are none.
func (s *Store) Listen(process string, hear func(backend.Message)) backend.Subscription {
	return subscription{s.mail.Open(process, hear)}
}

// Publish implements backend.Listener.
func (s *Store) Publish(ctx context.Context, m backend.Message) error {
	if err := backend.ValidateKey(m.Key); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return &backend.Error{Op: "publish", Class: backend.Unavailable, Err: err}
	}
	s.mail.SendAll(m)
	return nil
}

// subscription always hears.
type subscription struct{ close func() bool }

func (subscription) Err(string) error { return nil }

func (s subscription) Close() { s.close() }

// Inspect implements backend.Inspector. It reads all keys of a shard.
func (s *Store) Inspect(ctx context.Context, key string) (list []backend.Contents, err error) {
	err = s.with(ctx, "inspect", key, backend.ValidateKey(key), func(sh *shard, now int64) {
		for at, counter := range sh.held {
			if at.key != key {
				continue
			}
			if c := counter.Contents(now); c.Window.End != 0 || c.Held > 0 {
				c.Counter = at.counter
				list = append(list, c)
			}
		}
	})
	slices.SortFunc(list, func(a, b backend.Contents) int { return cmp.Compare(a.Counter, b.Counter) })
	return list, err
}

// step makes a step of one counter of a key. Each time its shard's map has doubled, it drops the counters that are over,
// which is constant work for each new one and needs no goroutine.
func (s *Store) step(ctx context.Context, op, key string, l backend.Limit, faulty error, step func(c *ledger.Counter, now int64)) error {
	return s.with(ctx, op, key, faulty, func(sh *shard, now int64) {
		at := place{key, l.Counter()}
		c, held := sh.held[at]
		if !held {
			c = new(ledger.Counter)
		}
		if step(c, now); held || !c.Kept(now) {
			return
		}
		if len(sh.held) >= sh.sweep {
			maps.DeleteFunc(sh.held, func(_ place, old *ledger.Counter) bool { return !old.Kept(now) })
			sh.sweep = max(minSweep, 2*len(sh.held))
		}
		at.key = strings.Clone(key) // not to keep what it is a part of
		sh.held[at] = c
	})
}

// with calls step under the lock of the key's shard, unless the request is faulty or ctx is over.
func (s *Store) with(ctx context.Context, op, key string, faulty error, step func(sh *shard, now int64)) error {
	if faulty != nil {
		return faulty
	}
	if err := ctx.Err(); err != nil {
		return &backend.Error{Op: op, Class: backend.Unavailable, Err: err}
	}
	sh := &s.shard[maphash.String(s.seed, key)%shards]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	step(sh, s.now(ctx)) // under the lock, so that no key sees the clock step back
	return nil
}

// now is the store's clock in Unix microseconds. It follows the monotonic clock,
// so that a step of the wall clock neither lengthens nor ends a window.
func (s *Store) now(ctx context.Context) int64 {
	if t, ok := storeclock.From(ctx); ok {
		return t.UnixMicro()
	}
	return (s.start.Add(time.Since(s.start)).UnixNano() + 999) / 1000 // rounded up, so that Left is never too long
}
