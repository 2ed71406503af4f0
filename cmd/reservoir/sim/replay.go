package sim

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/placement"
)

// Setting is what a traffic is replayed on.
type Setting struct {
	Limit reservoir.Limit
	Delay time.Duration // there and back, of a call on the virtual clock

	// Virtual runs f on a virtual clock, for the embedded store only; nil = the real
	// one. The clock stands still while anything runs and leaps to the next timer when
	// everything waits. Answers from memory take no time there, and calls take the Delay,
	// which is less than a fetch timeout. The limiters' own
	// randomness follows the Seed, and one thread runs: one such replay at a time.
	Virtual func(f func())
	Seed    uint64

	// Travel is how long half of a call takes that is under way now, for fleets whose every
	// event has an instant of its own; nil = half of the Delay. It is safe for concurrent use.
	Travel func(process int, now time.Duration, back bool) time.Duration
}

// Replay makes the requests of a traffic under one policy, once.
type Replay struct {
	Traffic
	Setting
	policy   Policy
	store    backend.Store
	limiters []*reservoir.Limiter
	book     *book

	begin   time.Time
	made    atomic.Int64 // of the requests
	active  sync.WaitGroup
	closing atomic.Bool
}

// NewReplay sets up a replay on store, which should hold nothing of the traffic's
// keys, or on an embedded store of its own if that is nil. It does no I/O.
func NewReplay(t Traffic, p Policy, s Setting, store backend.Store) *Replay {
	t.Tokens = max(t.Tokens, 1)
	return &Replay{Traffic: t, Setting: s, policy: p, store: store, book: newBook(t, s.Limit.Tokens, 50)}
}

// connect makes a limiter for each process, and its way to the store.
func (r *Replay) connect() error {
	if r.store == nil {
		r.store = memstore.New()
	}
	for i := range r.Processes {
		l, err := reservoir.New(r.way(i), r.Limit, r.policy.Option, reservoir.WithMaxKeys(max(1<<20, len(r.Keys))))
		if err != nil {
			return err
		}
		r.limiters = append(r.limiters, l)
	}
	return nil
}

// way is that of one process. Nobody waits for what is handed back at the end.
func (r *Replay) way(process int) *way {
	return &way{Store: r.store, book: r.book, known: make(map[string]account), travel: func(ctx context.Context, back bool) error {
		now, d := r.at(time.Now()), r.Delay/2
		if !back {
			r.book.call(now)
		}
		switch {
		case r.Virtual == nil: // the network is a real one
			return nil
		case r.closing.Load():
			d = 0
		case r.Travel != nil:
			d = r.Travel(process, now, back)
		}
		time.Sleep(d) // within the fetch timeout
		return ctx.Err()
	}}
}

// Made is how many requests have been made so far. It may be called at any time.
func (r *Replay) Made() int64 { return r.made.Load() }

// Run makes the requests and returns what came of them, or the error of ctx if
// that ends first. It is also an error if the counts of the limiters and of their
// callers disagree, for then none of them can be trusted.
func (r *Replay) Run(ctx context.Context) (o Outcome, err error) {
	if r.Virtual == nil {
		return r.run(ctx)
	}
	defer chance.Seed(r.Seed)() // or the same traffic would not have the same outcome
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r.Virtual(func() { o, err = r.run(ctx) })
	return o, err
}

func (r *Replay) run(ctx context.Context) (Outcome, error) {
	if err := r.connect(); err != nil {
		return Outcome{}, err
	}
	r.begin = time.Now()
	r.lead(ctx)
	r.active.Wait()
	stats, err := r.close()
	if e := ctx.Err(); e != nil {
		return Outcome{}, e
	}
	o := r.book.outcome()
	o.Policy, o.Kind = r.policy.Name, r.policy.Kind
	o.StoreCalls, o.CallsPerRequest = stats.StoreCalls, Ratio(stats.StoreCalls, o.Requests)
	switch {
	case o.Errors > 0 && o.Errors == o.Requests:
		return o, fmt.Errorf("every request failed, the first with: %w", r.book.failure)
	case err != nil:
		return o, err
	case stats.Spent != o.Admitted*r.Tokens:
		return o, fmt.Errorf("the limiters spent %d tokens, their callers had %d", stats.Spent, o.Admitted*r.Tokens)
	}
	return o, nil
}

