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
	keys     []string  // one for each limit
	costs    []int64   // one for each limit: what is charged, and later what was used
	fewKeys  [4]string // room for keys, not to allocate it
	fewCosts [4]int64
	paid     *reservoir.GroupResult // nil for a Limiter
	result   reservoir.Result       // the decision, as in the headers
	limit    int                    // index of the limit that result is of
	free     int64                  // what would remain if the request used nothing
	finished bool                   // the final status is known
	changed  bool                   // what was used is not what was charged
	refunded bool
	inner    bool // a limit nearer to the handler has set GitHub's headers
	fields   fields
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

// ResultOf returns the decision about the request that w answers, with the same numbers as
// its headers. If w wraps other writers, they need an Unwrap method. If the request was not
// limited, ok is false.
func ResultOf(w http.ResponseWriter) (r reservoir.Result, ok bool) {
	if t := responseOf(w); t != nil {
		return t.result, true
	}
	return r, false
}

// Settle charges the request that w answers for the tokens that it has really used, for
// handlers that learn this from their work. A Group needs one number for each limit. Use
// above the charge is charged too and never refused: see [reservoir.Limiter.Settle]. If
// headers are not sent yet, they change accordingly. The limiter settles when the handler
// has returned. The last of several calls counts, and a response that is refunded has used
// nothing, whatever was settled. With reservoir.WithDirect that costs a store
// call. With nested limits, Settle affects the innermost.
//
// Settle does nothing if the request was not limited, or if a wrapper of w has no Unwrap
// method, such as http.TimeoutHandler's; ResultOf then returns false. It returns an error
// that wraps reservoir.ErrTokens if a number is negative or too large, and ErrOption
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
			return fmt.Errorf("%w: %d used", reservoir.ErrTokens, n)
		}
	}
	if t.refunded {
		return nil
	}
	copy(t.costs, used)
	t.changed = true
	if !t.finished { // otherwise the headers are sent
		t.correct()
	}
	return nil
}

// correct updates the result to what was used, unless the request is not charged.
func (w *response) correct() {
	if w.result.Limit != reservoir.Unlimited().Tokens && !w.result.Shadowed {
		w.result.Remaining = min(max(w.free-w.costs[w.limit], 0), w.result.Limit)
	}
}

// finish handles the status, if it is the first final one: it decides on a refund, and sets
// the headers.
func (w *response) finish(status int) {
	if w.finished || status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	w.finished = true
	if w.m.refund != nil && w.m.refund(w.request, status, w.Header()) {
		clear(w.costs)
		w.refunded, w.changed = true, true
		w.correct()
	}
	w.describe()
}

// describe sets the headers, in place of those that a handler has set or a reverse proxy has
// copied. If limits are nested, the innermost comes first.
func (w *response) describe() {
	w.fields.set(w.Header(), &w.result, !w.inner)
	if outer := responseOf(w.ResponseWriter); outer != nil && w.result.Limit != reservoir.Unlimited().Tokens {
		outer.inner = true
	}
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
