// Llmgateway stands before a model server and limits what each API key may use: requests
// and tokens per minute, and dollars per day. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
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
	window := f.Duration("window", time.Minute, "the window of requests and tokens")
	requests := f.Int64("requests", 60, "requests per window and API key")
	tokens := f.Int64("tokens", 20_000, "tokens per window and API key, input and output")
	dollars := f.Int64("dollars", 1_000_000, "millionths of a dollar per day and API key")
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
	if *model == "" {
		listener, err := net.Listen("tcp", "localhost:0")
		if err != nil {
			return err
		}
		server := &http.Server{Handler: standIn{words: 50, before: func(int64) { time.Sleep(20 * time.Millisecond) }}}
		go func() { _ = server.Serve(listener) }()
		defer server.Close()
		*model = "http://" + listener.Addr().String()
	}
	if u, err := url.Parse(*model); err != nil || u.Host == "" {
		return errors.New("-model: want a URL with a host")
	}
	b, err := newBudget(store, reservoir.Limit{Tokens: *requests, Window: *window},
		reservoir.Limit{Tokens: *tokens, Window: *window}, reservoir.PerDay(*dollars, nil))
	if err != nil {
		return err
	}
	g := &gateway{b, int64(min(*reserve, mostOutput)), strings.TrimSuffix(*model, "/")}
	err = serve(ctx, *addr, g.handler(), out)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err = errors.Join(err, b.close(last))
	for i, l := range b.limiters {
		s := l.Stats()
		fmt.Fprintf(out, "%s: %d used, %d overdrawn, %d store calls\n", names[i], s.Spent-s.Refunded, s.Overdrawn, s.StoreCalls)
	}
	return err
}

// serve returns when all streams have ended, which may take half a minute.
func serve(ctx context.Context, addr string, h http.Handler, out io.Writer) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "listening on http://%s\n", listener.Addr())
	server, failed := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}, make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed: // the server cannot go on
		return err
	case <-ctx.Done():
	}
	fmt.Fprintln(out, "stopping")
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return server.Shutdown(last)
}
