package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/test/bufconn"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/contrib/grpclimit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service answers every call; a test sets what with.
type service struct {
	testgrpc.UnimplementedTestServiceServer
	calls atomic.Int64
	fail  error
}

func (s *service) EmptyCall(context.Context, *testgrpc.Empty) (*testgrpc.Empty, error) {
	s.calls.Add(1)
	return &testgrpc.Empty{}, s.fail
}

// UnaryCall is a second method.
func (s *service) UnaryCall(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	s.calls.Add(1)
	return &testgrpc.SimpleResponse{}, nil
}

// FullDuplexCall returns a message for each that comes.
func (s *service) FullDuplexCall(stream testgrpc.TestService_FullDuplexCallServer) error {
	s.calls.Add(1)
	for {
		_, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&testgrpc.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// limiter is one of n tokens a minute. Its calls may wait for a busy machine.
func limiter(t *testing.T, n int64, opts ...reservoir.Option) *reservoir.Limiter {
	t.Helper()
	return over(t, memstore.New(), n, opts...)
}

// over is limiter with a store of its own.
func over(t *testing.T, store backend.Store, n int64, opts ...reservoir.Option) *reservoir.Limiter {
	t.Helper()
	opts = append([]reservoir.Option{reservoir.WithFetchTimeout(time.Minute)}, opts...)
	l, err := reservoir.New(store, reservoir.PerMinute(n), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

// serve runs a server with limits, in memory, and returns its service and a
// client.
func serve(t *testing.T, limits grpclimit.Server, opts ...grpc.DialOption) (*service, testgrpc.TestServiceClient) {
	t.Helper()
	return serveWith(t, []grpc.ServerOption{grpc.ChainUnaryInterceptor(limits.Unary()), grpc.ChainStreamInterceptor(limits.Stream())}, opts...)
}

func serveWith(t *testing.T, server []grpc.ServerOption, opts ...grpc.DialOption) (*service, testgrpc.TestServiceClient) {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	s := grpc.NewServer(server...)
	impl := &service{}
	testgrpc.RegisterTestServiceServer(s, impl)
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
	}, opts...)
	conn, err := grpc.NewClient("passthrough:///test", opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = conn.Close()
		s.Stop()
		require.NoError(t, <-served)
	})
	return impl, testgrpc.NewTestServiceClient(conn)
}

func one(context.Context, grpclimit.Call) (string, error) { return "one", nil }

// remaining is what the store has left of key.
func remaining(t *testing.T, l *reservoir.Limiter, key string) int64 {
	t.Helper()
	r, err := l.Check(context.Background(), key)
	require.NoError(t, err)
	return r.Remaining
}