// closeTimeout bounds the handing back of stock, over all processes.
const closeTimeout = 30 * time.Second

// close closes the limiters and sums up what they counted. Store calls are those
// before.
func (r *Replay) close() (reservoir.Stats, error) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var sum reservoir.Stats
	for _, l := range r.limiters {
		sum.StoreCalls += l.Stats().StoreCalls
	}
	r.closing.Store(true)
	var errs []error
	for _, l := range r.limiters {
		errs = append(errs, l.Close(ctx))
		s := l.Stats()
		sum.Spent += s.Spent
		if s.Taken+s.Refunded != s.Spent+s.Returned+s.Expired+s.Held {
			errs = append(errs, fmt.Errorf("a limiter's tokens do not balance: %+v", s))
		}
	}
	return sum, errors.Join(errs...)
}

// underWay is how many requests may be under way on the real clock: a machine that is too
// slow for the traffic shall be late, and not time out.
const underWay = 100

// lead begins the requests, each at its time, until there are none or ctx ends.
func (r *Replay) lead(ctx context.Context) {
	slots := make(chan struct{}, underWay)
	for i, q := range r.Requests {
		if r.until(ctx, r.begin.Add(q.At)) != nil {
			return
		}
		r.made.Store(int64(i + 1))
		if r.Virtual != nil {
			r.active.Go(func() { r.request(q) })
			continue
		}
		slots <- struct{}{}
		r.active.Go(func() { r.request(q); <-slots })
	}
}

// until waits for an instant. On the virtual clock it cannot wait for ctx, which is
// from outside; nor does it need to, for no time passes there.
func (r *Replay) until(ctx context.Context, at time.Time) error {
	if r.Virtual != nil {
		time.Sleep(time.Until(at))
	} else if d := time.Until(at); d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// request makes a request, which the fetch timeout bounds.
func (r *Replay) request(q Request) {
	begin := time.Now()
	result, err := r.limiters[q.Process].AllowN(context.Background(), r.Keys[q.Key], r.Tokens)
	r.book.answer(q, result, err, time.Since(begin), r.at(begin)-q.At)
}

// at is the traffic's time at an instant.
func (r *Replay) at(at time.Time) time.Duration { return at.Sub(r.begin) }

// way is one process' way to the store: a network that takes its time, and a ledger of
// what the process holds. The book is told of grants as the process hears of them: what
// is still on its way is in nobody's hands.
type way struct {
	backend.Store // what no limiter asks for while it decides takes no time
	book          *book
	travel        func(ctx context.Context, back bool) error // half of a call; counts it on its way there
	known         map[string]account                         // by key, of the window last heard of; guarded by the book
}

// account is what a process holds or has spent of a window, by the store's ledger.
type account struct {
	client string
	window backend.Window
	net    int64
}

// call makes one call. If ctx ends on the way there it was surely not carried out.
func call[R, T any](ctx context.Context, w *way, op string, f func(context.Context, R) (T, error), r R) (answer T, err error) {
	if err := w.travel(ctx, false); err != nil {
		return answer, &backend.Error{Op: op, Class: backend.Unavailable, Err: err}
	}
	if answer, err = f(ctx, r); err != nil {
		return answer, err
	}
	if err := w.travel(ctx, true); err != nil {
		var none T
		return none, &backend.Error{Op: op, Class: backend.Unknown, Err: err}
	}
	return answer, nil
}

// Sync implements backend.Store.
func (w *way) Sync(ctx context.Context, q backend.SyncRequest) (backend.SyncReply, error) {
	reply, err := call(ctx, w, "sync", w.Store.Sync, q)
	if err == nil {
		w.book.hear(w, q, reply)
	}
	return reply, err
}

// Take implements backend.Store.
func (w *way) Take(ctx context.Context, q backend.TakeRequest) (backend.TakeReply, error) {
	return call(ctx, w, "take", w.Store.Take, q)
}

// Refund implements backend.Store.
func (w *way) Refund(ctx context.Context, q backend.RefundRequest) (int64, error) {
	return call(ctx, w, "refund", w.Store.Refund, q)
}

// Shard names the shard of a key, for limiters estimate their lead time by shard.
func (w *way) Shard(key string) string { return placement.Shard(w.Store, key) }
