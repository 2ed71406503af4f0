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

// response is the ResponseWriter of a limited request. It learns the status
// before that is sent, to know whether the request is refunded, and passes on
// everything else.
//
// It is not pooled: a handler that kept it too long would write into somebody
// else's response.
type response struct {
	http.ResponseWriter
	m        *middleware
	request  *http.Request
	keys     []string // one for each limit
	costs    []int64  // the same; what was used once that is known
	key      [1]string
	cost     [1]int64
	several  *several         // nil of a Limiter
	result   reservoir.Result // as the headers have it
	limit    int              // the index of the one that result is of
	told     *told
	free     int64 // what would remain if nothing were used
	finished bool  // the final status is known
	changed  bool  // what was used is not what was charged
	refunded bool
	hinted   bool // an informational response had our headers, which may be cleared now
	fields   fields
}

// responseOf finds ours through writers that have an Unwrap method; nil if there is none.
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

// ResultOf returns the decision about the request that w answers, as its headers
// tell it. It finds it through writers that have an Unwrap method; ok is false if
// the request was not limited.
func ResultOf(w http.ResponseWriter) (r reservoir.Result, ok bool) {
	if t := responseOf(w); t != nil {
		return t.result, true
	}
	return r, false
}

// Settle makes the charge of the request that w answers what it has really used, in
// tokens, for handlers that learn it from their work; of a Group there is one figure for
// each limit. What was used above the charge is charged too and never refused: see
// reservoir.Limiter.Settle. Headers that are not sent yet tell it. The limiter
// hears of it when the handler has returned; of several calls the last counts, and a
// response that is refunded has used nothing, whatever was settled. What goes back is a
// store call with reservoir.WithDirect, as a refund is. Of nested limits it is the innermost.
//
// It does nothing if the request was not limited, or if what wraps w has no Unwrap method,
// as http.TimeoutHandler's has not; ResultOf tells. Figures that are negative, or too large,
// are reservoir.ErrTokens, and more or fewer than there are limits reservoir.ErrOption. Like
// w it must not be used by several goroutines at the same time, or after the handler.
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

// correct makes the headers tell what was used. Of what charges nothing they stay as they
// are.
func (w *response) correct() {
	if w.result.Unlimited() || w.result.Shadowed {
		return
	}
	w.result.Remaining = min(max(w.free-w.costs[w.limit], 0), w.result.Limit)
	w.fields.change(w.Header(), &w.told.format, &w.result)
}

// finish takes note of the status, if it is the first final one, and of the refund that it
// may earn.
func (w *response) finish(status int) {
	if w.finished || status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	w.finished = true
	if !w.result.Unlimited() {
		w.fields.own(w.Header(), &w.told.format)
	}
	if w.m.refund == nil || !w.m.refund(w.request, status, w.Header()) {
		return
	}
	clear(w.costs)
	w.refunded, w.changed = true, true
	w.correct()
}

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Header has our headers again if all were cleared after an informational response, as
// httputil.ReverseProxy does.
func (w *response) Header() http.Header {
	h := w.ResponseWriter.Header()
	if w.hinted {
		w.hinted = false
		if !w.fields.listed(h) {
			w.fields.put(h, &w.told.format)
		}
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

// WriteString keeps io.WriteString from copying the string.
func (w *response) WriteString(s string) (int, error) {
	w.finish(http.StatusOK)
	return io.WriteString(w.ResponseWriter, s)
}

// ReadFrom keeps io.Copy able to use sendfile. What src begins with goes through
// Write, as in net/http: if src has nothing, nothing is sent, and the handler may
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

// Flush is there for handlers that look for an http.Flusher.
func (w *response) Flush() { _ = w.FlushError() }

// FlushError is what http.ResponseController calls. Where nothing can be flushed,
// no status is sent.
func (w *response) FlushError() error {
	if flushes(w.ResponseWriter) {
		w.finish(http.StatusOK)
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// flushes reports whether an http.ResponseController can flush w. Responses of
// ours always have the method, and know no more than what they wrap.
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

// Hijack is there for handlers that look for an http.Hijacker. A connection that
// was taken over counts as 101, whatever is then sent on it.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.finish(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}
