package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"html"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/httplimit"
)

// tokens are the users by what proves who they are. A real server asks a database
// that has hashes of them.
var tokens = map[string]string{
	"s3cret":      "octocat",
	"open-sesame": "alibaba",
}

var policy = httplimit.Policy{Name: "core", Window: time.Hour}

// newLimiter is one limiter for both kinds of keys. While the store is away, each
// process admits a tenth of each limit by itself.
func newLimiter(store backend.Store, direct bool) (*reservoir.Limiter, error) {
	opts := []reservoir.Option{
		reservoir.WithLimits(func(key string) reservoir.Limit {
			if strings.HasPrefix(key, "user:") {
				return reservoir.PerHour(5000)
			}
			return reservoir.PerHour(60)
		}),
		reservoir.WithFailure(reservoir.FailLocal(0.1)),
	}
	if direct {
		opts = append(opts, reservoir.WithDirect())
	}
	return reservoir.New(store, reservoir.PerHour(60), opts...)
}

// newAPI is the whole server: what is limited, and what is not.
func newAPI(limiter *reservoir.Limiter, trusted []netip.Prefix) http.Handler {
	key := httplimit.First(httplimit.ByUser(user), httplimit.ByAddress(trusted...))
	limit := httplimit.New(limiter, httplimit.WithKey(key), httplimit.WithPolicy(policy))

	limited := http.NewServeMux()
	limited.HandleFunc("GET /users/{name}", showUser)
	limited.HandleFunc("POST /markdown", markdown)

	mux := http.NewServeMux()
	mux.Handle("/", limit(authenticated(limited)))
	mux.Handle("GET /rate_limit", rateLimit(limiter, key))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	return mux
}

// user is who a request comes from: the name of a good token's owner, or "".
func user(r *http.Request) string {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return ""
	}
	return tokens[token]
}

// authenticated refuses bad tokens. It stands behind the limit, which knows
// such a request by its address: so guesses are charged too.
func authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" && user(r) == "" {
			w.Header().Set("WWW-Authenticate", "Bearer")
			write(w, http.StatusUnauthorized, map[string]string{"message": "Bad credentials"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// showUser answers 304 to who has seen the same already, which is not charged.
func showUser(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	sum := fnv.New64a()
	_, _ = io.WriteString(sum, name)
	etag := fmt.Sprintf(`"%x"`, sum.Sum64())
	w.Header().Set("ETag", etag)
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	write(w, http.StatusOK, map[string]string{"login": name, "type": "User"})
}

// markdown knows paragraphs only.
func markdown(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<16))
	if err != nil {
		write(w, http.StatusBadRequest, map[string]string{"message": "No text that could be read"})
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprintf(w, "<p>%s</p>\n", html.EscapeString(string(text)))
}

// resource is a limit as GitHub's /rate_limit tells it.
type resource struct {
	Limit     int64 `json:"limit"`
	Used      int64 `json:"used"`
	Remaining int64 `json:"remaining"`
	Reset     int64 `json:"reset"`
}

// rateLimit says how the client stands and charges nothing.
func rateLimit(limiter *reservoir.Limiter, key httplimit.KeyFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		result, err := limiter.Check(r.Context(), key(r))
		if err != nil {
			httplimit.Unavailable(w, r, err, nil)
			return
		}
		result.Allowed = true // the question is, at any rate: no Retry-After
		if result.Reset.IsZero() {
			result.Reset = time.Now().Add(time.Hour) // the window that would open now
		}
		policy.SetHeaders(w.Header(), result)
		core := resource{result.Limit, result.Limit - result.Remaining, result.Remaining, (result.Reset.UnixMilli() + 999) / 1000}
		write(w, http.StatusOK, map[string]any{"resources": map[string]resource{"core": core}, "rate": core})
	})
}

func write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may have left
}
