package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// TestImpatientCallers: a caller that leaves while the reply is held up gets the error of its
// own context, also if the server was near before. Callers after it are served.
func TestImpatientCallers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	s := redisstore.New(server.Client(unhurried, noGreeting, func(o *redis.Options) { o.Addr = proxy.Addr() }))
	for range 10 { // the script is known, the server near
		require.NoError(t, takeWithin(s, "k", 10*time.Second))
	}
	for _, patience := range []time.Duration{time.Hour, 5 * time.Millisecond} {
		held := proxy.Held()
		proxy.Hold(true)
		ctx, leave := context.WithTimeout(t.Context(), patience)
		defer leave()
		left := make(chan error, 1)
		go func() {
			_, err := charge(ctx, s, "k", millions, 1)
			left <- err
		}()
		want := context.DeadlineExceeded
		if patience == time.Hour {
			require.Eventually(t, func() bool { return proxy.Held() > held }, 10*time.Second, time.Millisecond)
			leave()
			want = context.Canceled
		}
		err := <-left
		require.ErrorIs(t, err, want)
		class(t, err)
		proxy.Hold(false)
		require.NoError(t, takeWithin(s, "k", 10*time.Second))
	}
}
