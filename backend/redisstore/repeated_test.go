package redisstore_test

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/lua"
)

// TestRepeatedRefund: a network brings refunds to the server twice, those of a
// caller and those of a Take whose caller has left. Nothing is given back twice.
func TestRepeatedRefund(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := server.Client(unhurried, func(o *redis.Options) { o.Addr = proxy.Addr() })
	s := redisstore.New(client, redisstore.WithWarnings(nil))
	used := func() int64 {
		n, err := server.Client().Get(t.Context(), "{k}").Int64()
		require.NoError(t, err)
		return n
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := s.Take(ctx, backend.TakeRequest{Key: "k", Limit: millions, Tokens: 100})
	require.NoError(t, err)
	refund := backend.RefundRequest{Key: "k", Client: "a", Window: r.Window, Total: 1}
	_, err = s.Refund(ctx, refund) // the script is known from now on
	require.NoError(t, err)
	require.EqualValues(t, 99, used())

	const refunds = 5
	sum := sha1.Sum([]byte(lua.Refund))
	twice := &repeater{text: hex.EncodeToString(sum[:])}
	client.AddHook(twice)
	refund.Total = 4
	back, err := s.Refund(ctx, refund)
	require.NoError(t, err)
	require.EqualValues(t, 4, back)
	require.EqualValues(t, 96, used(), "a caller's")

	proxy.Delay(300 * time.Millisecond)
	for i := range int64(refunds - 1) {
		executed := func(n int64) {
			require.Eventually(t, func() bool { return server.Calls("evalsha") == n }, 10*time.Second, time.Millisecond)
		}
		before := 2 + i + 2*(i+1) // the first call of each script, those that were abandoned, and the refunds
		impatient, leave := context.WithCancel(ctx)
		left := make(chan error, 1)
		go func() {
			_, err := s.Take(impatient, backend.TakeRequest{Key: "k", Limit: millions, Tokens: 10})
			left <- err
		}()
		executed(before + 1)
		leave()
		require.ErrorIs(t, <-left, context.Canceled)
		executed(before + 3)
		require.Eventually(t, func() bool { return client.PoolStats().IdleConns > 0 }, 10*time.Second, time.Millisecond)
		require.Equal(t, i+2, twice.n.Load())
		require.EqualValues(t, 96, used(), "those of an abandoned call")
	}
}

// repeater brings commands with a text to the server twice: once more, and then as they
// were made.
type repeater struct {
	text string
	n    atomic.Int64
}

func (*repeater) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *repeater) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.Contains(cmd.String(), r.text) && next(ctx, cmd) == nil {
			r.n.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (r *repeater) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if strings.Contains(cmd.String(), r.text) && next(ctx, []redis.Cmder{cmd}) == nil {
				r.n.Add(1)
			}
		}
		return next(ctx, cmds)
	}
}
