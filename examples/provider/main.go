// Provider sends requests of 50 workers in three processes to a stub of a model provider, which limits requests and tokens
// a minute for all of them, and halves its limits without notice. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/httplimit"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "provider:", err)
		os.Exit(1)
	}
}

// requests and tokens are the limits that the provider has told us, a minute.
const requests, tokens = 1200, 120_000

const workers, processes = 50, 3

// run lets the workers send for four minutes of the given length. The provider halves its limits after two.
func run(ctx context.Context, args []string, out io.Writer) (err error) {
	f := flag.NewFlagSet("provider", flag.ContinueOnError)
	redis := f.String("redis", "", "URL of a Redis server that the processes share; none: a store in memory")
	minute := f.Duration("minute", 5*time.Second, "how long a minute takes")
	if err := f.Parse(args); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return err
	}
	api := &provider{requests: requests, tokens: tokens, minute: *minute}
	server := &http.Server{Handler: api}
	go server.Serve(listener)
	defer server.Close()

	var all []*process
	var store backend.Store = memstore.New()
	for range processes {
		if *redis != "" { // each has a connection of its own
			own, err := redisstore.Open(*redis, redisstore.WithPrefix("provider:"))
			if err != nil {
				return fmt.Errorf("-redis: %w", err)
			}
			defer own.Close()
			store = own
		}
		p, err := join(store, *minute, new(http.Transport))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.close()) }()
		all = append(all, p)
	}
	defer time.AfterFunc(2**minute, api.halve).Stop()
	ctx, cancel := context.WithTimeout(ctx, 4**minute)
	defer cancel()
	err = work(ctx, all, "http://"+listener.Addr().String())
	for i, m := range api.all() {
		fmt.Fprintf(out, "minute %d: %d requests and %d tokens served, %d requests refused; allowed %d and %d\n",
			i+1, m.requests, m.tokens, m.refused, m.most.requests, m.most.tokens)
	}
	return err
}

// work lets all workers send requests until ctx ends.
func work(ctx context.Context, all []*process, url string) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range workers {
		g.Go(func() error {
			for {
				err := all[i%len(all)].call(ctx, url, 20+rand.Int64N(160))
				if errors.Is(err, reservoir.ErrDeadline) || ctx.Err() != nil {
					return nil
				}
				if err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// process is what each process has: two limiters, and a client that asks both.
type process struct {
	limiters [2]*reservoir.Limiter
	client   *http.Client
}

// join makes a process that shares the limits with all others on store, and sends by rt. One Transport in another keeps both limits.
func join(store backend.Store, minute time.Duration, rt http.RoundTripper) (p *process, err error) {
	p = new(process)
	for i, of := range []struct {
		name    string
		limit   int64
		cost    func(*http.Request) int64
		retries int
	}{
		{"requests", requests, nil, 0},
		{"tokens", tokens, estimate, 5}, // the outer one sends again
	} {
		limit := reservoir.Limit{Tokens: of.limit, Window: minute}
		if p.limiters[i], err = reservoir.New(store, limit, reservoir.WithName(of.name), reservoir.WithFetchTimeout(5*time.Second)); err != nil {
			return nil, err
		}
		rt = &httplimit.Transport{
			Limiter: p.limiters[i], Cost: of.cost, Base: rt, Retries: of.retries,
			Key: func(*http.Request) string { return "account" }, // whose limit it is
		}
	}
	p.client = &http.Client{Transport: rt}
	return p, nil
}

// estimate is how many tokens a request needs, as the provider counts.
func estimate(r *http.Request) int64 {
	n, _ := strconv.ParseInt(r.Header.Get("X-Tokens"), 10, 64)
	return n
}

// call sends a request that needs so many tokens. It fails when ctx ends, and at once if its turn would come later.
func (p *process) call(ctx context.Context, url string, tokens int64) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r.Header.Set("X-Tokens", strconv.FormatInt(tokens, 10))
	resp, err := p.client.Do(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

func (p *process) close() error {
	p.client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(p.limiters[0].Close(ctx), p.limiters[1].Close(ctx))
}

// provider is the stub: it counts in fixed minutes, and tells whom it refuses when the next one begins.
type provider struct {
	minute time.Duration

	mu               sync.Mutex
	requests, tokens int64 // its limits
	ends             time.Time
	minutes          []served
}

type served struct {
	requests, tokens, refused int64
	most                      struct{ requests, tokens int64 } // the limits at its end
}

func (p *provider) halve() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests, p.tokens = p.requests/2, p.tokens/2
}

func (p *provider) all() []served {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.minutes
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if !now.Before(p.ends) {
		p.ends = now.Add(p.minute)
		p.minutes = append(p.minutes, served{})
	}
	m, n := &p.minutes[len(p.minutes)-1], estimate(r)
	m.most.requests, m.most.tokens = p.requests, p.tokens
	if m.requests+1 > p.requests || m.tokens+n > p.tokens {
		m.refused++
		w.Header().Set("X-RateLimit-Remaining-Tokens", "0")
		w.Header().Set("X-RateLimit-Reset-Tokens", p.ends.Sub(now).String())
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	m.requests, m.tokens = m.requests+1, m.tokens+n
}
