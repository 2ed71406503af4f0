package redisstore_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// timed is a context with a deadline that nobody can cancel, of another kind than
// the limiter's own, whose late takes TestLateRepliesToALimiter has.
type timed struct {
	context.Context
	at time.Time
}

func (c timed) Deadline() (time.Time, bool) { return c.at, true }

func (timed) Done() <-chan struct{} { return nil }

func (c timed) Err() error {
	if time.Now().Before(c.at) {
		return nil
	}
	return context.DeadlineExceeded
}

// TestImpatientCallers: who waits less than a round trip gets the error of the own
// context, whichever clock ended the call, and patient callers beside it are served.
func TestImpatientCallers(t *testing.T) {
	t.Parallel()
	const trip, patience = 10 * time.Millisecond, 4 * time.Millisecond
	for name, within := range map[string]func(time.Duration) (context.Context, func()){
		"cancellable": func(d time.Duration) (context.Context, func()) {
			ctx, cancel := context.WithTimeout(context.Background(), d)
			return ctx, cancel
		},
		"timed": func(d time.Duration) (context.Context, func()) {
			return timed{context.Background(), time.Now().Add(d)}, func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			proxy := redistest.NewProxy(t, server.Addr())
			s := redisstore.New(server.Client(unhurried, func(o *redis.Options) { o.Addr = proxy.Addr() }))
			take := func(key string, d time.Duration) error {
				ctx, done := within(d)
				defer done()
				_, err := s.Take(ctx, backend.TakeRequest{Key: key, Limit: millions, Tokens: 1})
				return err
			}
			require.NoError(t, take("k", 10*time.Second)) // the script is known, the server near
			proxy.Delay(trip)
			require.NoError(t, take("k", 10*time.Second))
			var left atomic.Int64
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					for range 50 {
						err := take("k", patience)
						if err == nil { // a busy machine noticed neither the deadline nor the reply in time
							continue
						}
						left.Add(1)
						assert.ErrorIs(t, err, context.DeadlineExceeded)
						_, ok := errors.AsType[*backend.Error](err)
						assert.True(t, ok)
					}
				})
				wg.Go(func() {
					for range 50 {
						assert.NoError(t, take("patient", 10*time.Second))
					}
				})
			}
			wg.Wait()
			require.Positive(t, left.Load())
		})
	}
}
