package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/httplimit"
)

// These stand for parts that a service has already.
var (
	mux    = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	userOf = func(r *http.Request) string { return r.PathValue("user") } // set by authentication
)

// visit sends a request and prints the status and some headers.
func visit(h http.Handler, from string, headers ...string) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = from
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Header().Get("X-RateLimit-Limit") == "" {
		fmt.Println(w.Code)
		return
	}
	fmt.Println(w.Code, w.Header().Get("X-RateLimit-Remaining"), "of", w.Header().Get("X-RateLimit-Limit"))
}

func Example() {
	limiter, err := reservoir.New(memstore.New(), reservoir.PerHour(2)) // or redisstore.New(client)
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background()) // after the server's Shutdown
	h := httplimit.New(limiter)(mux)

	visit(h, "203.0.113.9:4711")
	visit(h, "203.0.113.9:4712")
	visit(h, "203.0.113.9:4713")
	visit(h, "203.0.113.10:4711")
	// Output:
	// 200 1 of 2
	// 200 0 of 2
	// 429 0 of 2
	// 200 1 of 2
}

func ExampleNew() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(60),
		reservoir.WithLimits(func(key string) reservoir.Limit {
			if strings.HasPrefix(key, "token:") {
				return reservoir.PerHour(5000)
			}
			return reservoir.PerHour(60)
		}))
	h := httplimit.New(limiter,
		httplimit.WithKey(httplimit.First(httplimit.ByToken("Authorization"), httplimit.ByAddress())),
		httplimit.WithPolicy(httplimit.Policy{Name: "core", Window: time.Hour}),
	)(mux)

	visit(h, "203.0.113.9:4711")
	visit(h, "203.0.113.9:4711", "Authorization: Bearer s3cret")
	// Output:
	// 200 59 of 60
	// 200 4999 of 5000
}

// A request must pass the limits of its user and of the user's organisation.
func ExampleNewGroup() {
	users, _ := reservoir.New(memstore.New(), reservoir.PerMinute(5), reservoir.WithName("user"))
	orgs, _ := reservoir.New(memstore.New(), reservoir.PerHour(6), reservoir.WithName("org"))
	h := httplimit.NewGroup(reservoir.NewGroup(users, orgs),
		httplimit.WithKey(httplimit.ByToken("Authorization"), httplimit.ByHeader("X-Org")),
		httplimit.WithPolicy(httplimit.Policy{Name: "user", Window: time.Minute}, httplimit.Policy{Name: "org", Window: time.Hour}),
	)(mux)
	for _, token := range []string{"alice", "alice", "alice", "bob", "bob", "bob", "bob"} {
		visit(h, "203.0.113.9:4711", "Authorization: "+token, "X-Org: acme")
	}
	// Output:
	// 200 4 of 5
	// 200 3 of 5
	// 200 2 of 5
	// 200 2 of 6
	// 200 1 of 6
	// 200 0 of 6
	// 429 0 of 6
}

// The client writes any address into the header; the proxy adds the real one.
func ExampleByAddress() {
	key := httplimit.ByAddress(netip.MustParsePrefix("10.0.0.0/8"))
	r := httptest.NewRequest(http.MethodGet, "/", nil)

	r.RemoteAddr = "10.0.0.1:4711" // the proxy
	r.Header.Set("X-Forwarded-For", "192.0.2.66, 203.0.113.9")
	fmt.Println(key(r))

	r.RemoteAddr = "203.0.113.9:4711" // a client that goes around the proxy
	fmt.Println(key(r))

	r.RemoteAddr = "[2001:db8:0:1:2::3]:4711"
	fmt.Println(key(r))
	// Output:
	// addr:203.0.113.9
	// addr:203.0.113.9
	// addr:2001:db8:0:1::/64
}

func ExampleByHeader() {
	key := httplimit.ByHeader("X-Tenant") // which a gateway sets
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Tenant", "acme")
	fmt.Println(key(r))
	// Output: header:X-Tenant:acme
}

