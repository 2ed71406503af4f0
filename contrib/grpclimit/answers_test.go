package grpclimit_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/contrib/grpclimit"
	"github.com/go-reservoir/reservoir/httplimit"
)

// away is a store that answers nothing but an error.
type away struct {
	backend.Store
	err error
}

func (a away) Sync(context.Context, backend.Statement) (backend.Reply, error) {
	return backend.Reply{}, a.err
}

// HTTP and gRPC give the same answers about the same limiter, and show the same numbers. The
// errors of the store are shown to nobody.
func TestAnswersOverHTTPAndGRPC(t *testing.T) {
	limits := func(l reservoir.Limit) reservoir.Option {
		return reservoir.WithLimits(func(string) reservoir.Limit { return l })
	}
	lost, late := away{memstore.New(), errors.New("secret")}, away{memstore.New(), context.DeadlineExceeded}
	closed := limiter(t, 10)
	require.NoError(t, closed.Close(t.Context()))
	for name, test := range map[string]struct {
		limiter *reservoir.Limiter
		calls   int // before the one that counts
		cost    int64
		key     string
		http    int
		grpc    codes.Code
		numbers bool // there are headers, or metadata
	}{
		"admitted":          {limiter(t, 10), 1, 3, "k", 200, codes.OK, true},
		"free":              {limiter(t, 10), 0, 0, "", 200, codes.OK, false},
		"refused":           {limiter(t, 10), 3, 3, "k", 429, codes.ResourceExhausted, true},
		"blocked":           {limiter(t, 10, limits(reservoir.Block())), 0, 1, "k", 429, codes.ResourceExhausted, false},
		"no limit":          {limiter(t, 10, limits(reservoir.Limit{})), 0, 1, "k", 500, codes.Internal, false},
		"unlimited":         {limiter(t, 1, limits(reservoir.Unlimited())), 2, 1, "k", 200, codes.OK, false},
		"in shadow":         {limiter(t, 3, limits(reservoir.Limit{Tokens: 3, Window: time.Minute, Shadow: true})), 1, 3, "k", 200, codes.OK, true},
		"store away":        {over(t, lost, 10), 0, 1, "k", 503, codes.Unavailable, false},
		"store timed out":   {over(t, late, 10), 0, 1, "k", 503, codes.Unavailable, false},
		"fail open":         {over(t, lost, 10, reservoir.WithFailOpen()), 0, 1, "k", 200, codes.OK, true},
		"limiter closed":    {closed, 0, 1, "k", 503, codes.Unavailable, false},
		"no key":            {limiter(t, 10), 0, 1, "", 400, codes.InvalidArgument, false},
		"key too long":      {limiter(t, 10), 0, 1, strings.Repeat("k", backend.MaxKeyLen+1), 400, codes.InvalidArgument, false},
		"costs too much":    {limiter(t, 10), 0, 11, "k", 400, codes.InvalidArgument, false},
		"limit is nonsense": {limiter(t, 1, limits(reservoir.Limit{Tokens: -1})), 0, 1, "k", 500, codes.Internal, false},
	} {
		t.Run(name, func(t *testing.T) {
			for range test.calls {
				_, err := test.limiter.AllowN(t.Context(), test.key, test.cost)
				require.NoError(t, err)
			}
			reached := 0
			handler := httplimit.New(test.limiter, httplimit.WithKey(func(*http.Request) string { return test.key }),
				httplimit.WithCost(func(*http.Request) int64 { return test.cost }), httplimit.WithRefund(httplimit.Status(200)),
			)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached++ }))
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			assert.Equal(t, test.http, w.Code)
			assert.Equal(t, test.http == 503 || test.http == 429 && test.numbers, w.Header().Get("Retry-After") != "")
			assert.NotContains(t, w.Body.String(), "secret")

			impl, client := serve(t, grpclimit.Server{
				Limiter: test.limiter, Cost: costs(test.cost), Refund: grpclimit.Codes(codes.OK),
				Key: func(context.Context, grpclimit.Call) (string, error) { return test.key, nil },
			})
			var header, trailer metadata.MD
			_, err := client.EmptyCall(t.Context(), empty, grpc.Header(&header), grpc.Trailer(&trailer))
			assert.Equal(t, test.grpc, status.Code(err))
			assert.EqualValues(t, reached, impl.calls.Load())
			stream, opened := client.FullDuplexCall(t.Context())
			require.NoError(t, opened)
			if err != nil {
				_, refused := stream.Recv()
				assert.Equal(t, test.grpc, status.Code(refused))
				assert.NotContains(t, err.Error(), "secret")
				assert.Equal(t, test.grpc == codes.ResourceExhausted && test.numbers, len(status.Convert(err).Details()) > 0, "only a refusal says when to retry, and not if the key is blocked")
			}
			shown := metadata.Join(header, trailer)
			for _, name := range []string{"x-ratelimit-limit", "x-ratelimit-reset"} {
				assert.Equal(t, w.Header().Values(name), shown.Get(name))
				assert.Equal(t, test.numbers, len(shown.Get(name)) == 1, name)
			}
		})
	}
}
