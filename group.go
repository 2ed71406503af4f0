package reservoir

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Group is several limits that a request must pass together, such as one per
// user, one per organisation and one for all: it is charged to all of them or to
// none. Make it with NewGroup. It is safe for concurrent use, and needs no closing;
// its limiters do.
type Group struct {
	limiters []*Limiter
}

// NewGroup returns the group of limiters. Put the one that refuses most first: on
// the way to the store they are asked at the same time, but in memory in order.
// It does no I/O; calls of a group of no limiters are errors.
func NewGroup(limiters ...*Limiter) *Group { return &Group{limiters: limiters} }

// GroupResult is the answer to one request of a Group.
type GroupResult struct {
	// Result is that of the limit that refused or, when all allowed, of the one
	// with the smallest part of its limit remaining: what to tell the client.
	Result

	// Limiter is the index of the limiter that Result is of.
	Limiter int

	few  [4]Result // of all limits, when allowed, for Refund
	many []Result  // the same where there are more
}

func (r *GroupResult) results(n int) []Result {
	if n <= len(r.few) {
		return r.few[:n]
	}
	if r.many == nil {
		r.many = make([]Result, n)
	}
	return r.many
}

// Allow is AllowN for one token.
func (g *Group) Allow(ctx context.Context, keys ...string) (GroupResult, error) {
	return g.AllowN(ctx, 1, keys...)
}

// AllowN asks for n tokens from every limiter of the group, for its key of keys.
// If one of them refuses, none is charged: a refusal that is known in memory is
// found before anything is spent, and what others have spent meanwhile goes back
// as by Refund. With stock at hand for all it costs no store call and no
// allocation; where several must ask the store they do so at once, so that a
// caller waits for one round trip. Errors are those of Limiter.AllowN, and
// ErrOption when keys do not match the limiters; after an error too none is charged.
func (g *Group) AllowN(ctx context.Context, n int64, keys ...string) (r GroupResult, err error) {
	if len(keys) != len(g.limiters) || len(keys) == 0 {
		return r, fmt.Errorf("%w: %d keys for a group of %d limiters", ErrOption, len(keys), len(g.limiters))
	}
	if err := ctx.Err(); err != nil {
		return r, err
	}
	for i, l := range g.limiters {
		if l.refuses(&r.Result, keys[i], n) {
			r.Limiter = i
			return r, nil
		}
	}
	results := r.results(len(keys))
	for i, l := range g.limiters {
		if node := l.keys.Get(keys[i]); node == nil || n < 1 || !node.State.try(&results[i], n) {
			return g.ask(ctx, n, r, keys)
		}
		if !results[i].Allowed {
			return g.undo(ctx, i, r, keys), nil
		}
	}
	return r.settle(results), nil
}

// settle makes the answer of a group that allowed.
func (r GroupResult) settle(results []Result) GroupResult {
	least := 2.0
	for i := range results {
		if part := float64(results[i].Remaining) / float64(results[i].Limit); part < least {
			least, r.Limiter = part, i
		}
	}
	r.Result = results[r.Limiter]
	return r
}

// refuses reports, before anything is spent, that key is known to be exhausted.
func (l *Limiter) refuses(r *Result, key string, n int64) bool {
	node := l.keys.Get(key)
	if node == nil {
		return false
	}
	k := &node.State
	w, now := k.lease.Load(), l.clock.Now()
	if !w.Alive(now) || w.Stock() >= n || n > k.limit().Tokens || !w.Denies(n, now) {
		return false
	}
	k.denied.Add(1)
	r.refuse(k, w, now, Denied)
	return true
}

// ask goes the long way for the limits that have not answered from memory yet, all
// at the same time.
func (g *Group) ask(ctx context.Context, n int64, r GroupResult, keys []string) (GroupResult, error) {
	results, errs := r.results(len(keys)), make([]error, len(keys))
	var wg sync.WaitGroup
	for i, l := range g.limiters {
		if !results[i].Allowed {
			key := keys[i]
			wg.Go(func() { results[i], _, errs[i] = l.acquire(ctx, key, n, false) })
		}
	}
	wg.Wait()
	for i := range results {
		if errs[i] != nil {
			g.undo(ctx, i, r, keys)
			return GroupResult{}, errs[i]
		}
	}
	for i := range results {
		if !results[i].Allowed {
			return g.undo(ctx, i, r, keys), nil
		}
	}
	return r.settle(results), nil
}

// undo takes back what the others have charged when limit i has refused or failed.
// It is not hurried by the end of ctx: that would leave tokens charged.
func (g *Group) undo(ctx context.Context, i int, r GroupResult, keys []string) GroupResult {
	ctx = context.WithoutCancel(ctx)
	results := r.results(len(keys))
	for j, l := range g.limiters {
		if j != i && results[j].Allowed {
			_ = l.Refund(ctx, keys[j], results[j]) // a failure is counted in its Stats
		}
	}
	return GroupResult{Result: results[i], Limiter: i}
}

// Refund takes back what r was charged to every limit of the group; see
// Limiter.Refund. The keys are those of the request.
func (g *Group) Refund(ctx context.Context, r GroupResult, keys ...string) error {
	if len(keys) != len(g.limiters) {
		return fmt.Errorf("%w: %d keys for a group of %d limiters", ErrOption, len(keys), len(g.limiters))
	}
	var errs []error
	for i, l := range g.limiters {
		errs = append(errs, l.Refund(ctx, keys[i], r.results(len(keys))[i]))
	}
	return errors.Join(errs...)
}
