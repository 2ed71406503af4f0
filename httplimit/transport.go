package httplimit

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
)

// Transport is an http.RoundTripper that keeps outgoing requests within the limit of
// another server. Each request waits, in line with others of its key, until the limiter
// allows it, through as many resets as it takes. Processes that share a store keep the
// limit together.
//
// The request's context bounds the wait. If its deadline comes before the tokens, RoundTrip
// returns reservoir.ErrDeadline at once. http.Client.Timeout includes the wait. Redirects
// are requests of their own. If a request's context ends after its tokens came, it stays
// charged. If tokens come during a pause (see MaxPause), the request loses them and waits
// for others; otherwise the tokens of many windows would be spent at once after the pause.
//
// A Transport is safe for concurrent use if its fields no longer change.
type Transport struct {
	// Limiter is asked before each request. It must be set.
	Limiter *reservoir.Limiter

	// Key names the limit of a request; by default it is "host:" and the host, with the
	// port unless it is the scheme's default. A request without a key fails.
	Key KeyFunc

	// Cost is how many tokens a request needs; by default 1. A request that costs 0 needs
	// no tokens, but still waits for pauses (see MaxPause).
	Cost func(*http.Request) int64

	// Base sends the requests; http.DefaultTransport by default.
	Base http.RoundTripper

	// MaxPause is the longest time for which the requests of a key pause after a 429 or
	// 503 with Retry-After. By default it is 0, and the caller deals with the header.
	// The caller gets the response in both cases, because nothing is sent twice. A pause
	// may change the order of requests that are already in line.
	MaxPause time.Duration

	mu     sync.Mutex
	pauses map[string]time.Time // key → end of its pause; past ones are deleted when one is added
}

// RoundTrip waits, then sends r. It does not retry.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	key := t.key(r)
	if err := t.wait(r, key); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper closes it in any case
		}
		return nil, err
	}
	resp, err := t.base().RoundTrip(r)
	if err == nil {
		t.heed(key, resp)
	}
	return resp, err
}

// CloseIdleConnections closes the idle connections of Base.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// wait pauses before it takes tokens, because tokens of a window that ends during the pause
// would be wasted. If a pause began while it was in line, its tokens may be from a window
// long before the end of the pause, like those of other requests in line. It gives them
// back and starts over.
func (t *Transport) wait(r *http.Request, key string) error {
	if err := backend.ValidateKey(key); err != nil { // also if the request needs no tokens
		return err
	}
	n := int64(1)
	if t.Cost != nil {
		n = t.Cost(r)
	}
	for {
		if err := t.pause(r.Context(), key); err != nil || n == 0 {
			return err
		}
		paid, err := t.Limiter.WaitN(r.Context(), key, n)
		if err != nil || t.left(key) <= 0 {
			return err
		}
		_ = t.Limiter.Refund(r.Context(), key, paid) // if this fails, the tokens expire with their window
	}
}

// pause waits until the key may be used again.
func (t *Transport) pause(ctx context.Context, key string) error {
	for d := t.left(key); d > 0; d = t.left(key) {
		if end, ok := ctx.Deadline(); ok && time.Until(end) < d {
			return reservoir.ErrDeadline
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// left returns how long the key still pauses; less than 0 if it does not.
func (t *Transport) left(key string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.pauses[key])
}

// heed records the pause that a response asks for. The later of two ends counts.
func (t *Transport) heed(key string, resp *http.Response) {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return
	}
	now := time.Now()
	until := now.Add(min(retryAfter(resp.Header.Get(headerRetry), now), t.MaxPause))
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.pauses, func(_ string, end time.Time) bool { return !end.After(now) })
	if until.After(now) && until.After(t.pauses[key]) {
		if t.pauses == nil {
			t.pauses = make(map[string]time.Time)
		}
		t.pauses[key] = until
	}
}

// retryAfter reads the header's two forms, seconds and a date. It returns 0 for other text.
func retryAfter(s string, now time.Time) time.Duration {
	n, err := strconv.ParseUint(s, 10, 33)              // 272 years, which a Duration can hold
	if err == nil || errors.Is(err, strconv.ErrRange) { // out of range, n is the largest
		return time.Duration(n) * time.Second
	}
	if date, err := http.ParseTime(s); err == nil {
		return date.Sub(now)
	}
	return 0
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

func (t *Transport) key(r *http.Request) string {
	if t.Key != nil {
		return t.Key(r)
	}
	host := strings.ToLower(r.URL.Host)
	switch r.URL.Scheme {
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	return "host:" + host
}
