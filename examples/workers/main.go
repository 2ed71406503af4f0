// Workers sends requests to somebody else's API, from several workers in any
// number of processes, and stays within its limit: each request waits for its
// token, so that none has to be refused.
//
//	seq 1000 | go run ./examples/workers -api http://localhost:9000/items/
//	seq 1000 | go run ./examples/workers -api http://localhost:9000/items/ -redis redis://localhost:6379 -processes 2
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
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
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "workers:", err)
		os.Exit(1)
	}
}

// options are what the flags say.
type options struct {
	api, redis         string
	limit              reservoir.Limit // theirs
	workers, processes int64
	patience           time.Duration
}

func parse(args []string, out io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("workers", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&o.api, "api", "http://localhost:9000/", "what each line of the input is appended to")
	f.StringVar(&o.redis, "redis", "", "URL of a Redis server that counts for all processes; none: count in this process")
	f.Int64Var(&o.limit.Tokens, "limit", 5000, "requests that the API allows per window")
	f.DurationVar(&o.limit.Window, "window", time.Hour, "the window")
	f.Int64Var(&o.workers, "workers", 8, "requests under way at a time")
	f.Int64Var(&o.processes, "processes", 1, "how many processes like this one there are at most")
	f.DurationVar(&o.patience, "patience", 10*time.Second, "how long work under way may take to end after a signal")
	return o, f.Parse(args)
}

// within returns a limit for us that keeps theirs however they count: by windows
// that begin when they like, or over the last hour at any moment. A stretch of
// their window's length meets at most parts+1 of our windows; with the tokens of
// these, only what was under way when it began can arrive in it.
func within(theirs reservoir.Limit, underWay int64) reservoir.Limit {
	const parts = 10
	return reservoir.Limit{
		Tokens: (theirs.Tokens - underWay) / (parts + 1),
		Window: (theirs.Window/parts + time.Millisecond - 1).Truncate(time.Millisecond),
	}
}

// run works until there is no more to do or ctx ends. The order at the end
// matters: work under way may still wait for tokens, and the limiter hands back
// through the store what nobody waited for.
func run(ctx context.Context, args []string, in io.Reader, out, log io.Writer) error {
	o, err := parse(args, log)
	if err != nil {
		return err
	}
	store, closeStore, err := open(o.redis)
	if err != nil {
		return err
	}
	limiter, err := reservoir.New(store, within(o.limit, o.workers*o.processes),
		reservoir.WithFetchTimeout(5*time.Second)) // a job can wait for a slow store, too
	if err != nil {
		return errors.Join(err, closeStore())
	}
	defer context.AfterFunc(ctx, func() { fmt.Fprintln(log, "stopping") })()
	pool := newPool(o, limiter, out)
	jobs, ended := intake(ctx, in)
	err = pool.work(ctx, jobs) // returns when no worker works
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.patience)
	defer cancel()
	err = errors.Join(err, unread(ended), limiter.Close(last), closeStore())
	s := limiter.Stats()
	fmt.Fprintf(log, "%d requests, %d store calls, %d tokens handed back\n", s.Spent, s.StoreCalls, s.Returned)
	return err
}

// open returns the store, and what to close after it.
func open(url string) (backend.Store, func() error, error) {
	if url == "" {
		return memstore.New(), func() error { return nil }, nil
	}
	store, err := redisstore.Open(url, redisstore.WithPrefix("workers:"))
	if err != nil {
		return nil, nil, err
	}
	return store, store.Close, nil
}
