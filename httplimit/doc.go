// Package httplimit puts a reservoir.Limiter or Group in front of an http.Handler, and a
// Limiter behind an http.Client. It needs nothing but the standard library.
//
//	limit := httplimit.New(limiter,
//		httplimit.WithKey(httplimit.First(httplimit.ByUser(user), httplimit.ByAddress())),
//		httplimit.WithPolicy(httplimit.Policy{Name: "core", Window: time.Hour}))
//	http.ListenAndServe(addr, limit(mux))
//
// What New returns has the form that net/http, chi and gorilla/mux call a
// middleware. Limits per key are the limiter's business: reservoir.WithLimits. NewGroup
// makes one of several limits that a request must pass together.
//
// # Who is limited
//
// A KeyFunc names the key that a request is charged to. ByUser, ByToken and
// ByHeader read who a client says it is, ByAddress and ByForwarded where it comes
// from, First takes the first of several that has an answer. Their keys begin
// with the kind ("user:", "addr:", ...), so that no client can use up the limit
// of another kind by choosing its name. Without WithKey it is ByAddress().
//
// A request without a key is answered with 400 and reaches no handler: whom to
// limit is not to be guessed, and letting it pass would be the way around the
// limit. Name another key for it by First, serve it by WithKeyless, or exempt it
// by WithSkip.
//
// # What the client is told
//
// Every response carries the numbers in two forms: those of GitHub, and the two
// structured fields of the IETF's draft (draft-ietf-httpapi-ratelimit-headers-10,
// syntax of RFC 9651):
//
//	X-RateLimit-Limit: 5000
//	X-RateLimit-Remaining: 4987
//	X-RateLimit-Used: 13
//	X-RateLimit-Reset: 1794744000
//	X-RateLimit-Resource: core
//	RateLimit-Policy: "core";q=5000;w=3600
//	RateLimit: "core";r=4987;t=3127
//
// Reset is the stored end of the window in Unix seconds, the same number in each
// response of a window from whichever process; t is the seconds until then by
// this machine's clock, or Policy.Window if that is less. Both are rounded up. Whoever is refused is told the same and
// Retry-After, in seconds, rounded up: who obeys it never comes early. There t is the
// same. All of it is made from the one Result that decided.
//
// Remaining is exact where the limiter has WithDirect, as of that decision. With
// batches it is what this process could still hand out: what the store had left
// when it was last heard, and the stock at hand. Other processes spend from the
// store too, and a batch on its way is in neither number, so Remaining may step down
// by more than one between responses, or up. It is 0 when a request for one token
// is refused, and the limit itself is exact either way.
//
// Of a Group they are the numbers of the limit that refused or, of those that allowed, of
// the one with the smallest part remaining. Who is unlimited gets none of these headers. A
// request that passes because of reservoir.WithShadow has no Retry-After.
//
// A refusal is 429 Too Many Requests with a problem document (RFC 9457), as
// application/problem+json or application/json, or a line of plain text, as the
// request's Accept would have it. WithBlockedStatus has another status for those whose limit
// is no tokens at all.
//
// # Charge first, refund later
//
// A request is charged before the handler runs, so that a crowd cannot pass
// together, and refunded if its response earns it: by default 304 Not Modified,
// so that clients who ask politely whether there is news may ask as often as they
// like. WithRefund takes any other rule. The response of a refunded request
// counts it as not charged. A handler that panics is charged.
//
// A handler that learns from its work what a request costs says so by Settle: WithCost is
// then what it is taken to cost ahead.
//
// # What wraps the ResponseWriter
//
// Handlers get a ResponseWriter that flushes, hijacks and sends files as the
// server's does, by type assertion and by http.ResponseController. Where the
// server's cannot flush, Flush does nothing; where it cannot hijack, Hijack says
// so. http.Pusher is reached by Unwrap. ResultOf returns the decision to the handler.
//
// # When the store is away
//
// By default the limiter has no answer then (reservoir.FailClosed), and the
// client gets 503 with Retry-After: 1. To serve on, prefer reservoir.WithFailure,
// which goes on counting, to WithErrorHandler(Pass), which does not.
//
// # Several limits in a row
//
// NewGroup charges several limits or none. Middlewares also nest, where their options
// differ: RateLimit and RateLimit-Policy list each policy, the X-RateLimit
// headers are those of the innermost that decided. What the inner one refuses,
// the outer one has charged; WithRefund(Status(304, 429)) on the outer one
// gives that back.
//
// # What operators see
//
// Debug is a page of the limiters' figures, and of the keys that are denied most.
//
// # Calls to others
//
// Transport is an http.RoundTripper that waits before each request until the
// limit of its host allows it.
package httplimit
