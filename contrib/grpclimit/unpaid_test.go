package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/contrib/grpclimit"
)

// handlers counts the streams that a server is busy with.
type handlers struct{ busy atomic.Int64 }

func (h *handlers) intercept(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	h.busy.Add(1)
	defer h.busy.Add(-1)
	return handle(srv, stream)
}

// noRight is a failure that no Wait outlasts: an operator must act.
var noRight = &backend.Error{Op: "sync", Class: backend.Rejected, Err: errors.New("NOPERM")}

// A message that is not paid for ends its stream at both ends, though the caller
// has no stream to end and no context that ends.
func TestUnpaidMessageEndsTheStream(t *testing.T) {
	closed := func(t *testing.T) *reservoir.Limiter {
		l := limiter(t, 5)
		require.NoError(t, l.Close(t.Context()))
		return l
	}
	for name, test := range map[string]struct {
		limiter func(t *testing.T) *reservoir.Limiter
		want    codes.Code
	}{
		"costs too much": {func(t *testing.T) *reservoir.Limiter { return limiter(t, 5) }, codes.InvalidArgument},
		"store rejects":  {func(t *testing.T) *reservoir.Limiter { return over(t, broken{memstore.New(), noRight}, 10) }, codes.Unavailable},
		"limiter closed": {closed, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h handlers
				var hung, finished int64
				limits := grpclimit.Client{Limiter: test.limiter(t), Key: one, Cost: free, SendCost: func(grpclimit.Call, any) int64 {
					synctest.Wait()
					hung += h.busy.Load()
					return 6
				}}
				impl, client := serveWith(t, []grpc.ServerOption{grpc.ChainStreamInterceptor(h.intercept)}, dial(limits)...)
				done := grpc.OnFinish(func(error) { finished++ })

				stream, err := client.StreamingOutputCall(context.Background(), message, done)
				assert.Equal(t, test.want, status.Code(err))
				assert.Nil(t, stream)
				both, err := client.FullDuplexCall(context.Background(), done)
				require.NoError(t, err)
				assert.Equal(t, test.want, status.Code(both.Send(message)))

				synctest.Wait()
				require.EqualValues(t, 2, hung, "the server did wait for each message")
				assert.Zero(t, h.busy.Load(), "handlers that wait for ever")
				assert.EqualValues(t, 2, finished, "streams that the client has done with")
				assert.Zero(t, impl.received.Load())
			})
		})
	}
}

// spy keeps the context of the last stream that was opened, and may fail it.
type spy struct {
	ctx context.Context
	err error
}

func (s *spy) intercept(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if s.ctx = ctx; s.err != nil {
		return nil, s.err
	}
	return open(ctx, desc, cc, method, opts...)
}

// A stream whose messages are paid for ends when the server has ended it, not with
// the last message that it sends, and leaves no context behind.
func TestPaidStreamEndsByItself(t *testing.T) {
	var inner spy
	limits := grpclimit.Client{Limiter: limiter(t, 100), Key: one, SendCost: each}
	_, client := serve(t, grpclimit.Server{Limiter: limiter(t, 1000), Key: one},
		append(dial(limits), grpc.WithChainStreamInterceptor(inner.intercept))...)

	three := &testgrpc.StreamingOutputCallRequest{ResponseParameters: make([]*testgrpc.ResponseParameters, 3)}
	for i := range three.ResponseParameters {
		three.ResponseParameters[i] = &testgrpc.ResponseParameters{}
	}
	stream, err := client.StreamingOutputCall(context.Background(), three)
	require.NoError(t, err)
	for range three.ResponseParameters {
		require.NoError(t, inner.ctx.Err())
		_, err = stream.Recv()
		require.NoError(t, err)
	}
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	require.ErrorIs(t, inner.ctx.Err(), context.Canceled)

	both, err := client.FullDuplexCall(context.Background())
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, both.Send(message))
	}
	require.NoError(t, both.CloseSend())
	for range 3 {
		require.NoError(t, inner.ctx.Err())
		_, err = both.Recv()
		require.NoError(t, err)
	}
	_, err = both.Recv()
	require.ErrorIs(t, err, io.EOF)
	require.ErrorIs(t, inner.ctx.Err(), context.Canceled)
}

// The server ends a stream, with a status that RecvMsg returns, before a message of the
// client is paid for. To send on such a stream is io.EOF, as without limits.
func TestSendOnAStreamThatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		enough := func(_ any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, _ grpc.StreamHandler) error {
			assert.NoError(t, stream.RecvMsg(new(testgrpc.StreamingOutputCallRequest)))
			time.Sleep(time.Second) // the client waits for tokens
			return status.Error(codes.FailedPrecondition, "enough")
		}
		limits := grpclimit.Client{Limiter: limiter(t, 2), Key: one, SendCost: each}
		_, client := serveWith(t, []grpc.ServerOption{grpc.ChainStreamInterceptor(enough)}, dial(limits)...)
		stream, err := client.FullDuplexCall(context.Background())
		require.NoError(t, err)
		require.NoError(t, stream.Send(message))
		ended := make(chan error, 1)
		go func() {
			_, err := stream.Recv()
			ended <- err
		}()
		for range 2 { // one message waits when the stream ends, and one comes later
			require.Equal(t, io.EOF, stream.Send(message))
		}
		require.Equal(t, codes.FailedPrecondition, status.Code(<-ended))
	})
}

func TestStreamThatDoesNotOpenLeavesNoContext(t *testing.T) {
	inner := spy{err: status.Error(codes.Aborted, "no")}
	limits := grpclimit.Client{Limiter: limiter(t, 100), Key: one, SendCost: each}
	_, client := serve(t, grpclimit.Server{Limiter: limiter(t, 1000), Key: one},
		append(dial(limits), grpc.WithChainStreamInterceptor(inner.intercept))...)
	_, err := client.FullDuplexCall(context.Background())
	require.Equal(t, codes.Aborted, status.Code(err))
	require.ErrorIs(t, inner.ctx.Err(), context.Canceled)
}

// The options that a caller gives to many calls at once are not written to.
func TestOptionsOfACallerAreItsOwn(t *testing.T) {
	conn, err := grpc.NewClient("passthrough:///test", grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	given := 0
	open := func(_ context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		given = len(opts)
		return nil, errors.New("no")
	}
	opts := make([]grpc.CallOption, 1, 2)
	intercept := grpclimit.Client{Limiter: limiter(t, 100), Key: one, SendCost: each}.Stream()
	_, err = intercept(t.Context(), &grpc.StreamDesc{}, conn, "/m", open, opts...)
	require.Error(t, err)
	assert.Equal(t, 2, given, "and one of the interceptor's")
	assert.Nil(t, opts[:2][1])
}
