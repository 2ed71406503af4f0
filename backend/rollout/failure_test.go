package rollout_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// calls makes one call of each kind and returns the errors by operation.
func calls(ctx context.Context, s backend.Store) map[string]error {
	_, sync := s.Sync(ctx, backend.SyncRequest{Key: "k", Client: "c", Limit: limit10, Want: 1, Need: 1})
	_, take := s.Take(ctx, backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 1})
	_, check := s.Check(ctx, "k", limit10)
	window := backend.Window(time.Now().Add(time.Minute).UnixMilli())
	_, refund := s.Refund(ctx, backend.RefundRequest{Key: "k", Window: window, Client: "r", Total: 1})
	_, reset := s.Reset(ctx, backend.ResetRequest{Key: "k", Limit: limit10})
	return map[string]error{"sync": sync, "take": take, "check": check, "refund": refund, "reset": reset}
}

// A store that is away is an error for all that is in it, and never a limit of
// its own. Who has only tried it goes back at once.
func TestStoreAway(t *testing.T) {
	for _, gone := range []string{"old", "new"} {
		t.Run(gone, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				old, new := newFar(0), newFar(0)
				s := open(t, old, new, 0, 0)
				if gone == "old" {
					require.NoError(t, s.SetPercent(100, 100))
					time.Sleep(2 * time.Minute)
				}
				away := map[string]*far{"old": old, "new": new}[gone]
				away.gone.Store(true)
				for op, err := range calls(t.Context(), s) {
					require.NoError(t, err, op)
				}
				require.NoError(t, s.SetPercent(0, 100))
				for op, err := range calls(t.Context(), s) {
					var failure *backend.Error
					require.ErrorAs(t, err, &failure, op)
					require.Equal(t, op, failure.Op)
					require.Equal(t, backend.Unknown, failure.Class)
					require.ErrorContains(t, err, gone+" store: ")
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				if gone == "old" {
					require.NoError(t, s.SetPercent(100, 100))
				} else {
					require.NoError(t, s.SetPercent(0, 0))
				}
				for op, err := range calls(t.Context(), s) {
					require.NoError(t, err, op)
				}
			})
		})
	}
}

// A key that was in the new store alone, which is lost: errors until no window can
// be open there, and then the old store. The limit is not given out twice.
func TestNewStoreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, new := newFar(0), newFar(0)
		s := open(t, old, new, 100, 100)
		take := backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 10}
		r, err := s.Take(t.Context(), take)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		new.gone.Store(true)
		require.NoError(t, s.SetPercent(0, 100))
		require.NoError(t, s.SetPercent(0, 0))
		for time.Until(r.Window.Time()) > 0 {
			_, err = s.Take(t.Context(), take)
			require.Error(t, err)
			time.Sleep(time.Second)
		}
		time.Sleep(3 * time.Second)
		r, err = s.Take(t.Context(), take)
		require.NoError(t, err)
		require.True(t, r.Allowed)
	})
}

func TestContextOver(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for op, err := range calls(ctx, open(t, memstore.New(), memstore.New(), 0, 100)) {
		var failure *backend.Error
		require.ErrorAs(t, err, &failure)
		require.Equal(t, op, failure.Op)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, backend.Unavailable, failure.Class)
	}
}

// moving is a store in which the key's slot moves.
type moving struct{ backend.Store }

func moves(op string) error {
	return &backend.Error{Op: op, Class: backend.Unavailable, Err: errors.New("TRYAGAIN"), KeyOnly: true}
}

func (moving) Sync(context.Context, backend.SyncRequest) (backend.SyncReply, error) {
	return backend.SyncReply{}, moves("sync")
}

func (moving) Take(context.Context, backend.TakeRequest) (backend.TakeReply, error) {
	return backend.TakeReply{}, moves("take")
}

func (moving) Refund(context.Context, backend.RefundRequest) (int64, error) {
	return 0, moves("refund")
}

func (moving) Reset(context.Context, backend.ResetRequest) (backend.State, error) {
	return backend.State{}, moves("reset")
}

// An error that says nothing of other keys is passed on as such, from either store.
func TestErrorOfOneKey(t *testing.T) {
	for _, stores := range [][2]backend.Store{
		{moving{memstore.New()}, memstore.New()},
		{memstore.New(), moving{memstore.New()}},
	} {
		for op, err := range calls(t.Context(), open(t, stores[0], stores[1], 0, 100)) {
			if op == "check" {
				continue
			}
			var failure *backend.Error
			require.ErrorAs(t, err, &failure, op)
			require.Equal(t, op, failure.Op)
			require.True(t, failure.KeyOnly, op)
		}
	}
}

// rejecting is a store that may only be read.
type rejecting struct{ backend.Store }

func (rejecting) Take(context.Context, backend.TakeRequest) (backend.TakeReply, error) {
	return backend.TakeReply{}, &backend.Error{Op: "take", Class: backend.Rejected, Err: errors.New("read only")}
}

// What the one refuses to serve is given back to the other, and surely not done.
func TestTakeRejected(t *testing.T) {
	old := memstore.New()
	s := open(t, old, rejecting{memstore.New()}, 0, 100)
	_, err := s.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 3})
	var failure *backend.Error
	require.ErrorAs(t, err, &failure)
	require.Equal(t, backend.Rejected, failure.Class)
	state, err := old.Check(t.Context(), "k", limit10)
	require.NoError(t, err)
	require.EqualValues(t, 10, state.Remaining)
}

// On real servers: the new one dies while keys are in both; callers have stock and
// errors, and after the step back neither, for the old one has counted all.
func TestServerDiesDuringAMove(t *testing.T) {
	a, b := redistest.Start(t), redistest.Start(t)
	s := open(t, redisstore.New(a.Client()), redisstore.New(b.Client()), 0, 0)
	l := reservoir.PerHour(100)
	limiter, err := reservoir.New(s, l, reservoir.WithDirect(), reservoir.WithFetchTimeout(time.Second))
	require.NoError(t, err)
	t.Cleanup(func() { _ = limiter.Close(context.Background()) })
	allowed := 0
	ask := func(n int) (failed int) {
		for range n {
			r, err := limiter.Allow(t.Context(), "k")
			if err != nil {
				failed++
			} else if r.Allowed {
				allowed++
			}
		}
		return failed
	}
	require.Zero(t, ask(30))
	require.NoError(t, s.SetPercent(0, 100))
	require.Zero(t, ask(30))
	require.Equal(t, 60, allowed)
	b.Kill()
	require.Positive(t, ask(3))
	require.NoError(t, s.SetPercent(0, 0))
	require.Zero(t, ask(60))
	require.LessOrEqual(t, allowed, 100)
	require.GreaterOrEqual(t, allowed, 97, "what failed stays charged at the most")
}
