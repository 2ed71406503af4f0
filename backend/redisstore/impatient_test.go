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

// TestImpatientCallers: who waits less than a round trip gets the error of the own
// context, whichever clock ended the call, and patient callers beside it are served.
func TestImpatientCallers(t *testing.T) {
	t.Parallel()
	const trip, patience = 10 * time.Millisecond, 4 * time.Millisecond
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	s := redisstore.New(server.Client(unhurried, func(o *redis.Options) { o.Addr = proxy.Addr() }))
	take := func(key string, d time.Duration) error {
		ctx, done := context.WithTimeout(context.Background(), d)
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
}
