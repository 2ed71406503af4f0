// Apiserver is an API with limits like GitHub's: 5,000 requests an hour for a
// user, 60 for an address without one, 304 Not Modified for nothing. It shows how
// a server is set up around a limiter, and how both stop: first no more
// requests, then the stock goes back to the store.
//
//	go run ./examples/apiserver
//	go run ./examples/apiserver -redis redis://localhost:6379
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
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
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "apiserver:", err)
		os.Exit(1)
	}
}

// patience is how long requests under way may take to end once the server stops.
const patience = 10 * time.Second

// options are what the flags say.
type options struct {
	addr, redis string
	direct      bool
	trusted     []netip.Prefix
}

func parse(args []string, out io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("apiserver", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&o.addr, "addr", "localhost:8080", "where to listen")
	f.StringVar(&o.redis, "redis", "", "URL of a Redis server that counts for all processes; none: count in this process")
	f.BoolVar(&o.direct, "direct", false, "a store call for each request: Remaining is exact")
	f.Func("trust", "proxies whose X-Forwarded-For is believed, as in 10.0.0.0/8,::1/128", func(s string) error {
		for p := range strings.SplitSeq(s, ",") {
			prefix, err := netip.ParsePrefix(p)
			if err != nil {
				return err
			}
			o.trusted = append(o.trusted, prefix)
		}
		return nil
	})
	return o, f.Parse(args)
}

// run serves until ctx ends. The order at the end matters: requests that are
// refunded need the limiter, and the limiter needs the store.
func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	store, closeStore, err := open(o.redis)
	if err != nil {
		return err
	}
	limiter, err := newLimiter(store, o.direct)
	if err != nil {
		return errors.Join(err, closeStore())
	}
	err = serve(ctx, o, limiter, out)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	return errors.Join(err, limiter.Close(last), closeStore())
}

// serve returns when all requests have ended.
func serve(ctx context.Context, o options, limiter *reservoir.Limiter, out io.Writer) error {
	listener, err := net.Listen("tcp", o.addr)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           newAPI(limiter, o.trusted),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
	}
	fmt.Fprintf(out, "listening on http://%s\n", listener.Addr())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended: // it could not go on
		return err
	case <-ctx.Done():
	}
	fmt.Fprintln(out, "stopping")
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	err = server.Shutdown(last)
	<-ended // http.ErrServerClosed
	return err
}

// open returns the store, and what to close after it.
func open(url string) (backend.Store, func() error, error) {
	if url == "" {
		return memstore.New(), func() error { return nil }, nil
	}
	store, err := redisstore.Open(url, redisstore.WithPrefix("apiserver:"))
	if err != nil {
		return nil, nil, err
	}
	return store, store.Close, nil
}
