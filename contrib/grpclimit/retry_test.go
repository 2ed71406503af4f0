package grpclimit_test

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/go-reservoir/reservoir/contrib/grpclimit"
)

const retries = `{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 3, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
	"retryableStatusCodes": ["UNAVAILABLE"]}}]}`

// gRPC retries a stream whose messages are paid for, as it does any other, and
// the message that it sends again is not charged again.
func TestPaidStreamIsRetried(t *testing.T) {
	l := limiter(t, 10)
	limits := grpclimit.Client{Limiter: l, Key: one, Cost: free, SendCost: func(grpclimit.Call, any) int64 { return 3 }}
	impl, client := serveWith(t, nil, append(dial(limits), grpc.WithDefaultServiceConfig(retries))...)
	impl.fail = func() error {
		if impl.calls.Load() == 1 {
			return status.Error(codes.Unavailable, "the first time")
		}
		return nil
	}
	stream, err := client.StreamingOutputCall(context.Background(), &testgrpc.StreamingOutputCallRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	require.EqualValues(t, 2, impl.calls.Load())
	require.EqualValues(t, 7, remaining(t, l, "one"))
}
