package httplimit

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
)

// Transport is an http.RoundTripper that keeps outgoing requests within the limit of
// another server. Each request waits, in line with others of its key, until the limiter
// allows it, through as many resets as it takes. Processes that share a store keep the
// limit together.
//
// If the server refuses nevertheless, by 429, or is unavailable for a time that it names, by 503
// with Retry-After, the Transport holds the key for as long as the answer says, by
// [reservoir.Limiter.Hold]: nobody sends until then, in any process, and nobody waits longer. It
// reads Retry-After, as seconds or as a date, which counts from the answer's own Date; of 429 also
// RateLimit of draft-ietf-httpapi-ratelimit-headers-11, X-RateLimit-Reset as seconds or as Unix
// time, and X-RateLimit-Reset-Requests and -Tokens as "1m2.5s". If the answer says nothing, there
// is no pause. The caller gets the answer, after a store call, unless Retries asks for another try.
//
// The request's context bounds the wait. If its deadline comes before the tokens, RoundTrip
// returns reservoir.ErrDeadline at once. http.Client.Timeout includes the wait. Redirects
// are requests of their own. If a request's context ends after its tokens came, it stays
// charged.
//
// A Transport is safe for concurrent use if its fields do not change.
type Transport struct {
	// Limiter is asked before each request. It must be set.
	Limiter *reservoir.Limiter

	// Key names the limit of a request; by default it is "host:" and the host, with the
	// port unless it is the scheme's default. A request without a key fails.
	Key KeyFunc

	// Cost is how many tokens a request needs; by default 1. A request that costs 0 does
	// not wait, and its answer holds nothing.
	Cost func(*http.Request) int64

	// MaxHold bounds how long one answer can hold a key, because a header may be hostile or
	// mistaken; a day by default, and at most 366 days. A longer pause counts as this one.
	// If it is negative, no answer holds anything.
	MaxHold time.Duration

	// Retries is how often a request is sent again after an answer that names a pause; by default
	// it is not. Each try waits in line and is charged. A request with a body is sent again only
	// if it has GetBody, as those of http.NewRequest have. The last answer goes to the caller, or
	// the error of the wait. If one Transport is the Base of another, only the outer one needs it.
	Retries int

	// Base sends the requests; http.DefaultTransport by default.
	Base http.RoundTripper
}

// RoundTrip waits, then sends r.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	key, n := t.key(r), int64(1)
	if t.Cost != nil {
		n = t.Cost(r)
	}
	for try := 0; ; try++ {
		if err := t.wait(r, key, n); err != nil {
			if r.Body != nil {
				_ = r.Body.Close() // a RoundTripper closes it in any case
			}
			return nil, err
		}
		answer, err := t.base().RoundTrip(r)
		if err != nil || !t.hold(r, key, n, answer) || try >= t.Retries {
			return answer, err
		}
		again, err := replay(r)
		if err != nil || again == nil {
			return answer, nil // the caller can read why
		}
		_, _ = io.CopyN(io.Discard, answer.Body, 4<<10) // so that the connection can be used again
		_ = answer.Body.Close()
		r = again
	}
}

// hold holds the key for as long as the answer to r, which cost n, asks, and reports whether another try would wait for that. A hold that
// does not reach the store holds in this process, and goes along with what that states later.
func (t *Transport) hold(r *http.Request, key string, n int64, answer *http.Response) bool {
	d := min(asked(answer, n, time.Now()), cmp.Or(t.MaxHold, 24*time.Hour), backend.MaxWindow)
	return d > 0 && n > 0 && !errors.Is(t.Limiter.Hold(r.Context(), key, d), reservoir.ErrLimit) // which has no store
}

// replay returns r with its body from the beginning, or nil if that is gone.
func replay(r *http.Request) (*http.Request, error) {
	again := r.Clone(r.Context())
	if r.Body == nil || r.Body == http.NoBody {
		return again, nil
	}
	if r.GetBody == nil {
		return nil, nil
	}
	body, err := r.GetBody()
	again.Body = body
	return again, err
}

// CloseIdleConnections closes the idle connections of Base.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (t *Transport) wait(r *http.Request, key string, n int64) error {
	if err := backend.ValidateKey(key); err != nil || n == 0 { // also if the request needs no tokens
		return err
	}
	_, err := t.Limiter.WaitN(r.Context(), key, n)
	return err
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
