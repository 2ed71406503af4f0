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
	policies []Policy
	refund   RefundFunc
	keyless  http.Handler
	refused  func(http.ResponseWriter, *http.Request, reservoir.Result)
	blocked  body // none if its status is 0
	failed   ErrorHandler
}

func defaults() config {
	return config{
		keys:    []KeyFunc{ByAddress()},
		refund:  Status(http.StatusNotModified),
		keyless: noKey,
		failed:  Unavailable,
	}
}

// WithKey sets the key that a request is charged to; ByAddress() by default. A Group needs
// one KeyFunc for each limit; if one of them returns "", the request has no key.
func WithKey(k ...KeyFunc) Option {
	k = slices.Clone(k)
	return func(c *config) { c.keys = k }
}

// WithCost sets how many tokens a request costs; 1 by default. For a Group, give one cost
// for all limits, or one for each; a limit where the cost is 0 is not asked. If all costs
// are 0, the request is served without the limiter or its headers. A request that costs
// more than the limit can never be served; [Unavailable] answers it with 400.
func WithCost(cost ...func(*http.Request) int64) Option {
	cost = slices.Clone(cost)
	return func(c *config) { c.costs = cost }
}

// WithSkip exempts the requests for which skip returns true, such as health checks.
// By default no request is exempt.
func WithSkip(skip func(*http.Request) bool) Option { return func(c *config) { c.skip = skip } }

// WithPolicy sets the limit's name and window for the headers; by default the name is
// "default" and the window is left out. For a Group, give one Policy for all limits, or one
// for each.
func WithPolicy(p ...Policy) Option {
	p = slices.Clone(p)
	return func(c *config) { c.policies = p }
}

// RefundFunc reports whether a response gives its request's tokens back. It is called
// once: when the final status is known and before headers are sent, or after the handler
// if that has written nothing. The status is never 1xx, except for 101.
type RefundFunc func(r *http.Request, status int, header http.Header) bool

// Status returns a RefundFunc that refunds responses with one of codes. Status() refunds
// none.
func Status(codes ...int) RefundFunc {
	codes = slices.Clone(codes)
	return func(_ *http.Request, status int, _ http.Header) bool { return slices.Contains(codes, status) }
}

// WithRefund sets which responses are refunded; Status(http.StatusNotModified) by
// default. With reservoir.WithDirect each refund is a store call, for which the response
// waits at its end.
func WithRefund(f RefundFunc) Option { return func(c *config) { c.refund = f } }

// WithKeyless sets the handler of requests that have no key. The default answers with
// 400: see the package comment.
func WithKeyless(h http.Handler) Option { return func(c *config) { c.keyless = h } }

// WithRefused sets the function that answers refused requests, in place of a 429 with a
// problem document. All headers, including Retry-After, are already set.
func WithRefused(f func(http.ResponseWriter, *http.Request, reservoir.Result)) Option {
	return func(c *config) { c.refused = f }
}

// WithBlockedStatus sets the status for requests whose limit has no tokens at all
// (reservoir.Limit{}), such as 403, and leaves out their Retry-After. By default they get
// a 429 like other refusals. With [WithRefused], whose function can check for a
// Result.Limit of 0, it only leaves out Retry-After. It panics unless status is 400 to
// 599.
func WithBlockedStatus(status int) Option {
	if status < 400 || status > 599 {
		panic(fmt.Sprintf("httplimit: status %d is no error", status))
	}
	b := problem{blank, http.StatusText(status), status, "The limit allows no requests.", nil}.body()
	return func(c *config) { c.blocked = b }
}

// ErrorHandler answers a request if the limiter returned err instead of a decision. Without
// the limiter, next would have served the request.
type ErrorHandler func(w http.ResponseWriter, r *http.Request, err error, next http.Handler)

// WithErrorHandler sets the handler of requests without a decision; [Unavailable] by
// default.
func WithErrorHandler(h ErrorHandler) Option { return func(c *config) { c.failed = h } }
