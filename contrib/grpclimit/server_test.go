package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/contrib/grpclimit"
)

var (
	empty = &testgrpc.Empty{}
	modes = map[string][]reservoir.Option{"batches": nil, "direct": {reservoir.WithDirect()}}
)

// retryDelay is that of the RetryInfo in err, which must be there once.
func retryDelay(t *testing.T, err error) time.Duration {
	t.Helper()
	require.Len(t, status.Convert(err).Details(), 1)
	info, ok := status.Convert(err).Details()[0].(*errdetails.RetryInfo)
	require.True(t, ok)
	return info.RetryDelay.AsDuration()
}

// first returns the only values of what was sent of the limit.
func first(t *testing.T, md metadata.MD, prefix string) map[string]int64 {
	t.Helper()
	values := map[string]int64{}
	for _, name := range []string{"limit", "remaining", "reset"} {
		v := md.Get(prefix + "-" + name)
		require.Len(t, v, 1, name)
		n, err := strconv.ParseInt(v[0], 10, 64)
		require.NoError(t, err)
		values[name] = n
	}
	return values
}

func TestUnary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		impl, client := serve(t, grpclimit.Server{Limiter: limiter(t, 2), Key: one})
		time.Sleep(300 * time.Millisecond) // of the bubble's time, which begins at a full second
		begin := time.Now()
		var header, trailer metadata.MD
		for left := range int64(2) {
			_, err := client.EmptyCall(t.Context(), empty, grpc.Header(&header), grpc.Trailer(&trailer))
			require.NoError(t, err)
			assert.Equal(t, map[string]int64{"limit": 2, "remaining": 1 - left, "reset": begin.Unix() + 60}, first(t, header, "x-ratelimit"))
			assert.Empty(t, trailer)
		}
		time.Sleep(20 * time.Second)
		_, err := client.EmptyCall(t.Context(), empty, grpc.Header(&header), grpc.Trailer(&trailer))
		assert.Equal(t, codes.ResourceExhausted, status.Code(err))
		assert.InDelta(t, 39700*time.Millisecond, retryDelay(t, err), float64(time.Millisecond)) // windows end at whole seconds
		assert.Equal(t, map[string]int64{"limit": 2, "remaining": 0, "reset": begin.Unix() + 60}, first(t, trailer, "x-ratelimit"))
		assert.Empty(t, header.Get("x-ratelimit-limit"))
		assert.EqualValues(t, 2, impl.calls.Load())

		time.Sleep(retryDelay(t, err)) // and that is true
		_, err = client.EmptyCall(t.Context(), empty)
		require.NoError(t, err)
	})
}

func costs(n int64) func(context.Context, grpclimit.Call) int64 {
	return func(context.Context, grpclimit.Call) int64 { return n }
}

// The end of a caller's own context is not an outage.
func TestCallerGone(t *testing.T) {
	intercept := grpclimit.Server{Limiter: limiter(t, 1), Key: one}.Unary()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := intercept(ctx, nil, &grpc.UnaryServerInfo{}, nil)
	assert.Equal(t, codes.Canceled, status.Code(err))
}

func TestCost(t *testing.T) {
	l := limiter(t, 10)
	_, client := serve(t, grpclimit.Server{Limiter: l,
		Key: func(_ context.Context, c grpclimit.Call) (string, error) {
			assert.Equal(t, "/grpc.testing.TestService/UnaryCall", c.Method, "only a call that costs something needs a key")
			return "one", nil
		},
		Cost: func(_ context.Context, c grpclimit.Call) int64 {
			r, _ := c.Request.(*testgrpc.SimpleRequest)
			return int64(r.GetResponseSize())
		}})
	var header metadata.MD
	_, err := client.EmptyCall(t.Context(), empty, grpc.Header(&header))
	require.NoError(t, err)
	assert.Empty(t, header.Get("x-ratelimit-limit"))
	stream, err := client.FullDuplexCall(t.Context())
	require.NoError(t, err)
	require.NoError(t, exchange(stream))
	require.EqualValues(t, 10, remaining(t, l, "one"), "not limited")
	_, err = client.UnaryCall(t.Context(), &testgrpc.SimpleRequest{ResponseSize: 4})
	require.NoError(t, err)
	assert.EqualValues(t, 6, remaining(t, l, "one"))
	_, err = client.UnaryCall(t.Context(), &testgrpc.SimpleRequest{ResponseSize: -1})
	require.NoError(t, err)
	assert.EqualValues(t, 6, remaining(t, l, "one"))
}

