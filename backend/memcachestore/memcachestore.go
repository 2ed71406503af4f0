// Package memcachestore is a store in memcached, as the one to migrate from:
// GitHub's first limiter kept its counts there. It is exact while memcached keeps
// its data, which memcached does not promise. README.md says why not to stay.
//
// A key is one item: the window's stored end, the count, and the ledger of what
// each client was granted. A call reads it (gets), makes the step that the Redis
// scripts make too, and writes it by compare-and-swap (cas, or add where there was
// none), again from the start if somebody else has written meanwhile. A refusal, or
// a statement that changes nothing, writes nothing.
//
// memcached tells no time, so the clocks of the processes count, and a key runs by the one
// that is furthest ahead, up to a minute. One that is ahead by more may void limits of
// short windows. Run NTP.
//
// A client of gomemcache knows no contexts. The store returns when a call's context ends,
// and leaves a goroutine behind that waits for the exchange under way. Allow as many idle
// connections as there are calls at a time:
//
//	client := memcache.New("10.0.0.7:11211")
//	client.Timeout = 200 * time.Millisecond
//	client.MaxIdleConns = 64
//
// Give each server a client and a store, and join them by the sharding package.
// Start memcached with -M, so that it refuses writes instead of evicting windows.
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
	// ErrContended says that others wrote the key each time that this call was
	// about to. The call surely did nothing (backend.Unavailable), unless its
	// class is backend.Unknown, for the reply to an earlier attempt was lost.
	ErrContended = errors.New("memcached: too many writers of one key")

	// ErrLedgerFull says that a key has more clients than fit into an item, some
	// 30,000. The call did nothing and will not before the window ends
	// (backend.Rejected).
	ErrLedgerFull = errors.New("memcached: too many clients of one key")

	errNoCAS    = errors.New("memcached has no compare-and-swap: start it without -C")
	errNoClient = errors.New("no memcached client")
	errPrefix   = errors.New("a prefix is at most 100 bytes of printable ASCII, without slashes and blanks")
)

// Store implements backend.Store and backend.Inspector. It holds no connection of
// its own and runs no goroutine between calls. The client stays usable; when one of its
// connections breaks, its idle ones are closed (Client.Close), for they have most
// likely died with it. A call costs one round trip to read and one to write, and as many again for each
// conflict with another writer.
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

// WithPrefix sets what comes before the slash in memcached's keys: prefix/key. The
// default is "reservoir"; it is printable ASCII without slashes and blanks. Stores with different prefixes share nothing.
func WithPrefix(prefix string) Option {
	return func(s *Store) { s.prefix = prefix }
}

// New returns a store over client. It does no I/O. A nil client or a bad prefix is a
// fault that Err, reservoir.New and every call report.
func New(client *memcache.Client, opts ...Option) *Store {
	s := &Store{client: client, prefix: "reservoir", now: time.Now}
	for _, o := range opts {
		o(s)
	}
	switch {
	case client == nil:
		s.err = errNoClient
	case len(s.prefix) > maxPrefix || strings.ContainsFunc(s.prefix, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '/' }):
		s.err = errPrefix
	}
	return s
}

// Err returns the fault of the set-up, if any, before a call meets it.
func (s *Store) Err() error {
	if s.err == nil {
		return nil
	}
	return &backend.Error{Op: "open", Class: backend.Rejected, Err: s.err}
}

// Sync implements backend.Store. When the connection breaks before the reply to its
// write it starts over, within ctx: the ledger shows whether it was carried out. When
// the reply does not come in the client's Timeout the error is backend.Unknown.
func (s *Store) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	return run(ctx, r.Validate(), &call[backend.SyncReply]{store: s, op: "sync", key: s.name(r.Key), repeat: true,
		step: func(c *counter.Counter, now int64) backend.SyncReply { return c.Sync(r, now) },
	})
}

// Take implements backend.Store. When ctx ends before the reply comes, the tokens
// are given back as soon as it does; when it never comes they may stay charged until
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

// Refund implements backend.Store. Like a Sync, it starts over when the connection
// breaks before the reply to its write.
func (s *Store) Refund(ctx context.Context, r backend.RefundRequest) (int64, error) {
	return run(ctx, r.Validate(), &call[int64]{store: s, op: "refund", key: s.name(r.Key), repeat: true,
		step: func(c *counter.Counter, now int64) int64 { return c.Refund(r, now) },
	})
}

// Reset implements backend.Store. Like a Take, it is not made again once it may have been
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
