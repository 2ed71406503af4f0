package httplimit

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/go-reservoir/reservoir"
)

// The problem types of draft-ietf-httpapi-ratelimit-headers, and RFC 9457's type for
// problems that need no more than their status.
const (
	quotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	reducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	blank           = "about:blank"
)

// problem is an error response: a problem document of RFC 9457.
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail,omitempty"`
	Violated []string `json:"violated-policies,omitempty"`
}

// body is a problem as it is sent, made once.
type body struct {
	status int
	json   string
}

func (p problem) body() body {
	j, _ := json.Marshal(p) // strings and a number
	return body{p.Status, string(j) + "\n"}
}

// refusal returns the 429 of a policy. Its headers say when to retry.
func refusal(policy string) body {
	return problem{
		quotaExceeded, "Quota exceeded", http.StatusTooManyRequests,
		"Retry-After says in how many seconds there will be more.", []string{policy},
	}.body()
}

var (
	banned      = problem{blank, "Too Many Requests", http.StatusTooManyRequests, "This client is blocked.", nil}.body()
	noKey       = problem{blank, "Bad Request", http.StatusBadRequest, "The request has no key to charge it to.", nil}.body()
	badKey      = problem{blank, "Bad Request", http.StatusBadRequest, "The key to charge the request to is too long.", nil}.body()
	tooDear     = problem{blank, "Bad Request", http.StatusBadRequest, "The request costs more than the whole limit.", nil}.body()
	unavailable = problem{reducedCapacity, "Temporarily reduced capacity", http.StatusServiceUnavailable, "Limits cannot be checked at the moment.", nil}.body()
	broken      = problem{blank, "Internal Server Error", http.StatusInternalServerError, "", nil}.body()
)

// Unavailable is the default ErrorHandler. The client gets 503 and Retry-After: 1 if the
// store is away, the limiter is closed or the request's context has ended; 400 if the
// key is too long or the cost is more than the limit; and 500 if a limit or a cost is
// invalid.
func Unavailable(w http.ResponseWriter, r *http.Request, err error, _ http.Handler) {
	b := broken
	_, store := errors.AsType[*reservoir.StoreError](err)
	switch {
	case errors.Is(err, reservoir.ErrKey):
		b = badKey
	case errors.Is(err, reservoir.ErrExceedsLimit):
		b = tooDear
	case store, errors.Is(err, reservoir.ErrClosed),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		b = unavailable // the same request may succeed a second later
		w.Header()[headerRetry] = []string{"1"}
	}
	b.ServeHTTP(w, r)
}

func (b body) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Type"] = []string{"application/problem+json"}
	w.WriteHeader(b.status)
	_, _ = io.WriteString(w, b.json) // the client may have left
}
