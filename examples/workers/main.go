// Workers sends requests to somebody else's API from several workers and processes, and
// stays within its limit, because each request waits for its token. See README.md.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
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
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "workers:", err)
		os.Exit(1)
	}
}

// run works until no job is left or ctx ends, and stops in README.md's order.
func run(ctx context.Context, args []string, in io.Reader, out, log io.Writer) error {
	f := flag.NewFlagSet("workers", flag.ContinueOnError)
	api := f.String("api", "", "URL that each line of the input is appended to; none: an API that answers 200 to everything")
	url := f.String("redis", "", "URL of a Redis server that counts for all processes; none: count in this process")
	tokens := f.Int64("limit", 5000, "requests that the API allows per window")
	window := f.Duration("window", time.Hour, "the window")
	workers := f.Int64("workers", 8, "requests under way at a time")
	processes := f.Int64("processes", 1, "how many processes like this one there are at most")
	patience := f.Duration("patience", 10*time.Second, "how long work under way may take to end after a signal")
	if err := f.Parse(args); err != nil {
		return err
	}
	var store backend.Store = memstore.New()
	if *url != "" {
		shared, err := redisstore.Open(*url, redisstore.WithPrefix("workers:"))
		if err != nil {
			return fmt.Errorf("-redis: %w", err)
		}
		defer shared.Close()
		store = shared
	}
	limiter, err := reservoir.New(store, within(*tokens-*workers**processes, *window),
		reservoir.WithFetchTimeout(5*time.Second)) // a job can wait for a slow store
	if err != nil {
		return err
	}
	if *api == "" {
		listener, err := net.Listen("tcp", "localhost:0")
		if err != nil {
			return err
		}
		defer listener.Close()
		go http.Serve(listener, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		*api = fmt.Sprintf("http://%s/", listener.Addr())
	}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost, base.ResponseHeaderTimeout = int(*workers), 10*time.Second // a Client's Timeout would include the wait for tokens
	client := &http.Client{Transport: &httplimit.Transport{
		Key:     func(*http.Request) string { return "api" }, // the account whose limit it is
		Limiter: limiter, Base: base,
	}}
	last, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		fmt.Fprintln(log, "stopping")
		time.AfterFunc(*patience, cancel)
	})()
	err = work(ctx, in, out, *workers, func(job string) error {
		r, err := http.NewRequestWithContext(last, http.MethodGet, *api+job, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(r) // waits for a token first
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err = io.Copy(io.Discard, resp.Body); err == nil && resp.StatusCode != http.StatusOK { // the work would be here
			err = errors.New(resp.Status)
		}
		return err
	})
	base.CloseIdleConnections()
	closing, done := context.WithTimeout(context.WithoutCancel(ctx), *patience)
	defer done()
	err = errors.Join(err, limiter.Close(closing))
	s := limiter.Stats()
	fmt.Fprintf(log, "%d requests, %d store calls, %d tokens handed back\n", s.Spent, s.StoreCalls, s.Returned)
	return err
}

// within returns our limit, which keeps the API's however the API counts. See README.md.
func within(tokens int64, window time.Duration) reservoir.Limit {
	return reservoir.Limit{Tokens: tokens / 11, Window: (window/10 + time.Millisecond - 1).Truncate(time.Millisecond)}
}

// work does a job for each line, until ctx ends, and reports how each job ended.
func work(ctx context.Context, in io.Reader, out io.Writer, workers int64, do func(job string) error) error {
	jobs, fails := make(chan string), 0
	signal := ctx // it ends before its children
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		lines := bufio.NewScanner(in)
		for lines.Scan() {
			select {
			case jobs <- lines.Text(): // when a worker is free
			case <-ctx.Done():
			}
		}
		end(lines.Err())
	}()
	var all sync.WaitGroup
	var mu sync.Mutex // guards out and fails
	for range workers {
		all.Go(func() {
			for signal.Err() == nil && ctx.Err() == nil {
				select {
				case <-ctx.Done():
				case job := <-jobs:
					err := do(job)
					mu.Lock()
					if err == nil {
						fmt.Fprintln(out, "done", job)
					} else {
						fmt.Fprintln(out, "failed", job, err)
						fails++
					}
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("cannot read all jobs: %w", err)
	}
	if fails > 0 {
		return fmt.Errorf("%d jobs not done", fails)
	}
	return nil
}
