package rollout_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/rollout"
)

// slow is a store whose answers to some calls take their time, or until the
// caller has had enough.
type slow struct {
	backend.Store
	take, refund time.Duration
	cut          int // calls that were given up
}

func newSlow() *slow { return &slow{Store: memstore.New()} }

func (s *slow) wait(ctx context.Context, op string, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		s.cut++
		return &backend.Error{Op: op, Class: backend.Unknown, Err: ctx.Err()}
	}
}

func (s *slow) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	if err := s.wait(ctx, "take", s.take); err != nil {
		return backend.TakeReply{}, err
	}
	return s.Store.Take(ctx, r)
}

func (s *slow) Refund(ctx context.Context, r backend.RefundRequest) (int64, error) {
	if err := s.wait(ctx, "refund", s.refund); err != nil {
		return 0, err
	}
	return s.Store.Refund(ctx, r)
}

// The call is over when its context is, a tenth of a second from now.
func takeBriefly(t *testing.T, s *rollout.Store) (backend.TakeReply, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	r, err := s.Take(ctx, backend.TakeRequest{Key: "k", Limit: limit1000, Tokens: 10})
	require.LessOrEqual(t, time.Since(began), 100*time.Millisecond, "the caller's own context bounds it")
	return r, err
}

func charged(t *testing.T, s *slow) int64 {
	state, err := s.Check(t.Context(), "k", limit1000)
	require.NoError(t, err)
	return limit1000.Tokens - state.Remaining
}

// The new store hangs until the caller leaves: the old one gets its tokens back.
func TestGiveBackOfAHungCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, new := newSlow(), newSlow()
		s := open(t, old, new, 0, 100)
		_, err := takeBriefly(t, s)
		require.NoError(t, err)
		new.take = time.Hour
		for range 4 {
			_, err := takeBriefly(t, s)
			var failure *backend.Error
			require.ErrorAs(t, err, &failure)
			require.Equal(t, backend.Unknown, failure.Class)
		}
		synctest.Wait()
		require.Equal(t, 4, new.cut)
		require.EqualValues(t, 10, charged(t, old))
	})
}

// The caller leaves while the tokens are on their way back: it does not wait, they
// arrive. If they do not, that is given up, and nothing stays behind.
func TestGiveBackOutlivesItsCaller(t *testing.T) {
	for _, row := range []struct {
		takes time.Duration // the refund
		stays int64
	}{{500 * time.Millisecond, 0}, {time.Hour, 10}} {
		synctest.Test(t, func(t *testing.T) {
			old, new := newSlow(), newSlow()
			s := open(t, old, new, 0, 100)
			_, err := new.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit1000, Tokens: 1000})
			require.NoError(t, err)
			old.refund = row.takes
			r, err := takeBriefly(t, s)
			require.NoError(t, err)
			require.False(t, r.Allowed)
			require.EqualValues(t, 10, charged(t, old), "on their way")
			time.Sleep(2 * time.Second)
			synctest.Wait()
			require.Equal(t, row.stays, charged(t, old))
			require.EqualValues(t, row.stays/10, old.cut)
		})
	}
}

// broken is a store that panics in a refund.
type broken struct{ backend.Store }

func (broken) Refund(context.Context, backend.RefundRequest) (int64, error) { panic("refund") }

// A panic of the old store while a take is undone reaches the caller.
func TestPanicInAGiveBack(t *testing.T) {
	old, new := broken{memstore.New()}, memstore.New()
	s := open(t, old, new, 0, 100)
	request := backend.TakeRequest{Key: "k", Limit: limit1000, Tokens: 1000}
	_, err := new.Take(t.Context(), request)
	require.NoError(t, err)
	require.PanicsWithValue(t, "refund", func() { _, _ = s.Take(t.Context(), request) })
}
