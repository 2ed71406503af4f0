package httplimit

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
)

// response is the ResponseWriter of a limited request. It sees the status before that is
// sent, to decide on a refund, and passes on everything else.
//
// It is not pooled, because a handler that kept it too long would write into another
// request's response.
type response struct {
	http.ResponseWriter
	m        *middleware
	request  *http.Request
	keys     []string    // one for each limit
	costs    []int64     // what each limit charges
	used     []int64     // what the request has used of each; nil = what was charged
	fewKeys  [few]string // room, not to allocate it
	fewCosts [2][few]int64
	result   reservoir.Result // the decision
	limit    int              // index of the limit that result is of
	group    *charge          // nil for a Limiter
	finished bool             // the final status is known
	refunded bool
	inner    bool // a limit nearer to the handler has set GitHub's headers
	fields   fields
}

// few is for how many limits a response has room.
const few = 4

// charge is what a response has only for a Group.
type charge struct {
	reservoir.GroupResult
	room [2][few * 40]byte // for lists
}

// responseOf finds the response inside writers with an Unwrap method, or returns nil.
func responseOf(w http.ResponseWriter) *response {
	for {
		switch t := w.(type) {
		case *response:
			return t
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return nil
		}
	}
}

// ResultOf returns the decision about the request that w answers, with the numbers that
// RateLimit has of it. For a Group it is that of the limit with the smallest part remaining. If
// w wraps other writers, they need an Unwrap method. If the request was not limited, ok is false.
func ResultOf(w http.ResponseWriter) (r reservoir.Result, ok bool) {
	if t := responseOf(w); t != nil {
		if t.finished { // and the headers are sent
			return t.result, true
		}
		return t.of(t.limit), true
	}
	return r, false
}

// of returns the state of limit i, corrected to what was used.
func (w *response) of(i int) reservoir.Result {
	r := w.result
	if w.group != nil {
		r = w.group.Of(i)
	}
	if w.used != nil && w.costs[i] > 0 && limits(&r) && !r.Shadowed {
		r.Remaining = min(max(r.Remaining+w.costs[i]-w.used[i], 0), r.Limit)
	}
	return r
}

// Settle charges the request that w answers for the tokens that it has really used, for
// handlers that learn this from their work. A Group needs one number for each limit. Use
// above the charge is charged too and never refused: see [reservoir.Limiter.Settle]. If
// headers are not sent yet, they change accordingly. The limiter settles when the handler
// has returned. The last of several calls counts, and a response that is refunded has used
// nothing, whatever was settled. With reservoir.WithDirect that causes a store
// call. With nested limits, Settle affects the innermost.
//
// Settle does nothing if the request was not limited, or if a wrapper of w has no Unwrap
// method, such as http.TimeoutHandler's; ResultOf then returns false. It returns an error
// that wraps backend.ErrTokens if a number is negative or too large, and ErrOption
// unless it gets one number for each limit. Like w it must not be used by several
// goroutines at the same time, or after the handler.
func Settle(w http.ResponseWriter, used ...int64) error {
	t := responseOf(w)
	if t == nil {
		return nil
	}
	if len(used) != len(t.costs) {
		return fmt.Errorf("%w: %d figures for %d limits", reservoir.ErrOption, len(used), len(t.costs))
	}
	for _, n := range used {
		if n < 0 || n > backend.MaxTokens {
			return fmt.Errorf("%w: %d used", backend.ErrTokens, n)
		}
	}
	if t.refunded {
		return nil
	}
	t.used = append(t.fewCosts[1][:0], used...)
	return nil
}

// finish handles the status, if it is the first final one: it decides on a refund, and sets
// the headers.
func (w *response) finish(status int) {
	if w.finished || status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	w.finished = true
	if w.m.refund != nil && w.m.refund(w.request, status, w.Header()) {
		w.used = append(w.fewCosts[1][:0], w.costs...)
		clear(w.used)
		w.refunded = true
	}
	w.describe()
}

// describe sets the headers, in place of those that a handler has set or a reverse proxy has
// copied. If limits are nested, the innermost comes first.
func (w *response) describe() {
	v := &w.fields
	if w.group != nil {
		v.policies, v.states = w.group.room[0][:0], w.group.room[1][:0]
	}
	for i := range w.costs {
		r, f := w.of(i), &w.m.forms[i].format
		if !limits(&r) {
			continue
		}
		v.list(f, &r)
		if v.resource == nil && !w.inner && w.shows(i) {
			v.show(f, &r)
		}
	}
	v.set(w.Header())
	w.result = w.of(w.limit)
	if outer := responseOf(w.ResponseWriter); outer != nil {
		outer.inner = w.inner || v.resource != nil
	}
}

// shows reports whether GitHub's headers may be those of limit i: the one that refused or, so that they do
// not jump from limit to limit, the first that is charged.
func (w *response) shows(i int) bool {
	if !w.result.Allowed {
		return i == w.limit
	}
	return w.costs[i] > 0
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *response) WriteHeader(status int) {
	w.finish(status)
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(p []byte) (int, error) {
	w.finish(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// WriteString implements io.StringWriter, so that io.WriteString does not copy the string.
func (w *response) WriteString(s string) (int, error) {
	w.finish(http.StatusOK)
	return io.WriteString(w.ResponseWriter, s)
}

// ReadFrom implements io.ReaderFrom, so that io.Copy can use sendfile. The beginning of src
// goes through Write, as in net/http: if src is empty, nothing is sent, and the handler may
// still answer with another status.
func (w *response) ReadFrom(src io.Reader) (n int64, err error) {
	if !w.finished {
		const first = 512
		n, err = io.Copy(struct{ io.Writer }{w}, io.LimitReader(src, first)) // hides this method
		if err != nil || n < first {
			return n, err
		}
	}
	rest, err := io.Copy(w.ResponseWriter, src)
	return n + rest, err
}

// Flush implements http.Flusher, for handlers that look for it.
func (w *response) Flush() { _ = w.FlushError() }

// FlushError flushes, for http.ResponseController.
func (w *response) FlushError() error {
	w.finish(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack implements http.Hijacker, for handlers that look for it. A hijacked connection
// counts as status 101, whatever the handler sends on it.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.finish(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}
