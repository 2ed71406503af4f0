package sim

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/backendtest"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// A network keeps the contract of what is behind it.
func TestDelayedStore(t *testing.T) {
	backendtest.Run(t, func(*testing.T) backend.Store { return delayed(memstore.New(), 2*time.Microsecond) })
}

// delayed is the way to a store of a process with no more than that way.
func delayed(s backend.Store, d time.Duration) *way {
	return (&Replay{Store: s, book: newBook(Traffic{Keys: []string{"k"}, Length: 1}, 1), Setting: Setting{Delay: d, Virtual: true}}).way(0)
}

func TestDelayTakesItsTime(t *testing.T) {
	s := delayed(memstore.New(), 4*time.Millisecond)
	begin := time.Now()
	_, err := s.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit, Tokens: 1})
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(begin), 4*time.Millisecond)
}

var limit = backend.Limit{Tokens: 10, Window: time.Hour}

// A call that is given up on its way there was not carried out; on its way back
// it may have been, and was.
func TestDelayGivesUpWithItsContext(t *testing.T) {
	take := backend.TakeRequest{Key: "k", Limit: limit, Tokens: 1}
	for _, row := range []struct {
		name  string
		store func(cancel func(), s backend.Store) backend.Store
		class backend.Class
		left  int64
	}{
		{"on the way there", func(cancel func(), s backend.Store) backend.Store { cancel(); return s }, backend.Unavailable, 10},
		{"on the way back", func(cancel func(), s backend.Store) backend.Store { return hangUp{s, cancel} }, backend.Unknown, 9},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		mem := memstore.New()
		_, err := delayed(row.store(cancel, mem), 20*time.Microsecond).Take(ctx, take)
		failure, ok := errors.AsType[*backend.Error](err)
		require.True(t, ok, row.name)
		require.Equal(t, row.class, failure.Class, row.name)
		require.ErrorIs(t, err, context.Canceled)
		state, err := mem.Check(t.Context(), "k", limit)
		require.NoError(t, err)
		require.Equal(t, row.left, max(state.Remaining, 0), row.name)
	}
}

// hangUp is a store whose caller leaves while it works.
type hangUp struct {
	backend.Store
	leave func()
}

func (h hangUp) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	reply, err := h.Store.Take(ctx, r)
	h.leave()
	return reply, err
}
