package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/go-reservoir/reservoir/httplimit"
)

// prices has the models that may be called.
var prices = map[string]price{"small": {1, 5}, "large": {3, 15}}

const (
	mostInput  = 1 << 20  // bytes
	mostAnswer = 16 << 20 // bytes of an event, or of an answer that is no stream: log-probabilities are long
	mostOutput = 4096     // tokens; also the default
)

// gateway limits completions and forwards them to a model server.
type gateway struct {
	budget  *budget
	reserve int64  // tokens of output, at most, for a stream
	model   string // the server's URL
}

func (g *gateway) handler() http.Handler {
	mux := http.NewServeMux()
	for path, d := range dialects {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) { g.complete(w, r, d) })
	}
	return mux
}

// account returns the owner of the request's API key, or "". The account is limited; the
// key goes to no store, log or model. A real gateway stores hashes of keys.
func account(r *http.Request) string {
	key, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !bearer {
		key = r.Header.Get("X-Api-Key")
	}
	return map[string]string{"sk-acme": "acme", "sk-zenith": "zenith"}[key]
}

// complete charges an estimate, forwards the request, and settles the real use.
func (g *gateway) complete(w http.ResponseWriter, r *http.Request, d dialect) {
	key := account(r)
	if key == "" {
		fail(w, http.StatusUnauthorized, "authentication_error", "no API key that is known")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostInput))
	if err != nil { // or the client has left, and reads no answer
		fail(w, http.StatusRequestEntityTooLarge, "request_too_large", err.Error())
		return
	}
	q, err := d.read(body)
	if err != nil {
		fail(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	out := q.most
	if q.stream { // only a stream can be stopped when it needs more
		out = min(out, g.reserve)
	}
	c, err := g.budget.reserve(r.Context(), key, prices[q.model], tokensIn(len(body)), out)
	if err != nil {
		httplimit.Unavailable(w, r, err, nil) // also if the estimate is more than the limit, which is the client's fault
		return
	}
	i := c.result.Limiter // the tightest, or the one that refused
	httplimit.Policy{Name: names[i], Window: g.budget.limits[i].Window}.SetHeaders(w.Header(), c.result.Result)
	if !c.result.Allowed {
		fail(w, http.StatusTooManyRequests, "rate_limit_error", "out of "+names[i]+": Retry-After says in how many seconds there will be more")
		return
	}
	defer func() { _ = c.settle(r.Context()) }() // also if the client leaves or the stream breaks
	g.forward(w, r, q, c)
}

// forward sends the request to the model server and records its use in c.
func (g *gateway) forward(w http.ResponseWriter, r *http.Request, q request, c *charge) {
	up, _ := http.NewRequestWithContext(r.Context(), http.MethodPost, g.model+r.URL.Path, bytes.NewReader(q.body))    // run has checked the URL
	up.Header = http.Header{"Content-Type": {"application/json"}, "Anthropic-Version": r.Header["Anthropic-Version"]} // and a key of our own
	resp, err := http.DefaultClient.Do(up)
	if err != nil {
		if r.Context().Err() == nil { // otherwise the client has left, and the model may have read the input
			c.in = 0
		}
		fail(w, http.StatusBadGateway, "api_error", "the model server does not answer")
		return
	}
	defer resp.Body.Close() // stops the model server if it has more to send
	for _, name := range []string{"Content-Type", "Retry-After"} {
		w.Header()[name] = resp.Header[name]
	}
	w.WriteHeader(resp.StatusCode)
	if resp.StatusCode != http.StatusOK {
		c.in = 0 // an error costs nothing
	}
	if q.copy(r.Context(), w, resp.Body, c) != nil {
		panic(http.ErrAbortHandler) // the client must see that this is not all
	}
}

// fail answers in a form that clients of both APIs understand.
func fail(w http.ResponseWriter, status int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"type": "error", "error": map[string]string{"type": kind, "message": message}})
}
