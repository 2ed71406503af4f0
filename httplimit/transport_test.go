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
	mu      sync.Mutex
	begin   time.Time
	came    []time.Duration
	answers []http.Response // the last one for ever
}

func newServer(answers ...http.Response) *server { return &server{begin: time.Now(), answers: answers} }

func (s *server) RoundTrip(*http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.came = append(s.came, time.Since(s.begin))
	resp := http.Response{StatusCode: http.StatusOK}
	if len(s.answers) > 0 {
		resp, s.answers = s.answers[0], s.answers[1:]
	}
	resp.Body = http.NoBody
	return &resp, nil
}

// busy is a response that asks for a pause.
func busy(status int, after string) http.Response {
	return http.Response{StatusCode: status, Header: http.Header{"Retry-After": {after}}}
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

func TestTransportPauses(t *testing.T) {
	for name, test := range map[string]struct {
		answer http.Response
		most   time.Duration
		want   time.Duration
	}{
		"seconds":              {busy(429, "30"), time.Hour, 30 * time.Second},
		"a date":               {busy(503, "Sat, 01 Jan 2000 00:00:40 GMT"), time.Hour, 40 * time.Second},
		"longer than wanted":   {busy(429, "999999999"), time.Minute, time.Minute},
		"not wanted":           {busy(429, "30"), 0, 0},
		"another status":       {busy(200, "30"), time.Hour, 0},
		"no sense":             {busy(429, "soon"), time.Hour, 0},
		"negative":             {busy(429, "-5"), time.Hour, 0},
		"a date in the past":   {busy(429, "Fri, 31 Dec 1999 23:00:00 GMT"), time.Hour, 0},
		"2^31 seconds":         {busy(429, "2147483648"), time.Minute, time.Minute},
		"negative if wrapped":  {busy(429, "9223372037"), time.Minute, time.Minute},
		"short if wrapped":     {busy(429, "18446744074"), time.Minute, time.Minute},
		"too large for a time": {busy(429, "99999999999999999999"), time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(test.answer)
				rt := &httplimit.Transport{Limiter: open(t, reservoir.PerHour(100)), Base: s, MaxPause: test.most}
				for _, url := range []string{"https://a.example", "https://b.example", "https://a.example"} {
					require.NoError(t, send(t, t.Context(), rt, url))
				}
				assert.Equal(t, []time.Duration{0, 0, test.want}, s.came, "others go on")
			})
		})
	}
}

func TestTransportPauseIsBoundedByTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(busy(429, "30"), busy(429, "20"))
		l := open(t, reservoir.PerHour(100))
		rt := &httplimit.Transport{Limiter: l, Base: s, MaxPause: time.Hour}
		require.NoError(t, send(t, t.Context(), rt, "https://a.example"))

		ctx, cancel := context.WithTimeout(t.Context(), 29*time.Second)
		defer cancel()
		require.ErrorIs(t, send(t, ctx, rt, "https://a.example"), reservoir.ErrDeadline)
		assert.Zero(t, time.Since(s.begin), "at once")

		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		require.ErrorIs(t, send(t, ctx, rt, "https://a.example"), context.Canceled)
		assert.Equal(t, time.Second, time.Since(s.begin))
		assert.EqualValues(t, 1, spent(l), "those who left were not charged")

		for range 2 { // the second pause comes later than the first ends
			require.NoError(t, send(t, t.Context(), rt, "https://a.example"))
		}
		assert.Equal(t, []time.Duration{0, 30 * time.Second, 50 * time.Second}, s.came)
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A request that is in line when a pause is asked for keeps the pause, too. The token
// that it gets meanwhile goes back, and serves it when the pause ends.
func TestTransportPauseOfThoseInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(busy(429, "90"))
		slow := roundTrip(func(r *http.Request) (*http.Response, error) {
			defer time.Sleep(10 * time.Second)
			return s.RoundTrip(r)
		})
		rt := &httplimit.Transport{Limiter: open(t, reservoir.PerMinute(1), reservoir.WithDirect()), Base: slow, MaxPause: time.Hour}
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() { assert.NoError(t, send(t, t.Context(), rt, "https://a.example")) })
		}
		all.Wait()
		require.Len(t, s.came, 2)
		assert.GreaterOrEqual(t, s.came[1], 100*time.Second, "not before the pause ends")
		assert.Less(t, s.came[1], 110*time.Second)
		assert.EqualValues(t, 2, spent(rt.Limiter))
	})
}

// Those in line when a pause begins do not come all at once when it ends, nor
// when another does that the first of them meet.
func TestTransportPauseEndsWithinTheLimit(t *testing.T) {
	const limit, window, requests = 5, 200 * time.Millisecond, 60
	for mode, opts := range map[string][]reservoir.Option{"batched": nil, "direct": {reservoir.WithDirect()}} {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ok := http.Response{StatusCode: http.StatusOK}
				s := newServer(busy(429, "2"), ok, ok, ok, ok, busy(429, "3"))
				slow := roundTrip(func(r *http.Request) (*http.Response, error) {
					defer time.Sleep(30 * time.Millisecond)
					return s.RoundTrip(r)
				})
				l := open(t, reservoir.Limit{Tokens: limit, Window: window}, opts...)
				rt := &httplimit.Transport{Limiter: l, Base: slow, MaxPause: time.Minute}
				var all sync.WaitGroup
				for range requests {
					all.Go(func() { assert.NoError(t, send(t, t.Context(), rt, "https://a.example")) })
				}
				all.Wait()
				require.Len(t, s.came, requests)
				assert.GreaterOrEqual(t, s.came[limit], 2030*time.Millisecond, "the pause is kept")
				assert.GreaterOrEqual(t, s.came[2*limit]-s.came[limit], 3030*time.Millisecond, "the second, too")
				for i := 2 * limit; i < requests; i++ { // of two windows, as around a reset
					assert.GreaterOrEqual(t, s.came[i]-s.came[i-2*limit], window, "request %d", i)
				}
			})
		})
	}
}

// A deadline that a pause leaves no time for is known to be missed when the pause is
// asked for.
func TestTransportPauseAndLineAreBoundedByTheContext(t *testing.T) {
	for patience, want := range map[time.Duration]error{95 * time.Second: reservoir.ErrDeadline, 105 * time.Second: nil} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(busy(429, "90"))
			slow := roundTrip(func(r *http.Request) (*http.Response, error) {
				defer time.Sleep(10 * time.Second)
				return s.RoundTrip(r)
			})
			rt := &httplimit.Transport{Limiter: open(t, reservoir.PerMinute(1)), Base: slow, MaxPause: time.Hour}
			var first sync.WaitGroup
			first.Go(func() { assert.NoError(t, send(t, t.Context(), rt, "https://a.example")) })
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			require.ErrorIs(t, send(t, ctx, rt, "https://a.example"), want)
			if want != nil {
				assert.InDelta(t, 60*time.Second, time.Since(s.begin), float64(5*time.Second), "the pause lasts until 100 s")
			}
			first.Wait()
		})
	}
}

type idle struct {
	http.RoundTripper
	closed int
}

func (i *idle) CloseIdleConnections() { i.closed++ }

func TestTransportClosesIdleConnections(t *testing.T) {
	base := new(idle)
	client := http.Client{Transport: &httplimit.Transport{Base: base}}
	client.CloseIdleConnections()
	assert.Equal(t, 1, base.closed)
	(&httplimit.Transport{Base: newServer()}).CloseIdleConnections()
	(&httplimit.Transport{}).CloseIdleConnections()
}
