// Package httplimit puts a [reservoir.Limiter] or [reservoir.Group] in front of an
// http.Handler, or a Limiter behind an http.Client. It needs no other module.
//
//	limit := httplimit.New(limiter,
//		httplimit.WithKey(httplimit.First(httplimit.ByUser(user), httplimit.ByAddress())),
//		httplimit.WithPolicy(httplimit.Policy{Name: "core"}))
//	http.ListenAndServe(addr, limit(mux))
//
// [New] returns a function that net/http, chi and gorilla/mux call a middleware.
// [reservoir.WithLimits] sets limits per key. [NewGroup] makes a middleware for several
// limits that a request must pass together. [Transport] makes each outgoing request wait
// until the limit of its host allows it.
//
// # Keys
//
// A [KeyFunc] names the key that a request is charged to. [ByUser] and [ByHeader] read the
// client's identity, [ByAddress] its address, and [First] uses the first of several that
// returns a key. Their keys begin with the kind ("user:", "addr:", ...), so that no client
// can use up a limit of another kind by choosing its name.
//
// A request without a key is answered with 400 and reaches no handler, because any way to
// let it pass would be a way around the limit. To give it another key, use First. To serve
// it without a limit, give it a cost of 0: see [WithCost].
//
// # Headers
//
// Every response of a handler carries the state of the limit in two forms: GitHub's
// headers, and the two structured fields of the IETF's draft
// (draft-ietf-httpapi-ratelimit-headers-11, syntax of RFC 9651):
//
//	X-RateLimit-Limit: 5000
//	X-RateLimit-Remaining: 4987
//	X-RateLimit-Used: 13
//	X-RateLimit-Reset: 1794744000
//	X-RateLimit-Resource: core
//	RateLimit-Policy: "core";q=5000;w=3600
//	RateLimit: "core";r=4987;t=3127
//
// Reset is the stored end of the window in Unix seconds, the same number in every response
// of a window from every process. The parameter w is the length of the window; it is left out
// unless that is in whole seconds. The parameter t, the draft's effective window, is the number
// of seconds until Reset by this machine's clock, at most w: within them a client can use no
// more than r tokens. A refusal also has Retry-After, in seconds, with the same value as t. All
// three are rounded up. All headers come from the one Result that decided.
//
// If the limit is [reservoir.Limit.Rolling], Reset is when all of it is free again at the
// latest, up to 1.55 windows away, and some of it is free within t. Retry-After is when enough of
// it is.
//
// The draft's qu and pk are not sent: a token need not be a request, and a key may name its
// user.
//
// With WithDirect, Remaining is what the store had left for this request. With batches it is what this process
// could still hand out: its own stock, and what the store had left in its last reply.
// Other processes spend from the store too, and neither number includes a batch in flight,
// so Remaining may go up, or down by more than one, between responses. It is 0 when a
// request for one token is refused. The limit itself is exact in both cases.
//
// For a Group, RateLimit-Policy lists all limits, and RateLimit what remains of each. The
// X-RateLimit headers are those of its first limit that is charged, also if less remains of
// another one, so that a client can follow them. If a limit refuses, they are its, as is
// Retry-After.
//
//	X-RateLimit-Limit: 100
//	X-RateLimit-Remaining: 70
//	X-RateLimit-Used: 30
//	X-RateLimit-Reset: 1794744000
//	X-RateLimit-Resource: user
//	RateLimit-Policy: "user";q=100;w=3600, "org";q=3000;w=86400
//	RateLimit: "user";r=70;t=3127, "org";r=2400;t=24727
//
// A limit that was not asked is in RateLimit if this process knows how much of it remains.
// Unlimited and blocked keys are in none of these headers. A request that passes because its limit
// is in shadow has no Retry-After.
//
// The headers are set when the handler sends its status. They replace GitHub's headers that
// the handler has set, or that a reverse proxy has copied from the server behind it.
//
// A refusal is 429 Too Many Requests with a problem document (RFC 9457), or what
// [WithRefused] writes; without Retry-After if the key is blocked ([reservoir.Block]). In an outage the limiter makes no decision by default, and
// [Unavailable] answers with 503.
//
// # Charge first, refund later
//
// A request is charged before the handler runs, so that a crowd cannot pass together. It
// is refunded if [WithRefund] says so for its response. By default a 304 Not Modified is
// refunded, so clients may check for changes as often as they like. The headers of a
// refunded response do not count its charge. If a handler panics, the charge stays.
//
// If a handler learns a request's cost from its work, it calls [Settle]; WithCost is then
// the estimate to charge in advance.
//
// # The ResponseWriter
//
// Handlers get a ResponseWriter that flushes, hijacks and sends files as the server's
// does, by type assertion and by http.ResponseController. If the server's ResponseWriter
// cannot flush, Flush does nothing; if it cannot hijack, Hijack returns an error.
// [ResultOf] returns the decision to the handler.
//
// # Several limits in a row
//
// NewGroup is one middleware for several limits. If their options differ, nest middlewares.
// RateLimit and RateLimit-Policy then list every policy, and the X-RateLimit headers are
// those of the innermost limit that decided. Writers between them need an Unwrap method. If
// the inner limit refuses a request, the outer one has already charged it;
// WithRefund(Status(304, 429)) on the outer one gives that back.
package httplimit