func ExampleByToken() {
	key := httplimit.ByToken("Authorization")
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer s3cret")
	fmt.Println(key(r)) // a hash: the store learns no secret
	// Output: token:DJrmBmtB03Ed6kZnz8xRPw
}

func ExampleByUser() {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.SetPathValue("user", "alice")
	fmt.Println(httplimit.ByUser(userOf)(r))
	// Output: user:alice
}

// Users are limited by name, and everybody else by address.
func ExampleFirst() {
	key := httplimit.First(httplimit.ByUser(userOf), httplimit.ByAddress())
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "203.0.113.9:4711"
	fmt.Println(key(r))
	r.SetPathValue("user", "alice")
	fmt.Println(key(r))
	// Output:
	// addr:203.0.113.9
	// user:alice
}

func ExampleWithCost() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(100))
	h := httplimit.New(limiter, httplimit.WithCost(func(r *http.Request) int64 {
		if r.Header.Get("X-Search") != "" {
			return 10
		}
		return 1
	}))(mux)
	visit(h, "203.0.113.9:4711")
	visit(h, "203.0.113.9:4711", "X-Search: everything")
	// Output:
	// 200 99 of 100
	// 200 89 of 100
}

func ExampleWithSkip() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(100))
	h := httplimit.New(limiter, httplimit.WithSkip(func(r *http.Request) bool { return r.URL.Path == "/healthz" }))(mux)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	fmt.Println(w.Code, len(w.Header()["X-Ratelimit-Limit"]))
	// Output: 200 0
}

// Responses from a cache cost nothing.
func ExampleWithRefund() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(100))
	h := httplimit.New(limiter, httplimit.WithRefund(func(_ *http.Request, _ int, header http.Header) bool {
		return header.Get("X-Cache") == "hit"
	}))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Cache", r.Header.Get("X-Like"))
		fmt.Fprintln(w, "hello")
	}))
	visit(h, "203.0.113.9:4711", "X-Like: miss")
	visit(h, "203.0.113.9:4711", "X-Like: hit")
	// Output:
	// 200 99 of 100
	// 200 99 of 100
}

func ExampleStatus() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(100))
	missing := httplimit.New(limiter, httplimit.WithRefund(httplimit.Status(http.StatusNotModified, http.StatusNotFound)))(http.NotFoundHandler())
	visit(missing, "203.0.113.9:4711")
	// Output: 404 100 of 100
}

func ExampleWithKeyless() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(100))
	h := httplimit.New(limiter, httplimit.WithKey(httplimit.ByToken("Authorization")),
		httplimit.WithKeyless(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a token, please", http.StatusUnauthorized)
		})))(mux)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	fmt.Println(w.Code)
	// Output: 401
}

func ExampleWithRefused() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(1))
	h := httplimit.New(limiter, httplimit.WithRefused(func(w http.ResponseWriter, _ *http.Request, r reservoir.Result) {
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprintf(w, "%d an hour are all we can give you.\n", r.Limit)
	}))(mux)
	visit(h, "203.0.113.9:4711")
	visit(h, "203.0.113.9:4711")
	// Output:
	// 200 0 of 1
	// 429 0 of 1
}

// A blocked client gets a status of its own.
func ExampleWithBlockedStatus() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(100),
		reservoir.WithLimits(func(key string) reservoir.Limit {
			if key == "addr:203.0.113.66" {
				return reservoir.Limit{}
			}
			return reservoir.PerHour(100)
		}))
	h := httplimit.New(limiter, httplimit.WithBlockedStatus(http.StatusForbidden))(mux)
	visit(h, "203.0.113.9:4711")
	visit(h, "203.0.113.66:4711")
	// Output:
	// 200 99 of 100
	// 403 0 of 0
}

