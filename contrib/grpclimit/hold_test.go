package grpclimit_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/contrib/grpclimit"
)

// refused is an error with these details.
func refused(code codes.Code, details ...protoadapt.MessageV1) error {
	s, err := status.New(code, "no").WithDetails(details...)
	if err != nil {
		panic(err)
	}
	return s.Err()
}

func retryIn(d time.Duration) *errdetails.RetryInfo {
	return &errdetails.RetryInfo{RetryDelay: durationpb.New(d)}
}

// A refusal that names a time, in whatever way it comes, pauses all processes until then, and no longer. The call gets its error.
func TestClientHolds(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		most  time.Duration
		pause time.Duration
	}{
		"refused":         {refused(codes.ResourceExhausted, retryIn(30*time.Second)), 0, 30 * time.Second},
		"among others":    {refused(codes.ResourceExhausted, &errdetails.ErrorInfo{Reason: "QUOTA"}, retryIn(30*time.Second)), 0, 30 * time.Second},
		"for long":        {refused(codes.ResourceExhausted, retryIn(10000*time.Second)), 0, 10000 * time.Second},
		"hostile":         {refused(codes.ResourceExhausted, retryIn(1<<62)), 0, 24 * time.Hour},
		"bounded":         {refused(codes.ResourceExhausted, retryIn(1<<62)), time.Minute, time.Minute},
		"not believed":    {refused(codes.ResourceExhausted, retryIn(1<<62)), -1, 0},
		"without":         {refused(codes.ResourceExhausted, &errdetails.ErrorInfo{}), 0, 0},
		"without details": {refused(codes.ResourceExhausted), 0, 0},
		"now":             {refused(codes.ResourceExhausted, retryIn(0)), 0, 0},
		"negative":        {refused(codes.ResourceExhausted, retryIn(-time.Hour)), 0, 0},
		"no time":         {refused(codes.ResourceExhausted, &errdetails.RetryInfo{}), 0, 0},
		"another code":    {refused(codes.Unavailable, retryIn(30*time.Second)), 0, 0},
	} {
		for way, refuse := range map[string]func(t *testing.T, c grpclimit.Client) error{
			"unary": func(t *testing.T, c grpclimit.Client) error {
				impl, client := serve(t, grpclimit.Server{Limiter: limiter(t, 1000), Key: one}, dial(c)...)
				impl.fail = test.err
				_, err := client.EmptyCall(t.Context(), empty)
				return err
			},
			"when it opens": func(t *testing.T, c grpclimit.Client) error {
				_, client := serve(t, grpclimit.Server{Limiter: limiter(t, 1000), Key: one}, append(dial(c), grpc.WithChainStreamInterceptor(
					func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer, ...grpc.CallOption) (grpc.ClientStream, error) {
						return nil, test.err
					}))...)
				_, err := client.FullDuplexCall(t.Context())
				return err
			},
			"when it receives": func(t *testing.T, c grpclimit.Client) error {
				_, client := serveWith(t, []grpc.ServerOption{grpc.StreamInterceptor(func(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error {
					return test.err
				})}, dial(c)...)
				stream, err := client.FullDuplexCall(t.Context())
				require.NoError(t, err)
				_, err = stream.Recv()
				return err
			},
		} {
			t.Run(name+"/"+way, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store, all := memstore.New(), []*reservoir.Limiter{}
					for range 3 {
						l := over(t, store, 600)
						_, err := l.Allow(t.Context(), "one")
						require.NoError(t, err)
						all = append(all, l)
					}
					err := refuse(t, grpclimit.Client{Limiter: all[0], Key: one, MaxHold: test.most})
					assert.Equal(t, status.Code(test.err), status.Code(err))
					assert.Equal(t, len(status.Convert(test.err).Details()), len(status.Convert(err).Details()))
					begin := time.Now()
					synctest.Wait() // until the others have heard
					var waiting sync.WaitGroup
					for _, l := range all {
						waiting.Go(func() {
							_, err := l.Wait(t.Context(), "one")
							assert.NoError(t, err)
							assert.InDelta(t, test.pause+test.pause/2000, time.Since(begin), float64(test.pause/2000+100*time.Millisecond))
						})
					}
					waiting.Wait()
					for _, l := range all {
						assert.Equal(t, test.pause > 0, l.Stats().Holds > 0)
					}
				})
			})
		}
	}
}

// A call that costs nothing has no key to hold.
func TestClientHoldsNothingForFreeCalls(t *testing.T) {
	l := limiter(t, 600)
	impl, client := serve(t, grpclimit.Server{Limiter: limiter(t, 1000), Key: one}, dial(grpclimit.Client{Limiter: l, Key: one, Cost: costs(0)})...)
	impl.fail = refused(codes.ResourceExhausted, retryIn(time.Hour))
	_, err := client.EmptyCall(t.Context(), empty)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.Zero(t, l.Stats().Holds)
}

// A call that finds too many in line fails at once.
func TestClientInAFullLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		impl, client := serve(t, grpclimit.Server{Limiter: limiter(t, 1000), Key: one}, dial(grpclimit.Client{Limiter: limiter(t, 1, reservoir.WithMaxWaiting(1)), Key: one})...)
		_, err := client.EmptyCall(t.Context(), empty)
		require.NoError(t, err)
		begin := time.Now()
		var waiting sync.WaitGroup
		waiting.Go(func() {
			_, err := client.EmptyCall(t.Context(), empty)
			assert.NoError(t, err)
		})
		synctest.Wait()
		_, err = client.EmptyCall(t.Context(), empty)
		assert.Equal(t, codes.ResourceExhausted, status.Code(err))
		assert.Zero(t, time.Since(begin))
		waiting.Wait()
		assert.EqualValues(t, 2, impl.calls.Load())
	})
}
