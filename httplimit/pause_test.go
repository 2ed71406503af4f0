package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/httplimit"
)

// provider is another server, half of latency away. It refuses the first requests, with a status and headers.
type provider struct {
	latency time.Duration
	refuse  int // so many; -1 = all
	status  int
	headers []string // names and values in turns
	then    func()   // is called before each answer that refuses

	mu      sync.Mutex
	came    []time.Time
	texts   []string // of the requests' bodies
	answers []*body
}

func (p *provider) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(p.latency / 2)
	p.mu.Lock()
	text := ""
	if r.Body != nil {
		all, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		text = string(all)
	}
	b := &body{Reader: strings.NewReader(strings.Repeat("why", 1000))}
	p.came, p.texts, p.answers = append(p.came, time.Now()), append(p.texts, text), append(p.answers, b)
	answer := &http.Response{StatusCode: http.StatusOK, Body: b, Header: http.Header{}}
	refused := p.refuse < 0 || len(p.came) <= p.refuse
	if refused {
		answer.StatusCode = p.status
	}
	for i := 0; i < len(p.headers); i += 2 {
		answer.Header.Add(p.headers[i], p.headers[i+1])
	}
	p.mu.Unlock()
	if refused && p.then != nil {
		p.then()
	}
	time.Sleep(p.latency / 2)
	return answer, nil
}

// since is when requests came, from begin on, without the first ones.
func (p *provider) since(begin time.Time, without int) (all []time.Duration) {
	for _, at := range p.came[without:] {
		all = append(all, at.Sub(begin))
	}
	return all
}

// processes share a limit, and each has stock.
func processes(t *testing.T, n int, limit reservoir.Limit, opts ...reservoir.Option) (all []*reservoir.Limiter) {
	t.Helper()
	store := memstore.New()
	for range n {
		l, err := reservoir.New(store, limit, append(opts, reservoir.WithFetchTimeout(time.Minute))...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close(context.Background())) })
		all = append(all, l)
	}
	for _, l := range all {
		for range 20 {
			_, err := l.Allow(t.Context(), "host:example.com")
			require.NoError(t, err)
		}
	}
	return all
}

// status sends a request, and returns what was answered.
func status(t *testing.T, rt http.RoundTripper, opts ...func(*http.Request)) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com", nil)
	require.NoError(t, err)
	for _, o := range opts {
		o(r)
	}
	answer, err := rt.RoundTrip(r)
	require.NoError(t, err)
	_ = answer.Body.Close()
	return answer.StatusCode
}

// A refusal that names a time, see TestAsked, pauses the requests of all processes until then, and no longer. The caller gets it.
func TestTransportHolds(t *testing.T) {
	for name, test := range map[string]struct {
		status  int
		headers []string
		pause   time.Duration
	}{
		"Retry-After":            {429, []string{"Retry-After", "30"}, 30 * time.Second},
		"longer than the window": {429, []string{"Retry-After", "10000"}, 10000 * time.Second},
		"unavailable":            {503, []string{"Retry-After", "7"}, 7 * time.Second},
		"without":                {429, nil, 0},
		"hostile":                {429, []string{"Retry-After", "99999999999"}, 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := processes(t, 3, reservoir.PerHour(600))
				p := &provider{refuse: 1, status: test.status, headers: test.headers}
				begin := time.Now()
				assert.Equal(t, test.status, status(t, &httplimit.Transport{Limiter: all[0], Base: p}))
				assert.Zero(t, time.Since(begin), "who is refused hears of it at once")
				synctest.Wait() // until the others have heard
				var sending sync.WaitGroup
				for _, l := range all {
					for range 3 {
						sending.Go(func() { assert.Equal(t, 200, status(t, &httplimit.Transport{Limiter: l, Base: p})) })
					}
				}
				sending.Wait()
				came := p.since(begin, 1)
				assert.Len(t, came, 9)
				assert.GreaterOrEqual(t, slices.Min(came), test.pause)
				assert.LessOrEqual(t, slices.Max(came), test.pause+test.pause/1000+100*time.Millisecond)
				for _, l := range all {
					assert.Equal(t, test.pause > 0, l.Stats().Holds > 0)
				}
			})
		})
	}
}

