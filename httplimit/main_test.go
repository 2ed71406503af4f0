package httplimit_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open returns a limiter on a store of its own, whose calls may wait for a busy machine.
func open(t testing.TB, limit reservoir.Limit, opts ...reservoir.Option) *reservoir.Limiter {
	t.Helper()
	opts = append([]reservoir.Option{reservoir.WithFetchTimeout(time.Minute)}, opts...)
	l, err := reservoir.New(memstore.New(), limit, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close(context.Background())) })
	return l
}

// spent is what requests have used and not been refunded, whether the store has heard or
// not.
func spent(l *reservoir.Limiter) int64 {
	s := l.Stats()
	return s.Spent - s.Refunded + s.Debt
}

// get sends a request to h, with the headers given in pairs.
func get(h http.Handler, headers ...string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// answers is a handler that answers with a status.
func answers(status int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
}

// away is a store that cannot be reached.
type away struct{ backend.Store }

func (away) Sync(context.Context, backend.Statement) (backend.Reply, error) {
	return backend.Reply{}, &backend.Error{Op: "sync", Class: backend.Unavailable, Err: errors.New("away")}
}
