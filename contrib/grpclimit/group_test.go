package grpclimit_test

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/contrib/grpclimit"
)

func constant(key string) grpclimit.KeyFunc {
	return func(context.Context, grpclimit.Call) (string, error) { return key, nil }
}

// size is what a UnaryCall says that it costs.
func size(_ context.Context, c grpclimit.Call) int64 {
	if r, ok := c.Request.(*testgrpc.SimpleRequest); ok {
		return int64(r.ResponseSize)
	}
	return 0
}

var modes = map[string][]reservoir.Option{"batches": nil, "direct": {reservoir.WithDirect()}}

// A call is charged to all limits of a group, each its cost, or to none, and goes back to
// all; the client is told of the one that refused, or of the tightest.
func TestGroup(t *testing.T) {
	for mode, opts := range modes {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls, tokens := limiter(t, 5, opts...), limiter(t, 1000, opts...)
				impl, client := serve(t, grpclimit.Server{
					Group: reservoir.NewGroup(calls, tokens), Keys: []grpclimit.KeyFunc{constant("a"), grpclimit.ByMethod},
					Costs: []grpclimit.CostFunc{func(ctx context.Context, c grpclimit.Call) int64 { return min(size(ctx, c), 1) }, size},
				})
				const method = "method:/grpc.testing.TestService/UnaryCall"
				for i, step := range []struct {
					size          int32
					want          codes.Code
					limit, left   int64
					calls, tokens int64 // that remain
				}{
					{100, codes.OK, 5, 4, 4, 900},
					{700, codes.OK, 1000, 200, 3, 200},
					{201, codes.ResourceExhausted, 1000, 200, 3, 200},
					{0, codes.OK, 0, 0, 3, 200}, // for nothing
					{1001, codes.InvalidArgument, 0, 0, 3, 200},
					{1, codes.OK, 1000, 199, 2, 199},
					{1, codes.OK, 1000, 198, 1, 198},
					{1, codes.OK, 5, 0, 0, 197},
					{1, codes.ResourceExhausted, 5, 0, 0, 197},
				} {
					var header, trailer metadata.MD
					_, err := client.UnaryCall(t.Context(), &testgrpc.SimpleRequest{ResponseSize: step.size}, grpc.Header(&header), grpc.Trailer(&trailer))
					require.Equal(t, step.want, status.Code(err), i)
					if step.limit > 0 {
						told := first(t, metadata.Join(header, trailer), "x-ratelimit")
						require.Equal(t, []int64{step.limit, step.left}, []int64{told["limit"], told["remaining"]}, i)
					}
					synctest.Wait() // a batch on its way may count twice, or not at all
					require.Equal(t, []int64{step.calls, step.tokens}, []int64{remaining(t, calls, "a"), remaining(t, tokens, method)}, i)
				}
				assert.EqualValues(t, 6, impl.calls.Load())
			})
		})
	}
}

func TestGroupRefunds(t *testing.T) {
	for mode, opts := range modes {
		for n := range 5 {
			t.Run(mode+"/"+strconv.Itoa(n+1), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var all []*reservoir.Limiter
					var keys []grpclimit.KeyFunc
					for range n + 1 {
						all, keys = append(all, limiter(t, 10, opts...)), append(keys, one)
					}
					impl, client := serve(t, grpclimit.Server{
						Group: reservoir.NewGroup(all...), Keys: keys, Cost: costs(3), Refund: grpclimit.Codes(codes.NotFound),
					})
					for _, fail := range []error{nil, status.Error(codes.NotFound, "")} {
						impl.fail = func() error { return fail }
						_, err := client.EmptyCall(t.Context(), empty)
						require.Equal(t, status.Code(fail), status.Code(err))
						synctest.Wait() // a batch on its way may count twice, or not at all
						for _, l := range all {
							require.EqualValues(t, 7, remaining(t, l, "one"))
						}
					}
				})
			})
		}
	}
}

