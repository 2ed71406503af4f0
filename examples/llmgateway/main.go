// Llmgateway stands before a model server and limits what each API key may use: requests
// and tokens per minute, and dollars per day. See README.md.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
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
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "llmgateway:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends. The order at the end matters, because settling running streams
// needs the limiters, and the limiters need the store.
func run(ctx context.Context, args []string, out io.Writer) error {
	f := flag.NewFlagSet("llmgateway", flag.ContinueOnError)
	addr := f.String("addr", "localhost:8080", "where to listen")
	redis := f.String("redis", "", "URL of a Redis server that counts for all processes; none: count in this process")
	model := f.String("model", "", "URL of the model server; none: one that stands in, in this process")
	allowed := f.Int64("model-limit", 6000, "requests a minute that the model server allows to all processes together")
	reserve := f.Uint("reserve", mostOutput, "output tokens to reserve for a stream, if it may have as many; more is charged as it streams")
	if err := f.Parse(args); err != nil {
		return err
	}
	var store backend.Store = memstore.New()
	if *redis != "" {
		shared, err := redisstore.Open(*redis, redisstore.WithPrefix("llm:"))
		if err != nil {
			return fmt.Errorf("-redis: %w", err)
		}
		defer shared.Close()
		store = shared
	}
	b, err := newBudget(store, limits)
	if err != nil {
		return err
	}
	upstream, client, err := toModel(store, *allowed)
	if err != nil {
		return fmt.Errorf("-model-limit: %w", err)
	}
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	if *model == "" {
		*model = "http://" + listener.Addr().String() + "/stand-in"
	}
	if u, err := url.Parse(*model); err != nil || u.Host == "" {
		return errors.New("-model: want a URL with a host")
	}
	mux := http.NewServeMux()
	mux.Handle("POST "+path, &gateway{b, int64(min(*reserve, mostOutput)), *model, client})
	mux.Handle("POST /stand-in"+path, standIn{words: 50, before: func(int64) { time.Sleep(20 * time.Millisecond) }})
	server, failed := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}, make(chan error, 1)
	fmt.Fprintf(out, "listening on http://%s\n", listener.Addr())
	go func() { failed <- server.Serve(listener) }()
	select {
	case err = <-failed: // the server cannot go on
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 40*time.Second)
	defer cancel()
	err = errors.Join(err, server.Shutdown(last))                              // streams end first
	if lost := errors.Join(b.close(last), upstream.Close(last)); lost != nil { // in an outage, for example: no reason to fail
		fmt.Fprintln(out, "tokens stay charged until their windows end:", lost)
	}
	return err
}

// prices has the models that may be called, and accounts the owners of API keys. The
// account is limited; the key goes to no store, log or model.
var (
	prices   = map[string]price{"small": {1, 5}, "large": {3, 15}}
	accounts = map[string]string{"sk-acme": "acme", "sk-zenith": "zenith"}
)

const path, mostOutput = "/v1/chat/completions", 4096 // tokens; also the default

// gateway limits completions and forwards them to a model server.
type gateway struct {
	budget  *budget
	reserve int64  // tokens of output, at most, for a stream
	model   string // the server's URL
	client  *http.Client
}

// toModel returns a client for the model server, which keeps to the limit that the server sets for all processes, and its limiter. If the
// server refuses nevertheless, by 429 with Retry-After, all processes leave it alone until then.
func toModel(store backend.Store, requests int64) (*reservoir.Limiter, *http.Client, error) {
	l, err := reservoir.New(store, reservoir.PerMinute(requests), reservoir.WithName("model"), reservoir.WithFailLocal(0.1))
	return l, &http.Client{Transport: &httplimit.Transport{
		Limiter: l, Key: func(*http.Request) string { return "account" }, // ours at the model server
	}}, err
}

// ServeHTTP charges an estimate, forwards the request, and settles the real use.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := accounts[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	if key == "" {
		fail(w, http.StatusUnauthorized, "authentication_error", "no API key that is known")
		return
	}
	q, err := read(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		fail(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	out := q.most
	if q.stream { // only a stream can be stopped when it needs more
		out = min(out, g.reserve)
	}
	c, err := g.budget.reserve(r.Context(), key, prices[q.model], tokensIn(len(q.body)), out)
	if err != nil {
		httplimit.Unavailable(w, r, err, nil) // also if the estimate is more than the limit, which is the client's fault
		return
	}
	describe(w.Header(), &c.result)
	if !c.result.Allowed {
		fail(w, http.StatusTooManyRequests, "rate_limit_error", "out of "+names[c.result.Limiter]+": Retry-After says in how many seconds there will be more")
		return
	}
	defer func() { _ = c.settle(r.Context()) }() // also if the client leaves or the stream breaks
	g.forward(w, r, q, c)
}

// describe sets the headers: lists with all limits, and the X-RateLimit headers of the limit that
// refused or else of requests, which is set last.
func describe(h http.Header, r *reservoir.GroupResult) {
	last := 0
	if !r.Allowed {
		last = r.Limiter
	}
	for i := len(names) - 1; i >= 0; i-- {
		if i != last {
			httplimit.Policy{Name: names[i]}.SetHeaders(h, r.Of(i))
		}
	}
	httplimit.Policy{Name: names[last]}.SetHeaders(h, r.Of(last))
}

// forward sends the request to the model server and records its use in c.
func (g *gateway) forward(w http.ResponseWriter, r *http.Request, q request, c *charge) {
	sent := false // to the model server; before, it waits in line
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GetConn: func(string) { sent = true }})
	up, _ := http.NewRequestWithContext(ctx, http.MethodPost, g.model+r.URL.Path, bytes.NewReader(q.body)) // run has checked the URL
	up.Header = http.Header{"Content-Type": {"application/json"}}                                          // and a key of our own
	resp, err := g.client.Do(up)
	if err == nil && resp.StatusCode != http.StatusOK || err != nil && (!sent || r.Context().Err() == nil) {
		c.in = 0 // an error costs nothing; but if the client has left since, the model may have read the input
	}
	if err != nil {
		fail(w, http.StatusBadGateway, "server_error", "the model server does not answer")
		return
	}
	defer resp.Body.Close() // stops the model server if it has more to send
	w.Header()["Content-Type"], w.Header()["Retry-After"] = resp.Header["Content-Type"], resp.Header["Retry-After"]
	w.WriteHeader(resp.StatusCode)
	if q.copy(r.Context(), w, resp.Body, c) != nil {
		panic(http.ErrAbortHandler) // the client must see that this is not all
	}
}

// fail answers in the API's form.
func fail(w http.ResponseWriter, status int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": message, "type": kind, "param": nil, "code": nil}})
}
