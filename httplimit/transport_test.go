package httplimit_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/httplimit"
)

// server answers requests without a network and notes when they came.
type server struct {
	mu    sync.Mutex
	begin time.Time
	came  []time.Duration
}

func newServer() *server { return &server{begin: time.Now()} }

func (s *server) RoundTrip(*http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.came = append(s.came, time.Since(s.begin))
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func send(t *testing.T, ctx context.Context, rt http.RoundTripper, url string) error {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := (&http.Client{Transport: rt}).Do(r)
	if err == nil {
		require.NoError(t, resp.Body.Close())
	}
	return err
}

func TestTransportWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		l := open(t, reservoir.PerMinute(2), reservoir.WithDirect())
		rt := &httplimit.Transport{Limiter: l, Base: s}
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() { assert.NoError(t, send(t, t.Context(), rt, "https://api.example.com/")) })
		}
		all.Wait()
		require.Len(t, s.came, 5)
		for i, at := range s.came {
			window := time.Duration(i/2) * time.Minute
			assert.GreaterOrEqual(t, at, window)
			assert.Less(t, at, window+10*time.Second)
		}
	})
}

func TestTransportKeysByHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		rt := &httplimit.Transport{Limiter: open(t, reservoir.PerHour(1)), Base: s}
		at := func(url string) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			return send(t, ctx, rt, url)
		}
		require.NoError(t, at("https://api.example.com/a"))
		for _, same := range []string{"https://api.example.com/b", "https://API.example.com:443/", "http://api.example.com:80"} {
			require.ErrorIs(t, at(same), reservoir.ErrDeadline, same)
		}
		for _, other := range []string{"https://example.com", "https://api.example.com:8443", "http://[2001:db8::1]:80/"} {
			require.NoError(t, at(other), other)
		}
		assert.Zero(t, time.Since(s.begin), "nobody waited for what was not to be had in time")
	})
}

func TestTransportKeyAndCost(t *testing.T) {
	l := open(t, reservoir.PerHour(10))
	rt := &httplimit.Transport{
		Limiter: l, Base: newServer(),
		Key:  func(r *http.Request) string { return r.URL.Query().Get("key") },
		Cost: func(r *http.Request) int64 { return int64(len(r.URL.Query().Get("cost"))) },
	}
	require.NoError(t, send(t, t.Context(), rt, "https://example.com/?key=k&cost=xxx"))
	require.NoError(t, send(t, t.Context(), rt, "https://example.com/?key=k"))
	assert.EqualValues(t, 3, spent(l))
	assert.ErrorIs(t, send(t, t.Context(), rt, "https://example.com/?cost=x"), reservoir.ErrKey)
	assert.ErrorIs(t, send(t, t.Context(), rt, "https://example.com/"), reservoir.ErrKey, "even if it costs nothing")
	assert.ErrorIs(t, send(t, t.Context(), rt, "https://example.com/?key=k&cost=xxxxxxxxxxx"), reservoir.ErrExceedsLimit)
}

// body notes that it was closed.
type body struct {
	io.Reader
	closed bool
}

func (b *body) Close() error { b.closed = true; return nil }

func TestTransportClosesTheBodyItDoesNotSend(t *testing.T) {
	l := open(t, reservoir.PerHour(10))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := &body{Reader: strings.NewReader("x")}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://example.com", b)
	require.NoError(t, err)
	_, err = (&httplimit.Transport{Limiter: l, Base: newServer()}).RoundTrip(r)
	assert.ErrorIs(t, err, context.Canceled)
	assert.True(t, b.closed)
	assert.Zero(t, spent(l))
}

type idle struct {
	http.RoundTripper
	closed bool
}

func (i *idle) CloseIdleConnections() { i.closed = true }

func TestTransportClosesIdleConnections(t *testing.T) {
	base := new(idle)
	(&http.Client{Transport: &httplimit.Transport{Base: base}}).CloseIdleConnections()
	assert.True(t, base.closed)
}