// A client waits for all limits of a group.
func TestGroupOfAClient(t *testing.T) {
	for mode, opts := range modes {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls, tokens := limiter(t, 100, opts...), limiter(t, 10, opts...)
				limits := grpclimit.Client{
					Group: reservoir.NewGroup(calls, tokens), Keys: []grpclimit.KeyFunc{grpclimit.ByTarget, one},
					Costs: []grpclimit.CostFunc{costs(1), costs(5)},
				}
				_, client := serve(t, grpclimit.Server{Limiter: limiter(t, 1000), Key: one}, dial(limits)...)
				begin := time.Now()
				for range 3 {
					_, err := client.EmptyCall(t.Context(), empty)
					require.NoError(t, err)
				}
				require.InDelta(t, time.Minute, time.Since(begin), float64(time.Second))
				require.EqualValues(t, 99, remaining(t, calls, "target:passthrough:///test"), "of this window")

				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				_, err := client.FullDuplexCall(ctx)
				require.NoError(t, err)
				_, err = client.FullDuplexCall(ctx)
				require.Equal(t, codes.DeadlineExceeded, status.Code(err))
			})
		})
	}
}

// special is a limiter whose keys have limits that nobody counts.
func special(t *testing.T, limit reservoir.Limit, opts ...reservoir.Option) *reservoir.Limiter {
	return limiter(t, 1, append(opts, reservoir.WithLimits(func(string) reservoir.Limit { return limit }))...)
}

// servers are a limiter and groups, in which it is among others, to test in the same way.
func servers(t *testing.T, l *reservoir.Limiter, with grpclimit.Server) map[string]grpclimit.Server {
	alone, pair, three := with, with, with
	alone.Limiter, alone.Key = l, one
	pair.Group, pair.Keys = reservoir.NewGroup(l, special(t, reservoir.Unlimited())), []grpclimit.KeyFunc{one, one}
	three.Group = reservoir.NewGroup(special(t, reservoir.Unlimited()), special(t, reservoir.Unlimited()), l)
	three.Keys = []grpclimit.KeyFunc{one, one, one}
	return map[string]grpclimit.Server{"limiter": alone, "group of two": pair, "group of three": three}
}

func TestUnlimited(t *testing.T) {
	for name, limits := range servers(t, special(t, reservoir.Unlimited()), grpclimit.Server{Refund: grpclimit.Codes(codes.OK)}) {
		_, client := serve(t, limits)
		for range 3 {
			var header metadata.MD
			_, err := client.EmptyCall(t.Context(), empty, grpc.Header(&header))
			require.NoError(t, err)
			for key := range header {
				assert.NotContains(t, key, "limit", name)
			}
		}
	}
}

func TestBlocked(t *testing.T) {
	for _, blocked := range []codes.Code{codes.OK, codes.PermissionDenied} {
		for name, limits := range servers(t, special(t, reservoir.Limit{}), grpclimit.Server{Blocked: blocked}) {
			t.Run(fmt.Sprint(blocked, "/", name), func(t *testing.T) {
				impl, client := serve(t, limits)
				var trailer metadata.MD
				_, err := client.EmptyCall(t.Context(), empty, grpc.Trailer(&trailer))
				stream, opened := client.FullDuplexCall(t.Context())
				require.NoError(t, opened)
				_, refused := stream.Recv()
				assert.Equal(t, status.Code(err), status.Code(refused))
				assert.Zero(t, first(t, trailer, "x-ratelimit")["limit"])
				assert.Zero(t, impl.calls.Load())
				if blocked == codes.OK {
					assert.Equal(t, codes.ResourceExhausted, status.Code(err))
					assert.Positive(t, retryDelay(t, err))
					return
				}
				assert.Equal(t, codes.PermissionDenied, status.Code(err))
				assert.Empty(t, status.Convert(err).Details())
			})
		}
	}
	_, client := serve(t, grpclimit.Server{Limiter: limiter(t, 1), Key: one, Blocked: codes.PermissionDenied})
	_, _ = client.EmptyCall(t.Context(), empty)
	_, err := client.EmptyCall(t.Context(), empty)
	assert.Equal(t, codes.ResourceExhausted, status.Code(err), "who has used up a limit is not blocked")
}

