package httplimit

import (
	"context"
	"net/http"

	"github.com/go-reservoir/reservoir"
)

// New returns a middleware that asks limiter before each request. It panics if
// limiter is nil or an option makes no sense: both are faults of the program.
//
// The middleware costs a request two allocations at most, the second being its
// key where that has to be put together. Closing the limiter is the caller's job,
// after http.Server.Shutdown has returned: then no request is under way that
// would be refunded.
func New(limiter *reservoir.Limiter, opts ...Option) func(http.Handler) http.Handler {
	if limiter == nil {
		panic("httplimit: no limiter")
	}
	c := defaults()
	for _, o := range opts {
		o(&c)
	}
	if c.key == nil || c.keyless == nil || c.failed == nil {
		panic("httplimit: an option of nil that has to be asked")
	}
	m := &middleware{config: c, limiter: limiter, format: c.policy.compile()}
	if m.refused == nil {
		m.refused = refusal(m.format.name)
	}
	return func(next http.Handler) http.Handler { return &handler{m, next} }
}

// middleware is what all handlers of one New share. It is not written after it.
type middleware struct {
	config
	limiter *reservoir.Limiter
	format  format
}

type handler struct {
	*middleware
	next http.Handler
}

// ServeHTTP charges the request and serves it, or answers why not.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := h.tokens(r)
	if n == 0 {
		h.next.ServeHTTP(w, r)
		return
	}
	key := h.key(r)
	if key == "" {
		h.keyless.ServeHTTP(w, r)
		return
	}
	result, err := h.limiter.AllowN(r.Context(), key, n)
	if err != nil {
		h.failed(w, r, err, h.next)
		return
	}
	h.answer(&response{ResponseWriter: w, m: h.middleware, request: r, key: key, cost: n, result: result}, h.next)
}

// tokens is what a request costs; 0 if it is not limited.
func (m *middleware) tokens(r *http.Request) int64 {
	switch {
	case m.skip != nil && m.skip(r):
		return 0
	case m.cost != nil:
		return m.cost(r)
	default:
		return 1
	}
}

// answer serves a request that was decided.
func (m *middleware) answer(w *response, next http.Handler) {
	w.fields.set(w.Header(), &m.format, &w.result)
	if !w.result.Allowed {
		m.refused(w.ResponseWriter, w.request, w.result)
		return
	}
	defer func() { // also after a panic: the client was told
		if w.refunded {
			m.giveBack(w)
		}
	}()
	next.ServeHTTP(w, w.request)
	w.settle(http.StatusOK) // of a handler that has written nothing
}

// giveBack refunds a request whose client may have left already. An error
// means that the tokens stay charged, which is not worth another request's time.
func (m *middleware) giveBack(w *response) {
	_ = m.limiter.Refund(context.WithoutCancel(w.request.Context()), w.key, w.result)
}
