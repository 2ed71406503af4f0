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
	hijacked bool                   // and our headers are set
	changed  bool                   // what was used is not what was charged
	refunded bool
	hinted   bool // an informational response had our headers, which the handler may have cleared
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
	if !t.finished {
		t.correct()
	}
	return nil
}

// correct updates the headers to what was used. It leaves them alone if the request is not
// charged.
func (w *response) correct() {
	if w.result.Unlimited() || w.result.Shadowed {
		return
	}
	w.result.Remaining = min(max(w.free-w.costs[w.limit], 0), w.result.Limit)
	w.fields.change(w.Header(), &w.result)
}

// finish handles the status, if it is the first final one, and decides on a refund.
func (w *response) finish(status int) {
	if w.finished || status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	w.finished = true
	if !w.result.Unlimited() {
		w.fields.own(w.Header())
	}
	if w.m.refund == nil || !w.m.refund(w.request, status, w.Header()) {
		return
	}
	clear(w.costs)
	w.refunded, w.changed = true, true
	w.correct()
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Header returns the header. If all headers were cleared after an informational response,
// as httputil.ReverseProxy does, it puts ours in again. ReverseProxy also adds headers after
// it has hijacked a connection, and asks for all of them once more.
func (w *response) Header() http.Header {
	h := w.ResponseWriter.Header()
	if w.hinted {
		w.hinted = false
		if !w.fields.listed(h) {
			w.fields.put(h)
		}
	}
	if w.hijacked {
		w.fields.own(h)
	}
	return h
}

func (w *response) WriteHeader(status int) {
	w.finish(status)
	w.hinted = !w.finished && w.fields.listed(w.Header())
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

// FlushError flushes, for http.ResponseController. If the wrapped writer cannot flush, it
// sends no status.
func (w *response) FlushError() error {
	if flushes(w.ResponseWriter) {
		w.finish(http.StatusOK)
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// flushes reports whether an http.ResponseController can flush w. A response always has the
// method, so the writer that it wraps decides.
func flushes(w http.ResponseWriter) bool {
	for {
		switch t := w.(type) {
		case *response:
			w = t.ResponseWriter
		case interface{ FlushError() error }, http.Flusher:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return false
		}
	}
}

// Hijack implements http.Hijacker, for handlers that look for it. A hijacked connection
// counts as status 101, whatever the handler sends on it.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.finish(http.StatusSwitchingProtocols)
		w.hijacked = !w.result.Unlimited()
	}
	return conn, rw, err
}