// In shadow calls pass, and what was not charged does not go back.
func TestShadowed(t *testing.T) {
	for mode, opts := range modes {
		l := limiter(t, 4, append(opts, reservoir.WithShadow())...)
		for name, limits := range servers(t, l, grpclimit.Server{Cost: costs(2)}) {
			t.Run(mode+"/"+name, func(t *testing.T) {
				_, client := serve(t, limits)
				for range 4 {
					var header, trailer metadata.MD
					_, err := client.EmptyCall(t.Context(), empty, grpc.Header(&header), grpc.Trailer(&trailer))
					require.NoError(t, err)
					assert.EqualValues(t, 4, first(t, header, "x-ratelimit")["limit"])
					assert.Empty(t, trailer)
				}
				stream, err := client.FullDuplexCall(t.Context())
				require.NoError(t, err)
				require.NoError(t, exchange(stream))
				require.NoError(t, stream.CloseSend())
				_, _ = stream.Recv()
			})
		}
		assert.Positive(t, l.Stats().Shadowed)
		assert.EqualValues(t, 4, l.Stats().Spent)
	}
}

// A limit of a group that costs nothing, or less, is not asked.
func TestCostsOfNothing(t *testing.T) {
	a, b := limiter(t, 10), limiter(t, 10)
	g, keys := reservoir.NewGroup(a, b), []grpclimit.KeyFunc{one, one}
	for _, n := range [][2]int64{{0, 0}, {-1, 0}, {0, 1}, {1, -1}, {math.MinInt64, 1}} {
		each := []grpclimit.CostFunc{costs(n[0]), costs(n[1])}
		_, client := serve(t, grpclimit.Server{Group: g, Keys: keys, Costs: each})
		_, err := client.EmptyCall(t.Context(), empty)
		assert.NoError(t, err, n)
		_, client = serveWith(t, nil, dial(grpclimit.Client{Group: g, Keys: keys, Costs: each})...)
		_, err = client.EmptyCall(t.Context(), empty)
		assert.NoError(t, err, n)
	}
	_, client := serveWith(t, nil, dial(grpclimit.Client{Group: g, Keys: keys})...)
	stream, err := client.FullDuplexCall(t.Context())
	require.NoError(t, err)
	require.NoError(t, exchange(stream))
	require.NoError(t, stream.CloseSend())
	_, _ = stream.Recv()
	assert.Equal(t, []int64{7, 5}, []int64{remaining(t, a, "one"), remaining(t, b, "one")}, "the stream")
}

func TestFaultsOfAGroup(t *testing.T) {
	l := limiter(t, 1)
	g, keys := reservoir.NewGroup(l, l), []grpclimit.KeyFunc{one, one}
	for name, s := range map[string]grpclimit.Server{
		"no keys": {Group: g}, "a key": {Group: g, Key: one}, "both": {Limiter: l, Group: g, Keys: keys},
		"one key": {Group: g, Keys: keys[:1]}, "three keys": {Group: g, Keys: append(keys, one)},
		"three costs":         {Group: g, Keys: keys, Costs: []grpclimit.CostFunc{costs(1), costs(1), costs(1)}},
		"a key of nil":        {Group: g, Keys: []grpclimit.KeyFunc{one, nil}},
		"a cost of nil":       {Group: g, Keys: keys, Costs: []grpclimit.CostFunc{costs(1), nil}},
		"Cost and Costs":      {Group: g, Keys: keys, Cost: costs(1), Costs: []grpclimit.CostFunc{costs(1), costs(1)}},
		"Keys of a limiter":   {Limiter: l, Key: one, Keys: keys},
		"Costs of a limiter":  {Limiter: l, Key: one, Costs: []grpclimit.CostFunc{costs(1)}},
		"a Limiter, no key":   {Limiter: l},
		"a Limiter with Keys": {Limiter: l, Keys: keys[:1]},
	} {
		assert.Panics(t, func() { s.Unary() }, name)
		assert.Panics(t, func() { s.Stream() }, name)
	}
	assert.Panics(t, func() { grpclimit.Client{Group: g}.Unary() })
	assert.NotPanics(t, func() { grpclimit.Client{Group: g, Keys: keys}.Unary() })
}
