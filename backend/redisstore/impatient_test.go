package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// TestImpatientCallers: a caller that leaves while the reply is held up gets the error of its
// own context soon, also if the server was near before. Callers after it are served.
func TestImpatientCallers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	s := redisstore.New(server.Client(unhurried, noGreeting, func(o *redis.Options) { o.Addr = proxy.Addr() }))
	for range 10 { // the script is known, the server near
		require.NoError(t, takeWithin(s, "k", 10*time.Second))
	}
	charge := func(detached bool) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := s.Sync(ctx, backend.Statement{Key: "k", Limit: millions, Need: 1, Detached: detached})
			return err
		}
	}
	publish := func(ctx context.Context) error {
		return s.Publish(ctx, backend.Message{Kind: backend.Changed, Key: "k"})
	}
	for _, call := range []struct {
		patience time.Duration
		make     func(context.Context) error
	}{
		{time.Hour, charge(false)}, {5 * time.Millisecond, charge(false)}, {5 * time.Millisecond, charge(true)}, // time.Hour: it is cancelled
		{time.Hour, publish}, {5 * time.Millisecond, publish},
	} {
		held := proxy.Held()
		proxy.Hold(true)
		ctx, leave := context.WithTimeout(t.Context(), call.patience)
		defer leave()
		left := make(chan error, 1)
		begin := time.Now()
		go func() { left <- call.make(ctx) }()
		want := context.DeadlineExceeded
		if call.patience == time.Hour {
			require.Eventually(t, func() bool { return proxy.Held() > held }, 10*time.Second, time.Millisecond)
			leave()
			want = context.Canceled
		}
		err := <-left
		require.ErrorIs(t, err, want)
		require.Less(t, time.Since(begin), 5*time.Second, "not after the client's ReadTimeout")
		class(t, err)
		proxy.Hold(false)
		require.NoError(t, takeWithin(s, "k", 10*time.Second))
	}
}
