package httplimit

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/go-reservoir/reservoir"
)

// Option changes a default of New.
type Option func(*config)

type config struct {
	keys     []KeyFunc // one for each limit
	costs    []func(*http.Request) int64
	skip     func(*http.Request) bool
	policies []Policy // at least one
	refund   RefundFunc
	keyless  http.Handler
	refused  func(http.ResponseWriter, *http.Request, reservoir.Result)
	blocked  body // none if its status is 0
	failed   ErrorHandler
}

func defaults() config {
	return config{
		keys:     []KeyFunc{ByAddress()},
		policies: make([]Policy, 1),
		refund:   Status(http.StatusNotModified),
		keyless:  http.HandlerFunc(nobody),
		failed:   Unavailable,
	}
}

// WithKey sets whom a request is charged to; ByAddress() by default. Of a Group there is
// one for each limit; a request that lacks one of them has no key.
func WithKey(k ...KeyFunc) Option {
	k = slices.Clone(k)
	return func(c *config) { c.keys = k }
}

// WithCost sets how many tokens a request costs; 1 by default. Of a Group it is the cost at
// every limit, or there is one for each; a limit where it is 0 is not asked. A request that
// costs 0 everywhere is served without the limiter or its headers. One that costs more
// than the limit can never be served; it gets 400 from Unavailable.
func WithCost(cost ...func(*http.Request) int64) Option {
	cost = slices.Clone(cost)
	return func(c *config) { c.costs = cost }
}

// WithSkip exempts the requests for which skip is true, such as health checks.
// By default there are none.
func WithSkip(skip func(*http.Request) bool) Option { return func(c *config) { c.skip = skip } }

// WithPolicy sets how the limit is called in headers, and the length of its
// window; by default "default", and not told. Of a Group it is that of every limit, or
// there is one for each.
func WithPolicy(p ...Policy) Option {
	p = append(slices.Clone(p), make([]Policy, max(1-len(p), 0))...)
	return func(c *config) { c.policies = p }
}

// RefundFunc reports whether a response gives its request's tokens back. It is
// asked once, when the final status is known and before headers are sent, or
// after the handler if that has written nothing; status is never 1xx but for 101.
type RefundFunc func(r *http.Request, status int, header http.Header) bool

// Status refunds responses of these statuses. With none it refunds nothing.
func Status(codes ...int) RefundFunc {
	codes = slices.Clone(codes)
	return func(_ *http.Request, status int, _ http.Header) bool { return slices.Contains(codes, status) }
}

// WithRefund sets which responses are refunded; Status(http.StatusNotModified) by
// default. With reservoir.WithDirect each refund is a store call, which the end
// of the response waits for.
func WithRefund(f RefundFunc) Option { return func(c *config) { c.refund = f } }

// WithKeyless sets what serves requests that have no key. By default that is a
// 400: see the package comment.
func WithKeyless(h http.Handler) Option { return func(c *config) { c.keyless = h } }

// WithRefused sets what is written to a request that was refused, in place of a
// 429 with a problem document. All headers, Retry-After too, are set before.
func WithRefused(f func(http.ResponseWriter, *http.Request, reservoir.Result)) Option {
	return func(c *config) { c.refused = f }
}

// WithBlockedStatus sets the status for those whose limit has no tokens at all
// (reservoir.Limit{}), such as 403, which then has no Retry-After; by default they are
// refused with 429 as others are. WithRefused decides by itself: Result.Limit is 0. It
// panics unless the status is that of an error, 400 to 599.
func WithBlockedStatus(status int) Option {
	if status < 400 || status > 599 {
		panic(fmt.Sprintf("httplimit: a refusal with status %d", status))
	}
	b := problem{blank, http.StatusText(status), status, "The limit is no requests at all.", nil}.body()
	return func(c *config) { c.blocked = b }
}

// ErrorHandler answers a request that the limiter made no decision about; next is
// what would have served it.
type ErrorHandler func(w http.ResponseWriter, r *http.Request, err error, next http.Handler)

// WithErrorHandler sets what happens to requests without a decision: Unavailable
// by default.
func WithErrorHandler(h ErrorHandler) Option { return func(c *config) { c.failed = h } }