// What a call has cost goes back by the status that the client sees, and nothing
// goes back twice.
func TestRefund(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		back bool
	}{
		"asked for":                  {status.Error(codes.NotFound, ""), true},
		"another status":             {status.Error(codes.Internal, ""), false},
		"wrapped":                    {fmt.Errorf("no such user: %w", status.Error(codes.NotFound, "")), true},
		"a context's end has a code": {context.DeadlineExceeded, true},
		"any other error is UNKNOWN": {errors.New("odd"), false},
	} {
		for mode, opts := range modes {
			t.Run(name+"/"+mode, func(t *testing.T) {
				l := limiter(t, 10, opts...)
				var asked []codes.Code
				impl, client := serve(t, grpclimit.Server{Limiter: l, Key: one, Refund: func(c codes.Code) bool {
					asked = append(asked, c)
					return grpclimit.Codes(codes.NotFound, codes.DeadlineExceeded)(c)
				}})
				impl.fail = test.err
				_, err := client.EmptyCall(t.Context(), empty)
				assert.Equal(t, []codes.Code{status.Code(err)}, asked)
				want := int64(9)
				if test.back {
					want = 10
				}
				assert.Eventually(t, func() bool { return remaining(t, l, "one") == want }, 10*time.Second, time.Millisecond)
			})
		}
	}
}

// The caller's context has ended by the time that a handler returns; what it has
// paid goes back all the same.
func TestRefundAfterTheCallerIsGone(t *testing.T) {
	l := over(t, memstore.New(), 10, reservoir.WithDirect())
	intercept := grpclimit.Server{Limiter: l, Key: one, Refund: grpclimit.Codes(codes.Canceled)}.Unary()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := intercept(ctx, nil, &grpc.UnaryServerInfo{}, func(ctx context.Context, _ any) (any, error) {
		cancel()
		return nil, ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
	assert.Eventually(t, func() bool { return remaining(t, l, "one") == 10 }, 10*time.Second, time.Millisecond, "by a statement of its own")
}

func TestTwoLimitsInAChain(t *testing.T) {
	user, all := limiter(t, 10, reservoir.WithDirect()), limiter(t, 1) // no prefetch has tokens on their way
	outer := grpclimit.Server{Limiter: user, Key: one, Metadata: "x-user-limit", Refund: grpclimit.Codes(codes.ResourceExhausted)}
	inner := grpclimit.Server{Limiter: all, Key: grpclimit.ByMethod}
	_, client := serveWith(t, []grpc.ServerOption{grpc.ChainUnaryInterceptor(outer.Unary(), inner.Unary())})
	var header metadata.MD
	_, err := client.EmptyCall(t.Context(), empty, grpc.Header(&header))
	require.NoError(t, err)
	assert.EqualValues(t, 10, first(t, header, "x-user-limit")["limit"])
	assert.EqualValues(t, 1, first(t, header, "x-ratelimit")["limit"])
	_, err = client.EmptyCall(t.Context(), empty)
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.Eventually(t, func() bool { return remaining(t, user, "one") == 9 }, 10*time.Second, time.Millisecond, "what the refused call cost goes back")
}

func TestNoMetadata(t *testing.T) {
	_, client := serve(t, grpclimit.Server{Limiter: limiter(t, 1), Key: one, Metadata: "-"})
	for range 2 {
		var header, trailer metadata.MD
		_, _ = client.EmptyCall(t.Context(), empty, grpc.Header(&header), grpc.Trailer(&trailer))
		for name := range metadata.Join(header, trailer) {
			assert.NotContains(t, name, "limit")
		}
	}
}

func TestNothingToLimitBy(t *testing.T) {
	assert.Panics(t, func() { grpclimit.Server{Key: one}.Unary() })
	assert.Panics(t, func() { grpclimit.Server{Limiter: limiter(t, 1)}.Stream() })
	assert.Panics(t, func() { grpclimit.Client{}.Unary() })
	assert.Panics(t, func() { grpclimit.Client{}.Stream() })
}