// This service goes on without limits while the store is away.
func ExampleWithErrorHandler() {
	limiter, _ := reservoir.New(away{}, reservoir.PerHour(100))
	h := httplimit.New(limiter, httplimit.WithErrorHandler(httplimit.Pass))(mux)
	visit(h, "203.0.113.9:4711")
	// Output: 200
}

// This ErrorHandler handles one error itself and leaves the rest to the default.
func ExampleUnavailable() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(10))
	h := httplimit.New(limiter,
		httplimit.WithCost(func(*http.Request) int64 { return 11 }),
		httplimit.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error, next http.Handler) {
			if errors.Is(err, reservoir.ErrExceedsLimit) {
				http.Error(w, "ask for less", http.StatusRequestEntityTooLarge)
				return
			}
			httplimit.Unavailable(w, r, err, next)
		}))(mux)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	fmt.Println(w.Code)
	// Output: 413
}

func ExamplePass() {
	limiter, _ := reservoir.New(away{}, reservoir.PerHour(100))
	strict := httplimit.New(limiter)(mux)
	lenient := httplimit.New(limiter, httplimit.WithErrorHandler(httplimit.Pass))(mux)
	visit(strict, "203.0.113.9:4711")
	visit(lenient, "203.0.113.9:4711")
	// Output:
	// 503
	// 200
}

// This handler calls the limiter itself, in the middle of its work.
func ExamplePolicy_SetHeaders() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(100))
	policy := httplimit.Policy{Name: "export", Window: time.Hour}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		result, err := limiter.AllowN(r.Context(), "export:acme", 40)
		if err != nil {
			httplimit.Unavailable(w, r, err, nil)
			return
		}
		policy.SetHeaders(w.Header(), result)
		if !result.Allowed {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	fmt.Println(w.Header().Get("RateLimit-Policy"))
	fmt.Println(w.Header().Get("X-RateLimit-Used"), "used")
	// Output:
	// "export";q=100;w=3600
	// 40 used
}

// This handler tells a client that it has used its last token.
func ExampleResultOf() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(2))
	h := httplimit.New(limiter)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if r, ok := httplimit.ResultOf(w); ok && r.Remaining == 0 {
			fmt.Println("that was the last one")
		}
	}))
	visit(h, "203.0.113.9:4711")
	visit(h, "203.0.113.9:4711")
	// Output:
	// 200 1 of 2
	// that was the last one
	// 200 0 of 2
}

// A request is first charged 500 tokens of a language model, and then its real use.
func ExampleSettle() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(10_000))
	h := httplimit.New(limiter, httplimit.WithCost(func(*http.Request) int64 { return 500 }))(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			answer, used := "forty-two", int64(42)
			if err := httplimit.Settle(w, used); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			fmt.Fprintln(w, answer)
		}))
	visit(h, "203.0.113.9:4711")
	// Output: 200 9958 of 10000
}

// An operator can see here why a user is refused.
func ExampleDebug() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(2))
	for range 5 {
		_, _ = limiter.Allow(context.Background(), "user:alice")
	}
	private := http.NewServeMux() // on a port that only operators reach
	private.Handle("/debug/limits", httplimit.Debug(map[string]*reservoir.Limiter{"core": limiter}))

	w := httptest.NewRecorder()
	private.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/limits", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "requests.denied") || strings.HasSuffix(line, "\"user:alice\"\n") {
			fmt.Println(strings.Fields(line)[:2])
		}
	}
	// Output:
	// [requests.denied 3]
	// [3 2]
}

// This client stays within 5,000 requests an hour. A request fails after a minute's wait.
func ExampleTransport() {
	api := httptest.NewServer(mux)
	defer api.Close()
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(5000))
	client := &http.Client{
		Transport: &httplimit.Transport{Limiter: limiter, Base: api.Client().Transport},
		Timeout:   time.Minute,
	}
	resp, err := client.Get(api.URL)
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, limiter.Stats().Spent)
	// Output: 200 1
}
