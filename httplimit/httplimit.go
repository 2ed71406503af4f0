package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

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
	return build(&middleware{limiter: limiter}, opts)
}

// NewGroup is like New, for several limits that a request must pass together: it is charged
// to all of them or to none. WithKey must give a key for each limiter, in the group's order.
// A request costs one more allocation than with New, for up to four limits. NewGroup panics
// like New.
func NewGroup(g *reservoir.Group, opts ...Option) func(http.Handler) http.Handler {
	if g == nil {
		panic("httplimit: no group")
	}
	return build(&middleware{group: g}, opts)
}

// build completes m.
func build(m *middleware, opts []Option) func(http.Handler) http.Handler {
	m.config = defaults()
	for _, o := range opts {
		o(&m.config)
	}
	if err := m.validate(); err != nil {
		panic(err)
	}
	for i := range m.keys {
		var p Policy
		if n := len(m.policies); n > 0 {
			p = m.policies[min(i, n-1)]
		}
		m.forms = append(m.forms, m.form(p))
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

// middleware is shared by all handlers of one New, which does not change it afterwards.
type middleware struct {
	config
	limiter *reservoir.Limiter // nil if a group decides
	group   *reservoir.Group
	forms   []form // one for each limit
}

// form has the constant parts of the answers about a limit.
type form struct {
	format
	refusal body
}

// form returns the form of the next limit. If another one has its name, clients could not tell them apart
// in lists, so the name gets a number.
func (m *middleware) form(p Policy) form {
	f := p.compile()
	name := f.resource[0]
	if slices.ContainsFunc(m.forms, func(other form) bool { return other.resource[0] == name }) {
		f = Policy{name + "-" + strconv.Itoa(len(m.forms)+1)}.compile()
	}
	return form{f, refusal(f.resource[0])}
}

// serve charges the request and serves it, or answers with the reason why not.
func (m *middleware) serve(rw http.ResponseWriter, r *http.Request, next http.Handler) {
	w := &response{ResponseWriter: rw, m: m, request: r}
	switch {
	case !m.price(w):
		next.ServeHTTP(rw, r)
	case !m.name(w):
		noKey.ServeHTTP(rw, r)
	default:
		if err := m.ask(w); err != nil {
			m.failed(rw, r, err, next)
			return
		}
		m.answer(w, next)
	}
}

// price sets the costs of a request, and reports whether any is not zero.
func (m *middleware) price(w *response) (some bool) {
	n := int64(1)
	w.costs = w.fewCosts[0][:0]
	for i := range m.keys {
		if i < len(m.costs) {
			n = m.costs[i](w.request)
		}
		w.costs = append(w.costs, n)
		some = some || n != 0
	}
	return some
}

// name sets the keys of a request, and reports whether it has all of them.
func (m *middleware) name(w *response) bool {
	w.keys = w.fewKeys[:0]
	for _, of := range m.keys {
		key := of(w.request)
		if key == "" {
			return false
		}
		w.keys = append(w.keys, key)
	}
	return true
}

// ask decides, by w's keys and costs.
func (m *middleware) ask(w *response) (err error) {
	if m.group == nil {
		w.result, err = m.limiter.AllowN(w.request.Context(), w.keys[0], w.costs[0])
		return err
	}
	w.group = &charge{}
	w.group.GroupResult, err = m.group.AllowEach(w.request.Context(), w.costs, w.keys...)
	w.result, w.limit = w.group.Result, w.group.Limiter
	return err
}

// answer serves or refuses a request that was decided.
func (m *middleware) answer(w *response, next http.Handler) {
	if !w.result.Allowed {
		w.describe()
		b := m.forms[w.limit].refusal
		if w.result.Limit == 0 { // by reservoir.Block
			b = banned
		}
		m.refuse(w, b)
		return
	}
	defer func() { // also after a panic, because the headers may have been sent
		if w.used != nil {
			m.settle(w)
		}
	}()
	next.ServeHTTP(w, w.request)
	w.finish(http.StatusOK) // in case the handler has written nothing
}

// refuse answers with b, unless WithRefused says otherwise.
func (m *middleware) refuse(w *response, b body) {
	if m.refused != nil {
		m.refused(w.ResponseWriter, w.request, w.result)
		return
	}
	b.ServeHTTP(w.ResponseWriter, w.request)
}

// settle makes the charge equal to what was used, even if the client has left: the limiter lets
// no context that has ended bound it. After an error the tokens stay charged, because a retry
// would delay another request.
func (m *middleware) settle(w *response) {
	ctx := w.request.Context()
	if m.group == nil {
		_ = m.limiter.Settle(ctx, w.result, w.used[0])
	} else {
		_ = m.group.Settle(ctx, w.group.GroupResult, w.used)
	}
}

// validate returns the first fault of the options.
func (m *middleware) validate() error {
	if m.failed == nil ||
		slices.ContainsFunc(m.keys, func(k KeyFunc) bool { return k == nil }) ||
		slices.ContainsFunc(m.costs, func(cost func(*http.Request) int64) bool { return cost == nil }) {
		return errors.New("httplimit: a key, a cost or a handler is nil")
	}
	for _, n := range [...]int{len(m.costs), len(m.policies)} {
		if n > 1 && n != len(m.keys) {
			return fmt.Errorf("httplimit: %d costs or policies for %d keys", n, len(m.keys))
		}
	}
	if m.group != nil { // a request that costs nothing makes no call, but needs a key for each limit
		_, err := m.group.AllowEach(context.Background(), make([]int64, len(m.keys)), make([]string, len(m.keys))...)
		return err
	}
	if len(m.keys) != 1 {
		return fmt.Errorf("httplimit: %d keys for one limit", len(m.keys))
	}
	return nil
}
