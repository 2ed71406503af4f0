package httplimit

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

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

// body is a problem in the forms that are sent, made once.
type body struct {
	status      int
	json, plain string
}

func (p problem) body() body {
	j, _ := json.Marshal(p) // strings and a number
	plain := p.Title
	if p.Detail != "" {
		plain += ": " + p.Detail
	}
	return body{p.Status, string(j) + "\n", plain + "\n"}
}

// refusal returns the 429 of a policy. Its headers say when to retry.
func refusal(policy string) body {
	return problem{
		quotaExceeded, "Quota exceeded", http.StatusTooManyRequests,
		"Retry-After says in how many seconds there will be more.", []string{policy},
	}.body()
}

var (
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
	switch {
	case errors.Is(err, reservoir.ErrKey):
		b = badKey
	case errors.Is(err, reservoir.ErrExceedsLimit):
		b = tooDear
	case isStore(err), errors.Is(err, reservoir.ErrClosed),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		b = unavailable // the same request may succeed a second later
		w.Header()[headerRetry] = []string{"1"}
	}
	b.ServeHTTP(w, r)
}

// Pass is an ErrorHandler that serves requests without a limit while the store is away. For
// other errors it is the same as Unavailable. The policies FailOpen and FailLocal of
// reservoir.WithFailure serve requests too, and charge them when the store is back.
func Pass(w http.ResponseWriter, r *http.Request, err error, next http.Handler) {
	if isStore(err) {
		next.ServeHTTP(w, r)
	} else {
		Unavailable(w, r, err, next)
	}
}

func isStore(err error) bool {
	_, is := errors.AsType[*reservoir.StoreError](err)
	return is
}

// ServeHTTP sends b in the form that the request's Accept header prefers.
func (b body) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, text := preferred(r.Header["Accept"]), b.json
	if kind == plainText {
		text = b.plain
	}
	w.Header()["Content-Type"] = []string{kind}
	w.WriteHeader(b.status)
	_, _ = io.WriteString(w, text) // the client may have left
}

const (
	problemJSON = "application/problem+json"
	plainJSON   = "application/json"
	plainText   = "text/plain; charset=utf-8"
)

// forms are the media types of a body, in the order of preference, each with the ranges
// that match it, the least specific first.
var forms = [...]struct {
	kind   string
	ranges []string
}{
	{problemJSON, []string{"*/*", "application/*", problemJSON}},
	{plainJSON, []string{"*/*", "application/*", plainJSON}},
	{plainText, []string{"*/*", "text/*", "text/plain"}},
}

// preferred returns the form with the highest quality. On a tie, a form that is named wins
// over one that only a star matches, and then the order of forms decides. A client that
// prefers HTML is a browser, so it gets text. A client that accepts none of the forms gets
// a problem, which HTTP allows.
func preferred(accept []string) string {
	best, most, named := problemJSON, 0.0, 0
	for _, f := range forms {
		q, specific := weigh(accept, f.ranges)
		if q > most || q == most && q > 0 && specific > named {
			best, most, named = f.kind, q, specific
		}
	}
	return best
}

// weigh returns the quality of the most specific of ranges in accept, and its index. Of
// equal ranges the highest quality counts.
func weigh(accept, ranges []string) (q float64, specific int) {
	for _, line := range accept {
		for item := range strings.SplitSeq(line, ",") {
			media, params, _ := strings.Cut(item, ";")
			media = strings.Replace(strings.ToLower(strings.TrimSpace(media)), "text/html", "text/plain", 1)
			value, i := quality(params), slices.Index(ranges, media)
			if i > specific || i == specific && value > q {
				q, specific = value, i
			}
		}
	}
	return q, specific
}

// quality returns the q among the parameters of a media range; 1 if there is none.
func quality(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(p), "=")
		if strings.EqualFold(name, "q") {
			q, err := strconv.ParseFloat(value, 64)
			if err != nil || !(q >= 0 && q <= 1) {
				return 0
			}
			return q
		}
	}
	return 1
}