// An answer that does not refuse says nothing, whatever its headers, and neither does that to a request without a price.
func TestTransportHoldsForRefusalsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := processes(t, 1, reservoir.PerHour(600))[0]
		headers := []string{"Retry-After", "30", "RateLimit", `"a";r=0;t=30`, "X-RateLimit-Reset", "30"}
		rt := &httplimit.Transport{Limiter: l, Base: &provider{headers: headers}}
		for range 10 {
			assert.Equal(t, 200, status(t, rt))
		}
		free := &httplimit.Transport{Limiter: l, Base: &provider{refuse: -1, status: 429, headers: headers}, Cost: costs(0), Retries: 9}
		assert.Equal(t, 429, status(t, free))
		assert.Equal(t, 200, status(t, rt))
		assert.Len(t, free.Base.(*provider).came, 1)
		assert.Zero(t, l.Stats().Holds)
	})
}

// MaxHold bounds what a header can do.
func TestTransportMaxHold(t *testing.T) {
	for bound, want := range map[time.Duration]time.Duration{time.Minute: time.Minute, -1: 0, 1 << 62: backend.MaxWindow} {
		synctest.Test(t, func(t *testing.T) {
			l := processes(t, 1, reservoir.PerHour(600))[0]
			rt := &httplimit.Transport{Limiter: l, Base: &provider{refuse: 1, status: 429, headers: []string{"Retry-After", "999999999"}}, MaxHold: bound}
			assert.Equal(t, 429, status(t, rt))
			for _, k := range l.Keys() {
				assert.InDelta(t, want, k.Hold, float64(want)/1000)
			}
		})
	}
}

// Each try is charged, and has the whole body. What refused is read and closed.
func TestTransportRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := processes(t, 1, reservoir.PerHour(600))[0]
		p := &provider{refuse: 2, status: 429, headers: []string{"Retry-After", "30"}}
		rt := &httplimit.Transport{Limiter: l, Base: p, Retries: 5}
		begin, before := time.Now(), spent(l)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://example.com", strings.NewReader("text"))
		require.NoError(t, err)
		answer, err := rt.RoundTrip(r)
		require.NoError(t, err)
		assert.Equal(t, 200, answer.StatusCode)
		assert.Equal(t, []string{"text", "text", "text"}, p.texts)
		assert.EqualValues(t, 3, spent(l)-before)
		for i, at := range p.since(begin, 0) {
			assert.InDelta(t, time.Duration(i)*30*time.Second, at, float64(time.Second), "try %d", i)
		}
		for i, b := range p.answers {
			rest, _ := io.ReadAll(b.Reader)
			assert.Equal(t, i < 2, b.closed, "answer %d", i)
			assert.Equal(t, i < 2, len(rest) == 0, "answer %d", i)
		}
	})
}

// The last answer comes back if there are no more tries, or if a request cannot be sent again.
func TestTransportGivesUp(t *testing.T) {
	without := func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("once")) }
	for name, test := range map[string]struct {
		retries int
		change  func(*http.Request)
		headers []string
		limits  reservoir.Option
		tries   int
	}{
		"no retries":   {0, func(*http.Request) {}, []string{"Retry-After", "1"}, nil, 1},
		"too many":     {2, func(*http.Request) {}, []string{"Retry-After", "1"}, nil, 3},
		"nothing said": {9, func(*http.Request) {}, nil, nil, 1},
		"no GetBody":   {9, without, []string{"Retry-After", "1"}, nil, 1},
		"empty body":   {2, func(r *http.Request) { r.Body = http.NoBody }, []string{"Retry-After", "1"}, nil, 3},
		"GetBody fails": {9, func(r *http.Request) {
			without(r)
			r.GetBody = func() (io.ReadCloser, error) { return nil, io.ErrClosedPipe }
		}, []string{"Retry-After", "1"}, nil, 1},
		"nobody to hold": {9, func(*http.Request) {}, []string{"Retry-After", "1"}, reservoir.WithLimits(func(string) reservoir.Limit { return reservoir.Unlimited() }), 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var opts []reservoir.Option
				if test.limits != nil {
					opts = append(opts, test.limits)
				}
				p := &provider{refuse: -1, status: 429, headers: test.headers}
				rt := &httplimit.Transport{Limiter: open(t, reservoir.PerHour(600), opts...), Base: p, Retries: test.retries}
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com", nil)
				require.NoError(t, err)
				test.change(r)
				answer, err := rt.RoundTrip(r)
				require.NoError(t, err)
				text, err := io.ReadAll(answer.Body)
				require.NoError(t, err)
				assert.Equal(t, 429, answer.StatusCode)
				assert.Len(t, text, 3000, "all of it")
				assert.Len(t, p.came, test.tries)
				last := p.answers[len(p.answers)-1]
				assert.False(t, last.closed)
			})
		})
	}
}

type broken struct{ http.RoundTripper }

func (broken) RoundTrip(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }

