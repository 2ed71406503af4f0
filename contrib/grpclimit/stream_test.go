package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/go-reservoir/reservoir/contrib/grpclimit"
)

var message = &testgrpc.StreamingOutputCallRequest{}

// exchange sends a message, and returns once its answer is there.
func exchange(stream testgrpc.TestService_FullDuplexCallClient) error {
	if err := stream.Send(message); err != nil && !errors.Is(err, io.EOF) { // EOF: Recv knows why
		return err
	}
	_, err := stream.Recv()
	return err
}

// A stream costs one token, however many messages it has.
func TestStream(t *testing.T) {
	l := limiter(t, 1)
	impl, client := serve(t, grpclimit.Server{Limiter: l, Key: one})
	stream, err := client.FullDuplexCall(t.Context())
	require.NoError(t, err)
	for range 5 {
		require.NoError(t, exchange(stream))
	}
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	header, err := stream.Header()
	require.NoError(t, err)
	assert.EqualValues(t, 0, first(t, header, "x-ratelimit")["remaining"])

	stream, err = client.FullDuplexCall(t.Context())
	require.NoError(t, err)
	err = exchange(stream)
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.Positive(t, retryDelay(t, err))
	assert.EqualValues(t, 1, first(t, stream.Trailer(), "x-ratelimit")["limit"])
	assert.EqualValues(t, 1, impl.calls.Load())
}

func TestClientWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, 2)
		limits := grpclimit.Client{Limiter: l}
		impl, client := serve(t, grpclimit.Server{Limiter: limiter(t, 1000), Key: one}, dial(limits)...)
		begin := time.Now()
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				_, err := client.EmptyCall(context.Background(), empty)
				assert.NoError(t, err)
			})
		}
		all.Wait()
		assert.InDelta(t, 2*time.Minute, time.Since(begin), float64(time.Second))
		assert.EqualValues(t, 5, impl.calls.Load())
		assert.EqualValues(t, 1, remaining(t, l, "target:passthrough:///test"), "by target")

		_, err := client.EmptyCall(context.Background(), empty)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		begin = time.Now()
		_, err = client.EmptyCall(ctx, empty)
		assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
		assert.Zero(t, time.Since(begin), "at once: it could not be sent in time")
		assert.EqualValues(t, 6, impl.calls.Load())
	})
}

func dial(limits grpclimit.Client) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(limits.Unary()), grpc.WithChainStreamInterceptor(limits.Stream())}
}

func TestClientStreamWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := grpclimit.Client{Limiter: limiter(t, 1), Key: one}
		_, client := serve(t, grpclimit.Server{Limiter: limiter(t, 1000), Key: one}, dial(limits)...)
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 119*time.Second) // before the second reset
		defer cancel()
		for range 2 {
			stream, err := client.FullDuplexCall(ctx)
			require.NoError(t, err)
			for range 3 { // which cost nothing
				require.NoError(t, exchange(stream))
			}
		}
		assert.InDelta(t, time.Minute, time.Since(begin), float64(time.Second))
		_, err := client.FullDuplexCall(ctx)
		assert.Equal(t, codes.DeadlineExceeded, status.Code(err), "there is none before the deadline")
		assert.Less(t, time.Since(begin), 61*time.Second)
	})
}

func TestClientCosts(t *testing.T) {
	l := limiter(t, 3)
	limits := grpclimit.Client{Limiter: l, Key: one, Cost: func(_ context.Context, c grpclimit.Call) int64 {
		if c.Stream {
			return 0
		}
		return 9
	}}
	impl, client := serve(t, grpclimit.Server{Limiter: limiter(t, 1000), Key: one}, dial(limits)...)
	stream, err := client.FullDuplexCall(t.Context())
	require.NoError(t, err)
	require.NoError(t, exchange(stream))
	assert.EqualValues(t, 3, remaining(t, l, "one"))
	_, err = client.EmptyCall(t.Context(), empty)
	assert.Equal(t, codes.InvalidArgument, status.Code(err))
	assert.EqualValues(t, 1, impl.calls.Load())

	unnamed := grpclimit.Client{Limiter: l, Key: grpclimit.ByPeer}
	_, client = serve(t, grpclimit.Server{Limiter: limiter(t, 1000), Key: one}, dial(unnamed)...)
	_, err = client.FullDuplexCall(t.Context())
	assert.Equal(t, codes.Internal, status.Code(err), "a client's call has no peer yet")
}
