package httplimit

import (
	"net/http"
	"strings"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
)

// Transport is an http.RoundTripper that keeps outgoing requests within the limit of
// another server. Each request waits, in line with others of its key, until the limiter
// allows it, through as many resets as it takes. Processes that share a store keep the
// limit together. It returns the server's own 429 and 503 like other responses, and the
// caller deals with their Retry-After.
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
	// not wait.
	Cost func(*http.Request) int64

	// Base sends the requests; http.DefaultTransport by default.
	Base http.RoundTripper
}

// RoundTrip waits, then sends r. It does not retry.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.wait(r, t.key(r)); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper closes it in any case
		}
		return nil, err
	}
	return t.base().RoundTrip(r)
}

// CloseIdleConnections closes the idle connections of Base.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (t *Transport) wait(r *http.Request, key string) error {
	if err := backend.ValidateKey(key); err != nil { // also if the request needs no tokens
		return err
	}
	n := int64(1)
	if t.Cost != nil {
		n = t.Cost(r)
	}
	if n == 0 {
		return nil
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
