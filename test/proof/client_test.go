package proof

import (
	"context"
	"crypto/rand"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// window is how long windows last by the tests' own clock. A server deletes by its
// own clock what is over, so that they begin an hour ahead of it.
const window = time.Minute

// base is the instant from which tests count.
var base = time.Now().Add(time.Hour).Truncate(time.Second).UnixMicro()

var (
	process = rand.Text()[:8]
	made    atomic.Int64
)

// newKey returns a key that no other test uses.
func newKey() string { return fmt.Sprintf("proof:%s:%d", process, made.Add(1)) }

// target is a store that can lose a key's data.
type target struct {
	backend.Store
	lose func(key string)
}

// onRedis is a target whose data is lost as a server loses it.
func onRedis(t testing.TB, s backend.Store, admin redis.UniversalClient) target {
	return target{s, func(key string) {
		require.NoError(t, admin.Del(context.Background(), "{"+key+"}", "{"+key+"}:exp", "{"+key+"}:own").Err())
	}}
}

// do carries out one operation at the instant that q names.
func (t target) do(q request) (reply, error) {
	ctx := storeclock.With(context.Background(), time.UnixMicro(q.now))
	var r reply
	var err error
	switch q.op {
	case "sync":
		r.sync, err = t.Sync(ctx, q.sync)
		r.sync.Lasted, r.sync.Total = 0, 0
	case "take":
		var got backend.TakeReply
		got, err = t.Take(ctx, backend.TakeRequest{Key: q.key, Limit: q.limit, Tokens: q.tokens})
		r.state, r.allowed = got.State, got.Allowed
	case "check":
		r.state, err = t.Check(ctx, q.key, q.limit)
	case "reset":
		r.state, err = t.Reset(ctx, backend.ResetRequest{Key: q.key, Limit: q.limit})
	case "settle":
		r.settled, err = t.Settle(ctx, backend.SettleRequest{Key: q.key, Window: q.window, Tokens: q.tokens, Limit: q.limit.Tokens})
	default:
		t.lose(q.key)
	}
	return r, err
}

// holder is a client as it sees itself: its account in a window, and what it has
// spent of that.
type holder struct {
	who     int
	window  backend.Window
	granted int64
	back    int64
	spent   int64
	debt    int64 // used without a grant
}

func (h *holder) name() string { return string(rune('a' + h.who)) }

func (h *holder) stock() int64 { return h.granted - h.back - h.spent }

// statement is what h would say.
func (h *holder) statement(key string, l backend.Limit, want, need, strand int64) backend.SyncRequest {
	return backend.SyncRequest{
		Key: key, Client: h.name(), Limit: l, Window: h.window, Granted: h.granted, Returned: h.back, Debt: h.debt,
		Want: want, Need: need, Strand: strand,
	}
}

// hear is what a client does with a reply.
func (h *holder) hear(r backend.SyncReply) {
	if r.Window != h.window && !r.Carried {
		h.spent = 0
	}
	if r.Window != h.window && r.Carried { // what was spent stays spent, in the new window's terms
		h.spent = min(h.spent, r.Granted-r.Returned)
	}
	h.window, h.granted, h.back, h.debt = r.Window, r.Granted, r.Returned, r.Debt
}

// bugs are stores with a deliberate one each, for the tests of the tests.
var bugs = map[string]func(s backend.Store) backend.Store{
	"a give-back is forgotten": func(s backend.Store) backend.Store {
		return saboteur{Store: s, sync: func(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
			r.Returned = 0
			return s.Sync(ctx, r)
		}}
	},
	"debt is forgotten": func(s backend.Store) backend.Store {
		return saboteur{Store: s, sync: func(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
			r.Debt = 0
			return s.Sync(ctx, r)
		}}
	},
	"a reset leaves what was charged": func(s backend.Store) backend.Store {
		return saboteur{Store: s, reset: func(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
			return s.Check(ctx, r.Key, r.Limit)
		}}
	},
	"a repetition charges again": func(s backend.Store) backend.Store {
		return saboteur{Store: s, sync: func(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
			first, err := s.Sync(ctx, r)
			if err != nil || first.Grant == 0 {
				return first, err
			}
			r.Window, r.Granted, r.Returned = first.Window, first.Granted, first.Returned
			return s.Sync(ctx, r)
		}}
	},
	"a lost grant is not handed over": func(s backend.Store) backend.Store {
		return saboteur{Store: s, sync: func(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
			reply, err := s.Sync(ctx, r)
			reply.Grant, reply.Recovered = reply.Grant-reply.Recovered, 0
			return reply, err
		}}
	},
	"who looks and then takes is not alone": func(s backend.Store) backend.Store {
		return saboteur{Store: s, take: func(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
			state, err := s.Check(ctx, r.Key, r.Limit)
			if err != nil || state.Window == 0 {
				return s.Take(ctx, r)
			}
			runtime.Gosched()
			_, err = s.Take(ctx, r)
			allowed := state.Remaining >= r.Tokens
			if allowed {
				state.Remaining -= r.Tokens
			}
			return backend.TakeReply{State: state, Allowed: allowed}, err
		}}
	},
	"an old reading": func(s backend.Store) backend.Store {
		var last sync.Map
		return saboteur{Store: s, check: func(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
			state, err := s.Check(ctx, key, l)
			if old, ok := last.Swap(key, state); ok {
				return old.(backend.State), err
			}
			return state, err
		}}
	},
	"a refund counts twice": func(s backend.Store) backend.Store {
		return saboteur{Store: s, settle: func(ctx context.Context, r backend.SettleRequest) (backend.SettleReply, error) {
			reply, err := s.Settle(ctx, r)
			_, _ = s.Settle(ctx, r)
			return reply, err
		}}
	},
	"a window that does not end": func(s backend.Store) backend.Store {
		return saboteur{Store: s, take: func(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
			r.Limit.Window *= 2
			return s.Take(ctx, r)
		}}
	},
}

// saboteur is a store some of whose operations are replaced.
type saboteur struct {
	backend.Store
	sync   func(context.Context, backend.SyncRequest) (backend.SyncReply, error)
	take   func(context.Context, backend.TakeRequest) (backend.TakeReply, error)
	check  func(context.Context, string, backend.Limit) (backend.State, error)
	settle func(context.Context, backend.SettleRequest) (backend.SettleReply, error)
	reset  func(context.Context, backend.ResetRequest) (backend.State, error)
}

func (s saboteur) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	if s.sync != nil {
		return s.sync(ctx, r)
	}
	return s.Store.Sync(ctx, r)
}

func (s saboteur) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	if s.take != nil {
		return s.take(ctx, r)
	}
	return s.Store.Take(ctx, r)
}

func (s saboteur) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	if s.check != nil {
		return s.check(ctx, key, l)
	}
	return s.Store.Check(ctx, key, l)
}

func (s saboteur) Settle(ctx context.Context, r backend.SettleRequest) (backend.SettleReply, error) {
	if s.settle != nil {
		return s.settle(ctx, r)
	}
	return s.Store.Settle(ctx, r)
}

func (s saboteur) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	if s.reset != nil {
		return s.reset(ctx, r)
	}
	return s.Store.Reset(ctx, r)
}
