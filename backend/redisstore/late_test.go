package redisstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// TestLateRepliesToALimiter: a server that was near answers after the fetch timeout. What it
// charged goes back, whether the calls of a limiter are made one by one or at once, and also
// if the limiter is closed meanwhile.
func TestLateRepliesToALimiter(t *testing.T) {
	t.Parallel()
	const timeout = 100 * time.Millisecond
	for name, opt := range map[string]reservoir.Option{"direct": reservoir.WithDirect(), "no room": reservoir.WithMaxKeys(0)} {
		for _, late := range []time.Duration{timeout + 50*time.Millisecond, 5 * timeout} {
			for _, closing := range []bool{false, true} {
				t.Run(fmt.Sprint(name, "/", late, "/", closing), func(t *testing.T) {
					t.Parallel()
					server := redistest.Start(t)
					proxy := redistest.NewProxy(t, server.Addr())
					client := server.Client(unhurried, func(o *redis.Options) { o.Addr = proxy.Addr() })
					l := limiterOn(t, client, reservoir.PerHour(1000), opt, reservoir.WithFetchTimeout(timeout))
					charged := func() string { return server.Client().Get(context.Background(), "{k}").Val() }
					warm := func() bool { // the script is known, the server near
						r, err := l.Allow(context.Background(), "k")
						return err == nil && r.Allowed
					}
					for range 5 {
						require.Eventually(t, warm, 10*time.Second, time.Millisecond)
					}
					before, sent := charged(), scripts(server)
					proxy.Delay(late)
					for range 4 {
						_, err := l.AllowN(context.Background(), "k", 10)
						require.Error(t, err)
					}
					require.Greater(t, scripts(server), sent)
					if closing {
						require.NoError(t, l.Close(context.Background()))
					}
					assert.Eventually(t, func() bool { return charged() == before }, 10*time.Second, 10*time.Millisecond)
				})
			}
		}
	}
}
