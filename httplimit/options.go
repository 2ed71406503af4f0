package httplimit

import (
	"net/http"
	"slices"

	"github.com/go-reservoir/reservoir"
)

// Option changes a default of New.
type Option func(*config)

type config struct {
	keys     []KeyFunc // one for each limit
	costs    []func(*http.Request) int64
	policies []Policy
	refund   RefundFunc
	refused  func(http.ResponseWriter, *http.Request, reservoir.Result)
	failed   ErrorHandler
}

func defaults() config {
	return config{
		keys:   []KeyFunc{ByAddress()},
		refund: Status(http.StatusNotModified),
		failed: Unavailable,
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
// are 0, as for health checks, the request needs no key and is served without the limiter
// or its headers. A request that costs more than the limit can never be served;
// [Unavailable] answers it with 400.
func WithCost(cost ...func(*http.Request) int64) Option {
	cost = slices.Clone(cost)
	return func(c *config) { c.costs = cost }
}

// WithPolicy sets the limit's name for the headers; by default it is "default". For a Group,
// give one Policy for each limit. A limit whose name is that of an earlier one is called by
// that name and its place in the group, such as "default-2".
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
// default. With reservoir.WithDirect each refund causes a store call, for which nobody waits.
func WithRefund(f RefundFunc) Option { return func(c *config) { c.refund = f } }

// WithRefused sets the function that answers refused requests, in place of a 429 with a
// problem document. All headers, including Retry-After, are already set. A Result.Limit of
// 0 means that the key is blocked (reservoir.Block()): no waiting helps, and there are none of these headers.
func WithRefused(f func(http.ResponseWriter, *http.Request, reservoir.Result)) Option {
	return func(c *config) { c.refused = f }
}

// ErrorHandler answers a request if the limiter returned err instead of a decision. Without
// the limiter, next would have served the request.
type ErrorHandler func(w http.ResponseWriter, r *http.Request, err error, next http.Handler)

// WithErrorHandler sets the handler of requests without a decision; [Unavailable] by
// default.
func WithErrorHandler(h ErrorHandler) Option { return func(c *config) { c.failed = h } }
