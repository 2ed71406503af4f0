package redisstore_test

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
)

var (
	limit10   = backend.Limit{Tokens: 10, Window: time.Minute}
	rolling10 = limit10.Rolling()
)

// charge charges n tokens without an account, or none.
func charge(ctx context.Context, s backend.Store, key string, l backend.Limit, n int64) (backend.Reply, error) {
	return s.Sync(ctx, backend.Statement{Key: key, Limit: l, Need: n})
}

// take charges under the real clock.
func take(t *testing.T, s *redisstore.Store, key string, n int64) backend.Reply {
	t.Helper()
	r, err := charge(t.Context(), s, key, limit10, n)
	require.NoError(t, err)
	return r
}

func remaining(t *testing.T, s *redisstore.Store, key string) int64 {
	t.Helper()
	state, err := s.Check(t.Context(), key, limit10)
	require.NoError(t, err)
	return state.Remaining
}

// caughtUp waits until the client sees n tokens charged to the key.
func caughtUp(t *testing.T, client redis.Cmdable, key string, n int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		got, err := client.Get(context.Background(), "{"+key+"}:60s").Int64()
		return err == nil && got == n
	}, 5*time.Second, 2*time.Millisecond)
}

// roll charges a rolling limit as take does a fixed one.
func roll(t *testing.T, s *redisstore.Store, key string, n int64) backend.Reply {
	t.Helper()
	r, err := charge(t.Context(), s, key, rolling10, n)
	require.NoError(t, err)
	return r
}

// holder is a client's account with a key.
type holder struct {
	s      backend.Store
	next   backend.Statement // with what the last reply said
	bucket int64             // of the last grant, if the limit is rolling
}

func newHolder(s backend.Store, client, key string, l backend.Limit) *holder {
	return &holder{s: s, next: backend.Statement{Key: key, Limit: l, Client: client, Life: 1, Hints: backend.Hints{Exact: true}}}
}

// ask states the account, changed by so many tokens, and asks for n, which callers wait for.
func (h *holder) ask(ctx context.Context, n, change int64) (backend.Reply, error) {
	h.next.Seq++
	h.next.Want, h.next.Need = n, n
	if rolls := h.next.Limit.Rolls; !rolls {
		h.next.Change = change
	} else if h.next.Changes = nil; change != 0 {
		h.next.Changes = []backend.Change{{Bucket: h.bucket, Tokens: change}}
	}
	r, err := h.s.Sync(ctx, h.next)
	switch {
	case err != nil || r.Void || r.Astray:
	case h.next.Limit.Rolls:
		h.next.Known, h.next.Window.Gen = h.next.Seq, r.Window.Gen
		for _, g := range r.Grants {
			h.bucket = g.Bucket
		}
	default:
		h.next.Window, h.next.Mine, h.next.Used, h.next.Runs = r.Window, r.Mine, r.Used, r.Window.End != 0
	}
	return r, err
}

// call is one call of a store.
type call struct {
	op string
	do func(ctx context.Context) error
}

// callsOf are one call of each kind, each for one token, of fixed windows and then of a rolling limit. Repeated, they do the same.
func callsOf(s backend.Store, key string) (all []call) {
	for _, l := range []backend.Limit{limit10, rolling10} {
		all = append(all, []call{
			{"sync", func(ctx context.Context) error {
				_, err := s.Sync(ctx, backend.Statement{Key: key, Client: "a.1", Life: 1, Seq: 1, Limit: l, Want: 1, Need: 1})
				return err
			}},
			{"sync", func(ctx context.Context) error { // without an account
				_, err := charge(ctx, s, key, l, 1)
				return err
			}},
			{"check", func(ctx context.Context) error {
				_, err := s.Check(ctx, key, l)
				return err
			}},
			{"reset", func(ctx context.Context) error {
				_, err := s.Reset(ctx, key, l)
				return err
			}},
		}...)
	}
	return all
}

// allCalls makes one call of each kind and yields the errors.
func allCalls(ctx context.Context, s backend.Store, key string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, c := range callsOf(s, key) {
			if !yield(c.op, c.do(ctx)) {
				return
			}
		}
	}
}
