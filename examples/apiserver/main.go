// Apiserver is an API with limits like GitHub's: 5,000 requests an hour for a user, and 60
// for an address without a user. 304 Not Modified costs nothing. See README.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"html"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/httplimit"
	"github.com/go-reservoir/reservoir/sloglimit"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "apiserver:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends. The order at the end matters, because refunds need the
// limiter, and the limiter needs the store.
func run(ctx context.Context, args []string, out io.Writer) error {
	f := flag.NewFlagSet("apiserver", flag.ContinueOnError)
	addr := f.String("addr", "localhost:8080", "where to listen")
	url := f.String("redis", "", "URL of a Redis server that counts for all processes; none: count in this process")
	var trusted []netip.Prefix
	f.Func("trust", "proxies whose X-Forwarded-For is believed, as in 10.0.0.0/8; may be repeated", func(s string) error {
		proxies, err := netip.ParsePrefix(s)
		trusted = append(trusted, proxies)
		return err
	})
	if err := f.Parse(args); err != nil {
		return err
	}
	var store backend.Store = memstore.New()
	if *url != "" {
		shared, err := redisstore.Open(*url, redisstore.WithPrefix("apiserver:"))
		if err != nil {
			return fmt.Errorf("-redis: %w", err)
		}
		defer shared.Close()
		store = shared
	}
	limiter, err := reservoir.New(store, reservoir.PerHour(60),
		reservoir.WithLimits(func(key string) reservoir.Limit {
			if strings.HasPrefix(key, "user:") {
				return reservoir.PerHour(5000)
			}
			return reservoir.PerHour(60)
		}),
		reservoir.WithHooks(sloglimit.Hooks(slog.Default())), // logs when the store goes away or rejects every call
		reservoir.WithFailLocal(0.1))                         // meanwhile each process admits a tenth of each limit
	if err != nil {
		return err
	}
	err = serve(ctx, *addr, newAPI(limiter, trusted), out)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if lost := limiter.Close(last); lost != nil { // in an outage, for example: no reason to fail
		slog.Warn("tokens stay charged until their windows end", "error", lost)
	}
	return err
}

// serve returns when all requests have ended.
func serve(ctx context.Context, addr string, api http.Handler, out io.Writer) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "listening on http://%s\n", listener.Addr())
	server, stopped := &http.Server{Handler: api, ReadHeaderTimeout: 5 * time.Second}, make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		fmt.Fprintln(out, "stopping")
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		stopped <- server.Shutdown(last)
	})
	if err := server.Serve(listener); stop() { // the server cannot go on
		return err
	}
	return <-stopped
}

// newAPI returns the handler. All but /rate_limit is limited.
func newAPI(limiter *reservoir.Limiter, trusted []netip.Prefix) http.Handler {
	key := httplimit.First(httplimit.ByUser(user), httplimit.ByAddress(trusted...))
	limit := httplimit.New(limiter, httplimit.WithKey(key), httplimit.WithPolicy(httplimit.Policy{Name: "core"}))
	limited, mux := http.NewServeMux(), http.NewServeMux()
	limited.HandleFunc("GET /users/{name}", func(w http.ResponseWriter, r *http.Request) {
		etag := fmt.Sprintf(`"%x"`, crc32.ChecksumIEEE([]byte(r.PathValue("name"))))
		w.Header().Set("ETag", etag)
		switch {
		case r.Header.Get("Authorization") != "" && user(r) == "": // limited, so that guesses are charged to the address
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "Bad credentials", http.StatusUnauthorized)
		case r.Header.Get("If-None-Match") == etag:
			w.WriteHeader(http.StatusNotModified) // a 304 is not charged
		default:
			write(w, map[string]any{"login": r.PathValue("name")})
		}
	})
	limited.HandleFunc("POST /markdown", func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<16))
		if err != nil { // or the client has left, and reads no answer
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			return
		}
		fmt.Fprintf(w, "<p>%s</p>\n", html.EscapeString(string(text)))
	})
	mux.Handle("/", limit(limited))
	mux.HandleFunc("GET /rate_limit", func(w http.ResponseWriter, r *http.Request) { // charges nothing
		result, err := limiter.Check(r.Context(), key(r))
		if err != nil {
			httplimit.Unavailable(w, r, err, nil)
			return
		}
		write(w, map[string]any{"limit": result.Limit, "used": result.Limit - result.Remaining, "remaining": result.Remaining})
	})
	return mux
}

func write(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client may have left
}

// user returns the owner of a valid token, or "". A real server stores hashes of tokens.
func user(r *http.Request) string {
	return map[string]string{"Bearer s3cret": "octocat", "Bearer open-sesame": "alibaba"}[r.Header.Get("Authorization")]
}
