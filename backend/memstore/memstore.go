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
	"github.com/go-reservoir/reservoir/internal/rolling"
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
	fixed table[counter.Counter, *counter.Counter]
	rings table[rolling.Ring, *rolling.Ring] // of rolling limits
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
		s.shard[i].fixed.init()
		s.shard[i].rings.init()
	}
	return s
}

// Sync implements backend.Store.
func (s *Store) Sync(ctx context.Context, r backend.SyncRequest) (reply backend.SyncReply, err error) {
	var messages []counter.Message
	if r.Limit.Rolls {
		conflict := func() {
			reply = backend.SyncReply{State: conflicts, Account: r.Account, Granted: r.Granted, Returned: r.Returned, Debt: r.Debt, Clients: 1}
		}
		err = s.rolling(ctx, "sync", r.Key, r.Validate(), conflict, func(c *rolling.Ring, now int64) { reply, messages = c.Sync(r, now) })
	} else {
		err = s.fixed(ctx, "sync", r.Key, r.Validate(), func(c *counter.Counter, now int64) { reply, messages = c.Sync(r, now) })
	}
	for _, m := range messages {
		s.mail.Send(m.Process, m.Message)
	}
	return reply, err
}

// Take implements backend.Store.
func (s *Store) Take(ctx context.Context, r backend.TakeRequest) (reply backend.TakeReply, err error) {
	if r.Limit.Rolls {
		err = s.rolling(ctx, "take", r.Key, r.Validate(), func() { reply.State = conflicts }, func(c *rolling.Ring, now int64) { reply = c.Take(r, now) })
	} else {
		err = s.fixed(ctx, "take", r.Key, r.Validate(), func(c *counter.Counter, now int64) { reply = c.Take(r, now) })
	}
	return reply, err
}

// Check implements backend.Store.
func (s *Store) Check(ctx context.Context, key string, l backend.Limit) (reply backend.State, err error) {
	faulty := cmp.Or(backend.ValidateKey(key), l.Validate())
	if l.Rolls {
		err = s.rolling(ctx, "check", key, faulty, func() { reply = conflicts }, func(c *rolling.Ring, now int64) { reply = c.Check(l, now) })
	} else {
		err = s.fixed(ctx, "check", key, faulty, func(c *counter.Counter, now int64) { reply = c.Check(l, now) })
	}
	return reply, err
}

// Settle implements backend.Store.
func (s *Store) Settle(ctx context.Context, r backend.SettleRequest) (reply backend.SettleReply, err error) {
	if r.Rolling != 0 {
		err = s.rolling(ctx, "settle", r.Key, r.Validate(), nil, func(c *rolling.Ring, now int64) { reply = c.Settle(r, now) })
	} else {
		err = s.fixed(ctx, "settle", r.Key, r.Validate(), func(c *counter.Counter, now int64) { reply = c.Settle(r, now) })
	}
	return reply, err
}

// Reset implements backend.Store.
func (s *Store) Reset(ctx context.Context, r backend.ResetRequest) (reply backend.State, err error) {
	var before backend.Window
	if r.Limit.Rolls {
		err = s.rolling(ctx, "reset", r.Key, r.Validate(), func() { reply = conflicts }, func(c *rolling.Ring, now int64) { reply = c.Reset(r, now) })
	} else {
		err = s.fixed(ctx, "reset", r.Key, r.Validate(), func(c *counter.Counter, now int64) {
			before = c.Check(r.Limit, now).Window
			reply = c.Reset(r, now)
		})
	}
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
	err = s.with(ctx, "inspect", key, backend.ValidateKey(key), func(sh *shard, now int64) {
		if c := sh.rings.keys[key]; c != nil && c.Open(now) {
			reply = c.Contents(now)
		} else if c := sh.fixed.keys[key]; c != nil {
			reply = c.Contents(now)
		}
	})
	return reply, err
}

// fixed makes a step of the key's counter.
func (s *Store) fixed(ctx context.Context, op, key string, faulty error, step func(c *counter.Counter, now int64)) error {
	return s.with(ctx, op, key, faulty, func(sh *shard, now int64) { sh.fixed.step(key, now, step) })
}

// conflicts is a reading of a key that has a window of the other kind.
var conflicts = backend.State{Conflict: true}

// rolling makes a step of the key's ring. If a fixed window of the key is open, it only calls
// conflict, unless that is nil.
func (s *Store) rolling(ctx context.Context, op, key string, faulty error, conflict func(), step func(c *rolling.Ring, now int64)) error {
	return s.with(ctx, op, key, faulty, func(sh *shard, now int64) {
		if c := sh.fixed.keys[key]; c != nil && c.Open(now) && conflict != nil {
			conflict()
			return
		}
		sh.rings.step(key, now, step)
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

// table has the keys of one kind of limit.
type table[T any, P state[T]] struct {
	keys  map[string]P
	sweep int // number of keys at which those that are over are next dropped
}

// state is what is kept of a key.
type state[T any] interface {
	*T
	Opened() bool
	Past(now int64) bool
}

const minSweep = 256

func (t *table[T, P]) init() { t.keys, t.sweep = make(map[string]P), minSweep }

// step makes a step of a key. Each time the map has doubled, it drops the keys that are past,
// which is constant work for each new key and needs no goroutine.
func (t *table[T, P]) step(key string, now int64, step func(P, int64)) {
	c, held := t.keys[key]
	if !held {
		c = new(T)
	}
	if step(c, now); held || !c.Opened() {
		return
	}
	if len(t.keys) >= t.sweep {
		maps.DeleteFunc(t.keys, func(_ string, old P) bool { return old.Past(now) })
		t.sweep = max(minSweep, 2*len(t.keys))
	}
	t.keys[strings.Clone(key)] = c // not to keep what key is a part of
}
