package docs_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/httplimit"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// The code of README.md and of the guides that no package has in an Example.

func readme(ctx context.Context) error {
	store, err := redisstore.Open(os.Getenv("REDIS_URL")) // redis://user:password@host:6379
	if err != nil {
		return err
	}
	defer store.Close()
	limiter, err := reservoir.New(store, reservoir.PerMinute(60_000))
	if err != nil {
		return err
	}
	defer limiter.Close(ctx) // returns unused tokens to Redis

	r, err := limiter.Allow(ctx, "user:42") // r.Allowed or, if refused, r.RetryAfter and r.Reset
	if err == nil {
		fmt.Println(r.Allowed, r.Limit)
	}
	return err
}

func Example_readme() {
	addr, stop := redistest.StartExample()
	defer stop()
	os.Setenv("REDIS_URL", "redis://"+addr)
	for readme(context.Background()) != nil { // a machine that runs examples may be slow
	}
	// Output: true 60000
}

func Example_readmeHTTP() {
	limiter, err := reservoir.New(memstore.New(), reservoir.PerMinute(1))
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	limit := httplimit.New(limiter) // 429 with Retry-After; X-RateLimit and RateLimit headers
	server := &http.Server{Addr: ":8080", Handler: limit(mux)}
	for range 2 {
		w := httptest.NewRecorder()
		server.Handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/hello", nil))
		fmt.Println(w.Code)
	}
	// Output:
	// 200
	// 429
}
