package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/httplimit"
)

// These stand for parts that a service has already.
var (
	mux    = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	userOf = func(r *http.Request) string { return r.Header.Get("X-User") } // set by authentication
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
			if strings.HasPrefix(key, "user:") {
				return reservoir.PerHour(5000)
			}
			return reservoir.PerHour(60)
		}))
	h := httplimit.New(limiter,
		httplimit.WithKey(httplimit.First(httplimit.ByUser(userOf), httplimit.ByAddress())),
		httplimit.WithPolicy(httplimit.Policy{Name: "core"}),
	)(mux)

	visit(h, "203.0.113.9:4711")
	visit(h, "203.0.113.9:4711", "X-User: alice")
	// Output:
	// 200 59 of 60
	// 200 4999 of 5000
}

// A request must pass the limits of its user and of the user's organisation. Headers show both.
func ExampleNewGroup() {
	users, _ := reservoir.New(memstore.New(), reservoir.PerMinute(5), reservoir.WithName("user"))
	orgs, _ := reservoir.New(memstore.New(), reservoir.PerHour(6), reservoir.WithName("org"))
	h := httplimit.NewGroup(reservoir.NewGroup(users, orgs),
		httplimit.WithKey(httplimit.ByUser(userOf), httplimit.ByHeader("X-Org")),
		httplimit.WithPolicy(httplimit.Policy{Name: "user"}, httplimit.Policy{Name: "org"}),
	)(mux)
	for _, user := range []string{"alice", "alice", "alice", "bob", "bob", "bob", "bob"} {
		visit(h, "203.0.113.9:4711", "X-User: "+user, "X-Org: acme")
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header = http.Header{"X-User": {"carol"}, "X-Org": {"emca"}}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Println(w.Header().Get("RateLimit-Policy"))
	// Output:
	// 200 4 of 5
	// 200 3 of 5
	// 200 2 of 5
	// 200 4 of 5
	// 200 3 of 5
	// 200 2 of 5
	// 429 0 of 6
	// "user";q=5;w=60, "org";q=6;w=3600
}

// Users are limited by name, and everybody else by address.
func ExampleFirst() {
	key := httplimit.First(httplimit.ByUser(userOf), httplimit.ByAddress())
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "203.0.113.9:4711"
	fmt.Println(key(r))
	r.Header.Set("X-User", "alice")
	fmt.Println(key(r))
	// Output:
	// addr:203.0.113.9
	// user:alice
}

// A search costs ten tokens, and a health check is not limited.
func ExampleWithCost() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(100))
	h := httplimit.New(limiter, httplimit.WithCost(func(r *http.Request) int64 {
		switch r.Header.Get("X-Path") {
		case "/search":
			return 10
		case "/healthz":
			return 0
		}
		return 1
	}))(mux)
	visit(h, "203.0.113.9:4711", "X-Path: /users")
	visit(h, "203.0.113.9:4711", "X-Path: /search")
	visit(h, "203.0.113.9:4711", "X-Path: /healthz")
	// Output:
	// 200 99 of 100
	// 200 89 of 100
	// 200
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

// This handler calls the limiter itself, in the middle of its work.
func ExamplePolicy_SetHeaders() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(100))
	policy := httplimit.Policy{Name: "export"}
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