// The request's context bounds all tries together.
func TestTransportRetriesUntilTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &provider{refuse: -1, status: 429, headers: []string{"Retry-After", "60"}}
		rt := &httplimit.Transport{Limiter: open(t, reservoir.PerHour(600)), Base: p, Retries: 9}
		try := func(ctx context.Context) (time.Duration, error) {
			begin := time.Now()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://example.com", nil)
			require.NoError(t, err)
			_, err = rt.RoundTrip(r)
			return time.Since(begin), err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
		defer cancel()
		took, err := try(ctx)
		assert.ErrorIs(t, err, reservoir.ErrDeadline)
		assert.Zero(t, took, "at once: the pause is longer")
		assert.Len(t, p.came, 1)
		assert.True(t, p.answers[0].closed)

		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(90*time.Second, cancel)
		took, err = try(ctx)
		assert.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 90*time.Second, took)
		assert.Len(t, p.came, 2)

		rt.Base = broken{}
		_, err = try(t.Context())
		assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
	})
}

// The answer counts even if its request has ended.
func TestTransportHoldsAfterTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := processes(t, 2, reservoir.PerHour(600))
		ctx, cancel := context.WithCancel(t.Context())
		p := &provider{refuse: 1, status: 429, headers: []string{"Retry-After", "30"}, then: cancel}
		begin := time.Now()
		assert.Equal(t, 429, status(t, &httplimit.Transport{Limiter: all[0], Base: p}, func(r *http.Request) { *r = *r.WithContext(ctx) }))
		require.Error(t, ctx.Err())
		synctest.Wait()
		for _, l := range all {
			assert.Equal(t, 200, status(t, &httplimit.Transport{Limiter: l, Base: p}))
		}
		assert.GreaterOrEqual(t, slices.Min(p.since(begin, 1)), 30*time.Second)
	})
}

// While the store is away, the pause holds in this process, whatever the failure policy.
func TestTransportHoldsWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := reservoir.New(away{memstore.New()}, reservoir.PerHour(600), reservoir.WithFailOpen())
		require.NoError(t, err)
		defer func() {
			err := l.Close(t.Context()) // the store is still away
			_, is := errors.AsType[*reservoir.StoreError](err)
			assert.True(t, err == nil || is, "%v", err)
		}()
		p := &provider{refuse: 1, status: 429, headers: []string{"Retry-After", "30"}}
		rt := &httplimit.Transport{Limiter: l, Base: p}
		assert.Equal(t, 429, status(t, rt))
		begin := time.Now()
		for range 5 {
			assert.Equal(t, 200, status(t, rt))
		}
		came := p.since(begin, 1)
		assert.InDelta(t, 30*time.Second, slices.Min(came), float64(time.Second))
		assert.InDelta(t, 30*time.Second, slices.Max(came), float64(time.Second), "and then it admits again")
	})
}

// One Transport in another keeps two limits, such as requests and tokens. A refusal for want of tokens leaves the requests alone.
func TestTransportOfTwoLimits(t *testing.T) {
	for name, test := range map[string]struct {
		headers          []string
		requests, tokens time.Duration
	}{
		"both":     {[]string{"Retry-After", "30"}, 30 * time.Second, 30 * time.Second},
		"tokens":   {[]string{"X-RateLimit-Reset-Tokens", "20s", "X-RateLimit-Remaining-Tokens", "14", "X-RateLimit-Reset-Requests", "99s", "X-RateLimit-Remaining-Requests", "60"}, 0, 20 * time.Second},
		"requests": {[]string{"X-RateLimit-Reset-Tokens", "20s", "X-RateLimit-Remaining-Tokens", "9000", "X-RateLimit-Reset-Requests", "99s", "X-RateLimit-Remaining-Requests", "0"}, 99 * time.Second, 99 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				requests, tokens := open(t, reservoir.PerHour(600)), open(t, reservoir.PerHour(60_000))
				p := &provider{refuse: 1, status: 429, headers: test.headers}
				rt := &httplimit.Transport{Limiter: tokens, Cost: costs(400), Retries: 1, Base: &httplimit.Transport{Limiter: requests, Base: p}}
				begin := time.Now()
				assert.Equal(t, 200, status(t, rt))
				assert.InDelta(t, max(test.requests, test.tokens), p.since(begin, 1)[0], float64(time.Second))
				for l, n := range map[*reservoir.Limiter]struct {
					spent int64
					hold  time.Duration
				}{requests: {2, test.requests}, tokens: {800, test.tokens}} {
					assert.EqualValues(t, n.spent, spent(l))
					assert.Equal(t, n.hold > 0, l.Stats().Holds > 0)
				}
			})
		})
	}
}
