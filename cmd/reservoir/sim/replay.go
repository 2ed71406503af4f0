package sim

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/placement"
)

// Setting says how a [Replay] runs: the limit, the network and the randomness.
type Setting struct {
	Limit reservoir.Limit // of windows: the book has none to count what a rolling limit leaves unspent
	Delay time.Duration   // round trip of a call, less than a fetch timeout
	Seed  uint64

	// Travel returns the time of one way of a call that starts now, for fleets in which
	// every event has its own instant; nil = half of the Delay. It must be safe for
	// concurrent use.
	Travel func(process int, now time.Duration, back bool) time.Duration
}

// Replay makes the requests of a traffic under one policy, once, on a virtual clock. Set its
// exported fields and call Run. The store is in memory, and should hold nothing for the
// traffic's keys.
//
// The clock stands still while anything runs and jumps to the next timer when everything
// waits. Calls take the Delay, and answers from memory take no time. One thread runs, and
// randomness follows the Seed, so only one replay may run at a time.
type Replay struct {
	Traffic
	Setting
	Policy Policy
	Store  backend.Store

	limiters []*reservoir.Limiter
	book     *book
	begin    time.Time
	active   sync.WaitGroup
	closing  atomic.Bool
}

// Run makes the requests and returns the outcome, or the error of ctx if that ends first.
// It also fails if a request failed, if more was admitted than the limit, and if the
// counts of the limiters and of their callers disagree.
//
// A real Limiter uses the runtime's clock. Only synctest.Test makes that virtual, because
// the linker lets no other package use internal/synctest. Test needs a T, and a zero T is
// enough; if a later Go needs more, the tests fail. Package testing adds no flags.
func (r *Replay) Run(ctx context.Context) (o Outcome, err error) {
	defer chance.Seed(r.Seed)() // so that the same traffic has the same outcome
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(new(testing.T), func(*testing.T) { o, err = r.run(ctx) })
	return o, err
}

func (r *Replay) run(ctx context.Context) (Outcome, error) {
	r.book = newBook(r.Traffic, r.Limit.Tokens)
	for i := range r.Processes {
		l, err := reservoir.New(r.way(i).store(), r.Limit, r.Policy.Option, reservoir.WithMaxKeys(max(1<<20, len(r.Keys))))
		if err != nil {
			return Outcome{}, err
		}
		r.limiters = append(r.limiters, l)
	}
	r.begin = time.Now()
	r.lead(ctx)
	r.active.Wait()
	o := r.book.outcome()
	o.Policy = r.Policy.Name
	spent, err := r.close()
	switch {
	case ctx.Err() != nil:
		return Outcome{}, ctx.Err()
	case o.Errors > 0: // nothing disturbs virtual time
		err = fmt.Errorf("%d of %d requests failed, the first with: %w", o.Errors, o.Requests, r.book.failure)
	case err == nil && spent != o.Admitted*r.Tokens:
		err = fmt.Errorf("the limiters spent %d tokens, but their callers got %d", spent, o.Admitted*r.Tokens)
	case err == nil && o.Over > 0:
		err = fmt.Errorf("%d tokens were admitted over the limit", o.Over)
	}
	return o, err
}

// close closes the limiters and returns what they spent.
func (r *Replay) close() (spent int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // for all processes together
	defer cancel()
	r.closing.Store(true)
	for _, l := range r.limiters {
		err = cmp.Or(err, l.Close(ctx)) // one is enough to report
		s := l.Stats()
		spent += s.Spent - s.Refunded // a direct call that came too late was refunded
	}
	return spent, err
}

// lead starts each request at its time, until all are started or ctx ends.
func (r *Replay) lead(ctx context.Context) {
	for _, q := range r.Requests {
		time.Sleep(time.Until(r.begin.Add(q.At)))
		if ctx.Err() != nil {
			return
		}
		r.active.Go(func() { r.request(q) })
	}
}

// request makes a request, which the fetch timeout bounds.
func (r *Replay) request(q Request) {
	begin := time.Now()
	result, err := r.limiters[q.Process].AllowN(context.Background(), r.Keys[q.Key], r.Tokens)
	r.book.answer(q, result, err, time.Since(begin), begin.Sub(r.begin)-q.At)
}

// way is one process's way to the store: a network with a delay.
type way struct {
	backend.Store // other methods take no time, because no decision waits for them
	replay        *Replay
	process       int
}

func (r *Replay) way(process int) *way {
	return &way{Store: r.Store, replay: r, process: process}
}

// travel is half of a call. It counts the call on its way there.
func (w *way) travel(ctx context.Context, back bool) error {
	if !back {
		w.replay.book.call()
	}
	time.Sleep(w.takes(back)) // within the fetch timeout
	return ctx.Err()
}

// takes is how long half of a call travels now. Calls of Close take no time, because no
// caller waits for them.
func (w *way) takes(back bool) time.Duration {
	r := w.replay
	switch {
	case r.closing.Load():
		return 0
	case r.Travel != nil:
		return r.Travel(w.process, time.Since(r.begin), back)
	}
	return r.Delay / 2
}

func (w *way) Sync(ctx context.Context, q backend.Statement) (reply backend.Reply, err error) {
	if q.Client != "" {
		q.Client = w.named(q.Client)
	}
	if err := w.travel(ctx, false); err != nil { // the store has not executed it
		return reply, &backend.Error{Op: "sync", Class: backend.Unavailable, Err: err}
	}
	if reply, err = w.Store.Sync(ctx, q); err != nil {
		return reply, err
	}
	if err := w.travel(ctx, true); err != nil {
		return backend.Reply{}, &backend.Error{Op: "sync", Class: backend.Unknown, Err: err}
	}
	return reply, nil
}

// Shard returns the shard of a key, because limiters estimate their lead time by shard.
func (w *way) Shard(key string) string { return placement.Shard(w.Store, key) }

// store returns the way as the store that a limiter sees.
func (w *way) store() backend.Store {
	if l, ok := w.Store.(backend.Listener); ok {
		return &heard{w, l}
	}
	return w
}

// named returns a client's name. The number of the process replaces the random part, because
// the store chooses among clients by name.
func (w *way) named(client string) string {
	return fmt.Sprintf("%06d%s", w.process, client[len(backend.Process(client)):])
}

// heard is a way on which messages of the store come too, as fast as a reply.
type heard struct {
	*way
	backend.Listener
}

func (h *heard) Listen(process string, hear func(backend.Message)) backend.Subscription {
	apart := time.Duration(h.process) // timers that are due at one instant run in any order
	return h.Listener.Listen(h.named(process), func(m backend.Message) {
		time.AfterFunc(h.takes(true)+apart, func() { hear(m) })
	})
}
