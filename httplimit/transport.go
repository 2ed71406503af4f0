package httplimit

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir"
)

// Transport is an http.RoundTripper that keeps outgoing requests within somebody
// else's limit: each waits, in line with others of its key, until the limiter
// allows it, through as many resets as it takes. With a store that several
// processes share they keep the limit together.
//
// The request's context bounds the wait. If its deadline comes before the
// tokens, the error is reservoir.ErrDeadline, at once. http.Client.Timeout
// includes the wait. Redirects are requests of their own. A request whose
// context ends after its tokens came stays charged. Tokens that come to one in
// line during a pause (see MaxPause) are lost, and it waits for others: at the
// end of the pause those of many windows would be spent at once.
//
// A Transport is safe for concurrent use if its fields are not changed any more.
type Transport struct {
	// Limiter is asked before each request. It must be set.
	Limiter *reservoir.Limiter

	// Key names the limit of a request; by default "host:" and the host, with
	// the port unless it is the scheme's own. No key is an error.
	Key KeyFunc

	// Cost is how many tokens a request needs; by default 1. One that costs 0
	// waits for no tokens, but for pauses (see MaxPause) as all do.
	Cost func(*http.Request) int64

	// Base sends the requests; http.DefaultTransport by default.
	Base http.RoundTripper

	// MaxPause is how long at most a key is left alone when a 429 or 503
	// with Retry-After says so. By default, 0, that header is left to the
	// caller. The response is handed on either way: nothing is sent twice. Who
	// is in line when the pause begins may be served in another order after it.
	MaxPause time.Duration

	mu     sync.Mutex
	pauses map[string]time.Time // key → until when; the past ones go when one is added
}

// RoundTrip waits, then sends r.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	key := t.key(r)
	if err := t.wait(r, key); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper closes it in any case
		}
		return nil, err
	}
	resp, err := t.base().RoundTrip(r)
	if err == nil && t.MaxPause > 0 {
		t.heed(key, resp)
	}
	return resp, err
}

// CloseIdleConnections is what http.Client.CloseIdleConnections calls.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// wait pauses before the tokens are taken, so that those of a window that ends
// meanwhile are not wasted. If a pause came while it was in line, its tokens may
// be of such a window, like those of everybody before it: they go back, and it
// begins again.
func (t *Transport) wait(r *http.Request, key string) error {
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
		_ = t.Limiter.Refund(r.Context(), key, paid) // what cannot go back expires with its window
	}
}

// pause waits until the key may be used again.
func (t *Transport) pause(ctx context.Context, key string) error {
	for {
		d := t.left(key)
		if d <= 0 {
			return nil
		}
		if end, ok := ctx.Deadline(); ok && time.Until(end) < d {
			return reservoir.ErrDeadline
		}
		timer := time.NewTimer(d)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

func (t *Transport) left(key string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	until, ok := t.pauses[key]
	if !ok {
		return 0
	}
	return time.Until(until)
}

// heed notes the pause that a response asks for. The later of two counts.
func (t *Transport) heed(key string, resp *http.Response) {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return
	}
	now := time.Now()
	until := now.Add(min(retryAfter(resp.Header.Get(headerRetry), now), t.MaxPause))
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, u := range t.pauses {
		if !u.After(now) {
			delete(t.pauses, k)
		}
	}
	if until.After(now) && until.After(t.pauses[key]) {
		if t.pauses == nil {
			t.pauses = make(map[string]time.Time)
		}
		t.pauses[key] = until
	}
}

// retryAfter reads the header's two forms, seconds and a date; 0 if it is
// neither. More seconds than a Duration holds are as many as it does.
func retryAfter(s string, now time.Time) time.Duration {
	const most = uint64(math.MaxInt64 / time.Second)
	n, err := strconv.ParseUint(s, 10, 64)
	if err == nil || errors.Is(err, strconv.ErrRange) { // n is the largest then
		return time.Duration(min(n, most)) * time.Second
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
