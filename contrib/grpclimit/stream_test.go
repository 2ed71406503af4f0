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

var (
	message = &testgrpc.StreamingOutputCallRequest{}
	each    = func(grpclimit.Call, any) int64 { return 1 }
	free    = func(context.Context, grpclimit.Call) int64 { return 0 }
)

// exchange sends a message, and returns once its answer is there.
func exchange(stream testgrpc.TestService_FullDuplexCallClient) error {
	if err := stream.Send(message); err != nil && !errors.Is(err, io.EOF) { // EOF: Recv knows why
		return err
	}
	_, err := stream.Recv()
	return err
}

// By default a stream costs one token, however many messages it has.
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

func TestSkippedStream(t *testing.T) {
	l := limiter(t, 1)
	_, client := serve(t, grpclimit.Server{Limiter: l, Key: one, RecvCost: each, Skip: grpclimit.Methods("/grpc.testing.TestService/")})
	stream, err := client.FullDuplexCall(t.Context())
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, exchange(stream))
	}
	assert.EqualValues(t, 1, remaining(t, l, "one"))
}

// The message that finds no tokens is not handled, and ends the stream.
func TestMessages(t *testing.T) {
	for name, test := range map[string]struct {
		limits   grpclimit.Server
		received int64
	}{
		"received":          {grpclimit.Server{RecvCost: each, Cost: free}, 3},
		"sent":              {grpclimit.Server{SendCost: each, Cost: free}, 4}, // the fourth could not be answered
		"and the stream":    {grpclimit.Server{RecvCost: each}, 2},
		"some cost nothing": {grpclimit.Server{RecvCost: each, SendCost: func(grpclimit.Call, any) int64 { return -1 }, Cost: free}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			l := limiter(t, 3)
			test.limits.Limiter, test.limits.Key = l, one
			impl, client := serve(t, test.limits)
			stream, err := client.FullDuplexCall(t.Context())
			require.NoError(t, err)
			for err == nil {
				err = exchange(stream)
			}
			assert.Equal(t, codes.ResourceExhausted, status.Code(err))
			assert.Positive(t, retryDelay(t, err))
			assert.EqualValues(t, 0, first(t, stream.Trailer(), "x-ratelimit")["remaining"])
			assert.Equal(t, test.received, impl.received.Load())
			assert.EqualValues(t, 0, remaining(t, l, "one"))
		})
	}
}

// A message that finds no tokens ends the stream with that status, even if the handler
// takes the error for the end of the messages.
func TestHandlerThatIgnoresTheRefusalOfAMessage(t *testing.T) {
	limits := grpclimit.Server{Limiter: limiter(t, 1), Key: one, Cost: free, RecvCost: each}
	ignores := func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		_ = handler(srv, stream)
		return nil
	}
	_, client := serveWith(t, []grpc.ServerOption{grpc.ChainStreamInterceptor(limits.Stream(), ignores)})
	stream, err := client.FullDuplexCall(t.Context())
	require.NoError(t, err)
	require.NoError(t, exchange(stream))
	assert.Equal(t, codes.ResourceExhausted, status.Code(exchange(stream)))
}

func TestMessagesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client := serve(t, grpclimit.Server{Limiter: limiter(t, 2), Key: one, Cost: free, RecvCost: each, WaitMessages: true})
		stream, err := client.FullDuplexCall(t.Context())
		require.NoError(t, err)
		begin := time.Now()
		for range 5 {
			require.NoError(t, exchange(stream))
		}
		assert.InDelta(t, 2*time.Minute, time.Since(begin), float64(time.Second), "five in windows of two")
		require.NoError(t, stream.CloseSend())
		_, err = stream.Recv()
		require.ErrorIs(t, err, io.EOF)
	})
}

func TestMessagesOfAStreamThatEndsWhileTheyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client := serve(t, grpclimit.Server{Limiter: limiter(t, 1), Key: one, RecvCost: each, WaitMessages: true})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		stream, err := client.FullDuplexCall(ctx)
		require.NoError(t, err)
		assert.Equal(t, codes.DeadlineExceeded, status.Code(exchange(stream)))
		assert.LessOrEqual(t, time.Since(begin), time.Second)
	})
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
		limits := grpclimit.Client{Limiter: limiter(t, 2), Key: one, SendCost: each}
		_, client := serve(t, grpclimit.Server{Limiter: limiter(t, 1000), Key: one}, dial(limits)...)
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 119*time.Second) // before the second reset
		defer cancel()
		stream, err := client.FullDuplexCall(ctx)
		require.NoError(t, err)
		for range 3 { // and the stream itself
			require.NoError(t, exchange(stream))
		}
		assert.InDelta(t, time.Minute, time.Since(begin), float64(time.Second))
		err = stream.Send(message) // there is none before the deadline
		assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
		assert.Less(t, time.Since(begin), 61*time.Second)
	})
}

// A stream that costs nothing by itself, and has no key, is limited all the same.
func TestClientStreamWithoutKey(t *testing.T) {
	none := func(context.Context, grpclimit.Call) (string, error) { return "", nil }
	limits := grpclimit.Client{Limiter: limiter(t, 2), Key: none, Cost: costs(0), SendCost: each}
	_, client := serve(t, grpclimit.Server{Limiter: limiter(t, 1000), Key: one}, dial(limits)...)
	stream, err := client.FullDuplexCall(t.Context())
	require.NoError(t, err)
	assert.Equal(t, codes.InvalidArgument, status.Code(stream.Send(message)))
}

func TestClientSkipsAndFails(t *testing.T) {
	l := limiter(t, 3)
	limits := grpclimit.Client{Limiter: l, Key: one, SendCost: each, Skip: grpclimit.Methods("/grpc.testing.TestService/FullDuplexCall"), Cost: costs(9)}
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
