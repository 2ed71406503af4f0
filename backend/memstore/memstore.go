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
	"strings"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/counter"
	"github.com/go-reservoir/reservoir/internal/mailbox"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

const shards = 64 // more than the cores that contend; a power of two

// Store implements [backend.Store], [backend.Inspector] and [backend.Listener]. Make it with [New]. It is
// safe for concurrent use, and several limiters may share it. A call costs a hash, a lock
// that 1/64 of the keys share, and well under a microsecond. A key with an open window
// takes about 150 bytes, or about 700 with the account of a client that fetches batches
// (go test -bench=Memory); closed windows are dropped as new keys come.
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
	keys  map[string]*counter.Counter
	sweep int // number of keys at which closed windows are next dropped
}

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
		s.shard[i].keys = make(map[string]*counter.Counter)
		s.shard[i].sweep = minSweep
	}
	return s
}

// Sync implements backend.Store.
func (s *Store) Sync(ctx context.Context, r backend.SyncRequest) (reply backend.SyncReply, err error) {
	var messages []counter.Message
	err = s.with(ctx, "sync", r.Key, r.Validate(), func(c *counter.Counter, now int64) { reply, messages = c.Sync(r, now) })
	for _, m := range messages {
		s.mail.Send(m.Process, m.Message)
	}
	return reply, err
}

// Take implements backend.Store.
func (s *Store) Take(ctx context.Context, r backend.TakeRequest) (reply backend.TakeReply, err error) {
	err = s.with(ctx, "take", r.Key, r.Validate(), func(c *counter.Counter, now int64) { reply = c.Take(r, now) })
	return reply, err
}

// Check implements backend.Store.
func (s *Store) Check(ctx context.Context, key string, l backend.Limit) (reply backend.State, err error) {
	err = s.with(ctx, "check", key, cmp.Or(backend.ValidateKey(key), l.Validate()), func(c *counter.Counter, now int64) { reply = c.Check(l, now) })
	return reply, err
}

// Settle implements backend.Store.
func (s *Store) Settle(ctx context.Context, r backend.SettleRequest) (reply backend.SettleReply, err error) {
	err = s.with(ctx, "settle", r.Key, r.Validate(), func(c *counter.Counter, now int64) { reply = c.Settle(r, now) })
	return reply, err
}

// Reset implements backend.Store.
func (s *Store) Reset(ctx context.Context, r backend.ResetRequest) (reply backend.State, err error) {
	var before backend.Window
	err = s.with(ctx, "reset", r.Key, r.Validate(), func(c *counter.Counter, now int64) {
		before = c.Check(r.Limit, now).Window
		reply = c.Reset(r, now)
	})
	if reply.Window != 0 && !reply.Conflict {
		s.mail.SendAll(backend.Message{Kind: backend.Voided, Key: r.Key, Window: before})
	}
	return reply, err
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

// Inspect implements backend.Inspector.
func (s *Store) Inspect(ctx context.Context, key string) (reply backend.Contents, err error) {
	err = s.with(ctx, "inspect", key, backend.ValidateKey(key), func(c *counter.Counter, now int64) { reply = c.Contents(now) })
	return reply, err
}

// with makes a step of the key's counter, under its shard's lock, unless the request is
// faulty or ctx is over.
func (s *Store) with(ctx context.Context, op, key string, faulty error, step func(c *counter.Counter, now int64)) error {
	if faulty != nil {
		return faulty
	}
	if err := ctx.Err(); err != nil {
		return &backend.Error{Op: op, Class: backend.Unavailable, Err: err}
	}
	sh := &s.shard[maphash.String(s.seed, key)%shards]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now(ctx) // under the lock, so that no key sees the clock step back
	c, held := sh.keys[key]
	if !held {
		c = new(counter.Counter)
	}
	step(c, now)
	if !held && c.Opened() {
		sh.put(strings.Clone(key), c, now) // not to keep what key is a part of
	}
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

const minSweep = 256

// put keeps c. Each time the map has doubled, it drops the windows that are over, which
// is constant work for each new key and needs no goroutine.
func (sh *shard) put(key string, c *counter.Counter, now int64) {
	if len(sh.keys) >= sh.sweep {
		maps.DeleteFunc(sh.keys, func(_ string, old *counter.Counter) bool { return !old.Open(now) })
		sh.sweep = max(minSweep, 2*len(sh.keys))
	}
	sh.keys[key] = c
}
