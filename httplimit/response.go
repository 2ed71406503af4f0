package httplimit

import (
	"bufio"
	"io"
	"net"
	"net/http"

	"github.com/go-reservoir/reservoir"
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
	key      string
	cost     int64
	result   reservoir.Result // as the headers have it
	settled  bool             // the final status is known
	refunded bool
	fields   fields
}

// ResultOf returns the decision about the request that w answers, as its headers
// tell it. It finds it through writers that have an Unwrap method; ok is false if
// the request was not limited.
func ResultOf(w http.ResponseWriter) (r reservoir.Result, ok bool) {
	for {
		switch t := w.(type) {
		case *response:
			return t.result, true
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return reservoir.Result{}, false
		}
	}
}

// settle takes note of the status, if it is the first final one, and corrects
// the headers of a request that is refunded.
func (w *response) settle(status int) {
	if w.settled || status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	w.settled = true
	w.fields.own(w.Header(), &w.m.format)
	if w.m.refund == nil || !w.m.refund(w.request, status, w.Header()) {
		return
	}
	w.refunded = true
	w.result.Remaining = min(w.result.Remaining+w.cost, w.result.Limit)
	w.fields.change(w.Header(), &w.m.format, &w.result)
}

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *response) WriteHeader(status int) {
	w.settle(status)
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(p []byte) (int, error) {
	w.settle(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// WriteString keeps io.WriteString from copying the string.
func (w *response) WriteString(s string) (int, error) {
	w.settle(http.StatusOK)
	return io.WriteString(w.ResponseWriter, s)
}

// ReadFrom keeps io.Copy able to use sendfile. What src begins with goes through
// Write, as in net/http: if src has nothing, nothing is sent, and the handler may
// still answer with another status.
func (w *response) ReadFrom(src io.Reader) (n int64, err error) {
	if !w.settled {
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
		w.settle(http.StatusOK)
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
		w.settle(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}
