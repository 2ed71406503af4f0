package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/go-reservoir/reservoir"
)

// New returns a middleware that asks limiter before each request. It panics if
// limiter is nil or an option is invalid, because both are faults of the program.
//
// The middleware costs a request at most two allocations. The second one is for a key
// that has to be put together. The caller closes the limiter, after http.Server.Shutdown
// has returned, when no request can still be refunded.
func New(limiter *reservoir.Limiter, opts ...Option) func(http.Handler) http.Handler {
	if limiter == nil {
		panic("httplimit: no limiter")
	}
	return build(single{limiter}, opts)
}

// NewGroup is like New, for several limits that a request must pass together: it is charged
// to all of them or to none. WithKey must give a key for each limiter, in the group's order.
// The headers have the numbers of the limit that refused or, if all allowed, of the limit
// with the smallest part remaining. A request costs one more allocation than with New, for
// up to four limits. NewGroup panics like New.
func NewGroup(g *reservoir.Group, opts ...Option) func(http.Handler) http.Handler {
	if g == nil {
		panic("httplimit: no group")
	}
	return build(group{g}, opts)
}

func build(l limits, opts []Option) func(http.Handler) http.Handler {
	c := defaults()
	for _, o := range opts {
		o(&c)
	}
	if err := c.validate(); err != nil {
		panic(err)
	}
	if err := l.fits(len(c.keys)); err != nil {
		panic(err)
	}
	m := &middleware{config: c, limits: l}
	for _, p := range c.policies {
		f := p.compile()
		m.told = append(m.told, told{f, refusal(f.name)})
	}
	return func(next http.Handler) http.Handler { return &handler{m, next} }
}

// middleware is shared by all handlers of one New, which does not change it afterwards.
type middleware struct {
	config
	limits limits
	told   []told
}

// told has the constant parts of the answers about a limit.
type told struct {
	format
	refusal body
}

type handler struct {
	*middleware
	next http.Handler
}

// ServeHTTP charges the request and serves it, or answers with the reason why not.
func (h *handler) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if h.skip != nil && h.skip(r) {
		h.next.ServeHTTP(rw, r)
		return
	}
	w := &response{ResponseWriter: rw, m: h.middleware, request: r}
	h.limits.room(w, len(h.keys))
	if !h.price(w) {
		h.next.ServeHTTP(rw, r)
		return
	}
	if !h.name(w) {
		h.keyless.ServeHTTP(rw, r)
		return
	}
	if err := h.limits.ask(w); err != nil {
		h.failed(rw, r, err, h.next)
		return
	}
	h.answer(w, h.next)
}

// price sets the costs of a request, and reports whether any is not zero.
func (m *middleware) price(w *response) (some bool) {
	n := int64(1)
	for i := range w.costs {
		if i < len(m.costs) {
			n = m.costs[i](w.request)
		}
		w.costs[i] = n
		some = some || n != 0
	}
	return some
}

// name sets the keys of a request, and reports whether it has all of them.
func (m *middleware) name(w *response) bool {
	for i, key := range m.keys {
		if w.keys[i] = key(w.request); w.keys[i] == "" {
			return false
		}
	}
	return true
}

// answer serves or refuses a request that was decided.
func (m *middleware) answer(w *response, next http.Handler) {
	w.told = &m.told[min(w.limit, len(m.told)-1)]
	w.free = w.result.Remaining + w.costs[w.limit]
	w.fields.set(w.Header(), &w.told.format, &w.result)
	if !w.result.Allowed {
		m.refuse(w)
		return
	}
	defer func() { // also after a panic, because the headers may have been sent
		if w.changed {
			m.settle(w)
		}
	}()
	next.ServeHTTP(w, w.request)
	w.finish(http.StatusOK) // in case the handler has written nothing
}

func (m *middleware) refuse(w *response) {
	b := &w.told.refusal
	if w.result.Limit == 0 && m.blocked.status != 0 {
		b = &m.blocked
		delete(w.Header(), headerRetry) // no waiting would help
	}
	if m.refused != nil {
		m.refused(w.ResponseWriter, w.request, w.result)
		return
	}
	b.write(w.ResponseWriter, w.request)
}

// settle makes the charge equal to w's costs, even if the client has left. After an error
// the tokens stay charged, because a retry would delay another request.
func (m *middleware) settle(w *response) {
	_ = m.limits.settle(context.WithoutCancel(w.request.Context()), w)
}

// validate returns the first fault of the options.
func (c *config) validate() error {
	if c.keyless == nil || c.failed == nil ||
		slices.ContainsFunc(c.keys, func(k KeyFunc) bool { return k == nil }) ||
		slices.ContainsFunc(c.costs, func(cost func(*http.Request) int64) bool { return cost == nil }) {
		return errors.New("httplimit: a key, a cost or a handler is nil")
	}
	for _, n := range [...]int{len(c.costs), len(c.policies)} {
		if n > 1 && n != len(c.keys) {
			return fmt.Errorf("httplimit: %d costs or policies for %d limits", n, len(c.keys))
		}
	}
	return nil
}
