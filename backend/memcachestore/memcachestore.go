// Package memcachestore is a store in memcached, for services that keep their limits
// there and want to migrate. It is exact while memcached keeps its data, which memcached
// does not promise. README.md gives the reasons to move to Redis.
//
// A key is one item with the window's end, the count, and the ledger of the tokens
// granted to each client. A call reads the item (gets), makes the same step as the Redis
// scripts, and writes the item by compare-and-swap (cas, or add for a new item). If
// another call has written in between, it starts over. A refusal, or a statement that
// changes nothing, writes nothing.
//
// memcached does not report its time, so the store uses the clocks of the processes. A
// key follows the clock that is furthest ahead, up to a minute. A clock that is further
// ahead may void limits of short windows, so run NTP.
//
// The gomemcache client does not take contexts. The store returns when a call's context
// ends, and a goroutine waits for the exchange to finish. Allow as many idle connections
// as there are concurrent calls:
//
//	client := memcache.New("10.0.0.7:11211")
//	client.Timeout = 200 * time.Millisecond
//	client.MaxIdleConns = 64
//
// For several servers, give each its own client and store, and join the stores with the
// sharding package. Start memcached with -M, so that it refuses writes instead of
// evicting windows.
package memcachestore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/counter"
)

var (
	// ErrContended means that in every attempt another call wrote the key between
	// this call's read and write. The call surely did nothing (backend.Unavailable),
	// unless the reply to an earlier attempt was lost (backend.Unknown).
	ErrContended = errors.New("memcached: too many writers of one key")

	// ErrLedgerFull means that a key has more clients than fit into an item, some
	// 30,000. The call did nothing, and a repetition will not succeed before the
	// window ends (backend.Rejected).
	ErrLedgerFull = errors.New("memcached: too many clients of one key")

	errNoCAS = errors.New("memcached has no compare-and-swap: start it without -C")
)

// Store implements [backend.Store] and [backend.Inspector]. Make it with [New]. It is
// safe for concurrent use. It holds no connection of its own and runs no goroutine between
// calls. The client stays usable; if one of its connections breaks, the store closes the
// idle ones (Client.Close), because most likely they are broken too. A call costs one round
// trip to read and one to write, and two more for each conflict with another writer.
type Store struct {
	client *memcache.Client
	prefix string
	now    func() time.Time // the wall clock; see keyTime
	err    error            // a fault of the set-up
}

var (
	_ backend.Store     = (*Store)(nil)
	_ backend.Inspector = (*Store)(nil)
)

// Option changes a default of New.
type Option func(*Store)

// WithPrefix sets the part before the slash in memcached's keys, prefix/key. The default
// is "reservoir". A prefix is at most 100 bytes of printable ASCII, without slashes and
// blanks. Stores with different prefixes share nothing.
func WithPrefix(prefix string) Option {
	return func(s *Store) { s.prefix = prefix }
}

// New returns a store over client. It does no I/O. A nil client or a bad prefix is a
// fault, which Err, reservoir.New and every call return.
func New(client *memcache.Client, opts ...Option) *Store {
	s := &Store{client: client, prefix: "reservoir", now: time.Now}
	for _, o := range opts {
		o(s)
	}
	switch {
	case client == nil:
		s.err = errors.New("no memcached client")
	case len(s.prefix) > maxPrefix || strings.ContainsFunc(s.prefix, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '/' }):
		s.err = errors.New("a prefix is at most 100 bytes of printable ASCII, without slashes and blanks")
	}
	return s
}

// Err returns the fault of the client or the options given to New, or nil.
func (s *Store) Err() error {
	if s.err == nil {
		return nil
	}
	return &backend.Error{Op: "open", Class: backend.Rejected, Err: s.err}
}

// Sync implements backend.Store. If the connection breaks before the reply to a write,
// it starts over until ctx ends, because the ledger shows whether the write was carried
// out. If the client's Timeout ends before the reply, the error is backend.Unknown.
func (s *Store) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	return run(ctx, r.Validate(), &call[backend.SyncReply]{store: s, op: "sync", key: s.name(r.Key), repeat: true,
		step: func(c *counter.Counter, now int64) backend.SyncReply { return c.Sync(r, now) },
	})
}

// Take implements backend.Store. If ctx ends before the reply comes, the store gives
// the tokens back as soon as it comes. If it never comes, they may stay charged until
// the window ends.
func (s *Store) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	return run(ctx, r.Validate(), &call[backend.TakeReply]{store: s, op: "take", key: s.name(r.Key),
		step: func(c *counter.Counter, now int64) backend.TakeReply { return c.Take(r, now) },
		undo: func(ctx context.Context, reply backend.TakeReply) {
			if reply.Allowed {
				_, _ = s.Refund(ctx, backend.RefundRequest{Key: r.Key, Window: reply.Window, Client: "undo:" + rand.Text(), Total: r.Tokens})
			}
		},
	})
}

// Check implements backend.Store with one read.
func (s *Store) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	return run(ctx, cmp.Or(backend.ValidateKey(key), l.Validate()), &call[backend.State]{store: s, op: "check", key: s.name(key),
		step: func(c *counter.Counter, now int64) backend.State { return c.Check(l, now) },
	})
}

// Refund implements backend.Store. Like Sync, it starts over if the connection breaks
// before the reply to its write.
func (s *Store) Refund(ctx context.Context, r backend.RefundRequest) (int64, error) {
	return run(ctx, r.Validate(), &call[int64]{store: s, op: "refund", key: s.name(r.Key), repeat: true,
		step: func(c *counter.Counter, now int64) int64 { return c.Refund(r, now) },
	})
}

// Reset implements backend.Store. Like Take, it is not repeated once it may have been
// carried out.
func (s *Store) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	return run(ctx, r.Validate(), &call[backend.State]{store: s, op: "reset", key: s.name(r.Key),
		step: func(c *counter.Counter, now int64) backend.State { return c.Reset(r, now) },
	})
}

// Inspect implements backend.Inspector with one read.
func (s *Store) Inspect(ctx context.Context, key string) (backend.Contents, error) {
	return run(ctx, backend.ValidateKey(key), &call[backend.Contents]{store: s, op: "inspect", key: s.name(key),
		step: func(c *counter.Counter, now int64) backend.Contents { return c.Contents(now) },
	})
}
