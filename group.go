package reservoir

import (
	"context"
	"errors"
	"fmt"
	"math"

	"golang.org/x/sync/errgroup"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/key"
)

// Group is several limits that a request must pass together, such as one per user, one
// per organisation and one for all. A request is charged to all of them or to none. Make
// a Group with [NewGroup]; requests to the zero Group return [ErrOption]. It is safe for
// concurrent use. It needs no closing, but its limiters do.
type Group struct {
	limiters []*Limiter
	repeats  bool // a limiter occurs twice
}

// NewGroup returns a group of limiters. It does no I/O. Put the limiter that refuses most
// first, because limiters decide in this order; their store calls begin at the same
// time. Requests to a group of no limiters return [ErrOption].
func NewGroup(limiters ...*Limiter) *Group {
	distinct := make(map[*Limiter]bool, len(limiters))
	for _, l := range limiters {
		distinct[l] = true
	}
	return &Group{limiters: limiters, repeats: len(distinct) < len(limiters)}
}

// GroupResult is the answer to one request of a [Group].
type GroupResult struct {
	// Result is the answer of the limit that refused or, if all allowed, of the limit
	// with the smallest part remaining. Of has that of each limit.
	Result

	// Limiter is the index of the limiter that gave Result.
	Limiter int

	few  [fewLimits]Result // of all limits
	many []Result          // the same for more limits
}

// Of returns the answer of limiter i of the group, for a client that shall know what it has
// left of each limit. If the request was refused, only the limit that refused has Allowed
// false, and what the others were charged has gone back. Of a limit that was not asked,
// because another refused first or its cost was 0, Of returns what this process knows without
// a call: Reset is zero, and Remaining 0, if it knows no open window.
func (r *GroupResult) Of(i int) Result {
	if r.many != nil {
		return r.many[i]
	}
	return r.few[i]
}

const fewLimits = 4

func (r *GroupResult) results(n int) []Result {
	if n <= len(r.few) {
		return r.few[:n]
	}
	if r.many == nil {
		r.many = make([]Result, n)
	}
	return r.many
}

// Allow is [Group.AllowEach] for one token of every limit.
func (g *Group) Allow(ctx context.Context, keys ...string) (GroupResult, error) {
	return g.allow(ctx, nil, keys)
}

// AllowEach asks limiter i of the group for cost[i] tokens of keys[i], such as 1 request,
// 4,000 tokens of a model and 12,000 millionths of a dollar; a limiter whose cost is 0 is not
// asked. If one limiter refuses, none is charged. A refusal from memory is found before
// anything is spent, and tokens that others have charged go back as by [Group.Refund]. If
// all have stock, AllowEach makes no store call and, for up to four limiters, no allocation.
// If several must ask the store, up to 32 do so at the same time, so the caller waits for one
// round trip. Errors are those of [Limiter.AllowN], and [ErrOption] if costs or keys do not
// match the limiters. A limiter that occurs several times with one key must have the sum, or
// AllowEach returns [ErrExceedsLimit]. A limit of [WithLimits] that occurs once finds only when it is asked that the cost exceeds it. A bad key or number of tokens is an error whatever the
// limits say. After an error none is charged either.
func (g *Group) AllowEach(ctx context.Context, cost []int64, keys ...string) (GroupResult, error) {
	if len(cost) != len(g.limiters) {
		return GroupResult{}, g.mismatch(len(cost), "costs")
	}
	return g.allow(ctx, cost, keys)
}

// Wait is [Group.WaitEach] for one token of every limit.
func (g *Group) Wait(ctx context.Context, keys ...string) (GroupResult, error) {
	return g.wait(ctx, nil, keys)
}

// WaitEach is [Group.AllowEach], but blocks until all limits have charged their costs, as
// [Limiter.WaitN] does. While it waits for one limit, no other is charged. It is in line
// for that limit only, so if several limits run out, requests for one of them may come
// first.
func (g *Group) WaitEach(ctx context.Context, cost []int64, keys ...string) (GroupResult, error) {
	if len(cost) != len(g.limiters) {
		return GroupResult{}, g.mismatch(len(cost), "costs")
	}
	return g.wait(ctx, cost, keys)
}

// costs is what a request costs each limit. If it is nil, each costs one token. One that costs nothing is not asked.
type costs []int64

func (c costs) of(i int) int64 {
	if c == nil {
		return 1
	}
	return c[i]
}

func (g *Group) mismatch(n int, what string) error {
	return fmt.Errorf("%w: %d %s for a group of %d limiters", ErrOption, n, what, len(g.limiters))
}

func (g *Group) allow(ctx context.Context, cost costs, keys []string) (r GroupResult, err error) {
	if len(keys) != len(g.limiters) || len(keys) == 0 {
		return r, g.mismatch(len(keys), "keys")
	}
	if err := ctx.Err(); err != nil {
		return r, err
	}
	if r.Limiter, err = g.validate(cost, keys); err != nil {
		return r, err
	}

	// A refusal from memory, before anything is spent.
	var few [fewLimits]*key.Key
	states, results := append(few[:0], make([]*key.Key, len(keys))...), r.results(len(keys))
	for i, l := range g.limiters {
		if cost.of(i) == 0 { // before anything is charged, because glance may call the user's function
			results[i] = l.glance(keys[i])
		} else if states[i] = l.env.Get(keys[i]); l.refuses(&r.Result, states[i], cost.of(i)) {
			r.Limiter = i
			return g.refusal(r, keys), nil
		}
	}

	// Stock of all limits, or else their stores.
	for i, l := range g.limiters {
		n := cost.of(i)
		if n == 0 {
			continue
		}
		if states[i] == nil || !l.try(&results[i], states[i], n) {
			return g.ask(ctx, cost, r, keys)
		}
		if results[i].Shadowed {
			l.pass(&results[i])
		}
		if !results[i].Allowed {
			r.Result, r.Limiter = results[i], i
			g.undo(ctx, results)
			return g.refusal(r, keys), nil
		}
	}
	return g.allowed(r, keys), nil
}

// validate finds a limit that this request can never pass, before any of them decides. A limit of WithLimits finds itself that it has
// too few tokens, but not if several requests share it.
func (g *Group) validate(cost costs, keys []string) (limiter int, _ error) {
	for i, l := range g.limiters {
		n := cost.of(i)
		if n == 0 {
			continue
		}
		if err := l.validateRequest(keys[i], n); err != nil {
			return i, err
		}
		limit := backend.Limit(l.limit)
		if g.repeats {
			for j, other := range g.limiters {
				if j != i && other == l && keys[j] == keys[i] {
					n += min(cost.of(j), math.MaxInt64-n)
				}
			}
		}
		if l.limits != nil {
			if k := l.env.Get(keys[i]); !g.repeats || k != nil && n <= k.Limit.Load().Tokens {
				continue
			}
			var err error
			if limit, err = (caller{l}).Limit(keys[i]); err != nil {
				return i, err
			}
		}
		if n > limit.Tokens && key.PlanOf(limit) == key.Counted && !limit.Shadow {
			return i, ErrExceedsLimit
		}
	}
	return 0, nil
}

// refusal answers with r, and with what memory shows of the limits that have not decided.
func (g *Group) refusal(r GroupResult, keys []string) GroupResult {
	results := r.results(len(keys))
	for i := range results {
		if !results[i].Allowed {
			results[i] = g.limiters[i].glance(keys[i])
		}
	}
	results[r.Limiter] = r.Result
	return r
}

// allowed makes the answer of a group that allowed, whose Result is that of the tightest limit.
func (g *Group) allowed(r GroupResult, keys []string) GroupResult {
	least, results := 2.0, r.results(len(keys))
	for i := range results {
		if results[i].free {
			continue
		}
		part := float64(results[i].Remaining) / float64(results[i].Limit)
		if results[i].Shadowed {
			part = -1
		}
		if part < least {
			least, r.Limiter = part, i
		}
	}
	r.Result = results[r.Limiter]
	return r
}

// wait is in line for one limit at a time, the one that refused last, and asks the others
// when that limit has charged.
func (g *Group) wait(ctx context.Context, cost costs, keys []string) (GroupResult, error) {
	r, err := g.allow(ctx, cost, keys)
	again := key.FirstPause / 2
	for round := 0; err == nil && !r.Allowed || err != nil && key.Outage(err); round++ {
		if _, err := g.validate(cost, keys); err != nil { // a limit was lowered
			return GroupResult{}, err
		}
		if round > len(keys) { // in an outage FailOpen may admit a Wait at once, and still refuse an Allow
			again = longer(ctx, again)
			if err := pause(ctx, again, nil); err != nil {
				return GroupResult{}, err
			}
		}
		i := r.Limiter
		paid, waited := g.limiters[i].WaitN(ctx, keys[i], cost.of(i))
		if waited != nil {
			return GroupResult{}, waited
		}
		r = GroupResult{}
		r.results(len(keys))[i] = paid
		r, err = g.ask(ctx, cost, r, keys)
	}
	return r, err
}

// ask asks the limits that have not answered from memory yet. The fetches, and the calls of
// limits without stock, begin at the same time. Tokens are taken in the order of the limits:
// a request that held tokens of a later limit, while it waits for an earlier one that
// refuses it, would keep them from others, whom the later limit would refuse meanwhile.
func (g *Group) ask(ctx context.Context, cost costs, r GroupResult, keys []string) (GroupResult, error) {
	results, errs, later := r.results(len(keys)), make([]error, len(keys)), make([]bool, len(keys))
	var calls errgroup.Group
	calls.SetLimit(key.CallsAtOnce)
	decided := false
	defer func() {
		if !decided { // the function of WithLimits has panicked
			_ = calls.Wait()
			g.undo(ctx, results)
		}
	}()
	for i, l := range g.limiters {
		switch {
		case results[i].Allowed:
			continue
		case cost.of(i) == 0:
			results[i] = l.glance(keys[i])
			continue
		}
		k, limit, err := l.find(keys[i], true)
		switch {
		case err != nil:
			errs[i] = err
		case k != nil && !l.env.Direct:
			k.Expect(cost.of(i))
			later[i] = true
		default: // the request itself, because nothing of a fetch would be kept for it
			calls.Go(func() error {
				results[i], later[i], errs[i] = l.attempt(ctx, k, keys[i], limit, ask{N: cost.of(i)}, 1)
				return nil
			})
		}
	}
	_ = calls.Wait()
	for i, l := range g.limiters {
		if later[i] {
			results[i], _, errs[i] = l.acquire(ctx, keys[i], ask{N: cost.of(i)})
		}
		if errs[i] == nil && results[i].Allowed {
			continue
		}
		decided = true
		r.Result, r.Limiter = results[i], i
		g.undo(ctx, results)
		if errs[i] != nil {
			return GroupResult{Limiter: i}, errs[i]
		}
		return g.refusal(r, keys), nil
	}
	decided = true
	return g.allowed(r, keys), nil
}

// undo takes back what all limits have charged, after one has refused or failed.
func (g *Group) undo(ctx context.Context, results []Result) {
	for i := range results {
		if r := &results[i]; r.Allowed && !r.free {
			_ = g.limiters[i].Refund(ctx, *r)
			r.Remaining = min(r.Remaining+r.charged, r.Limit)
			r.of, r.charged = nil, 0
		}
	}
}

// Refund takes back what r was charged to every limit of the group; see [Limiter.Refund].
func (g *Group) Refund(ctx context.Context, r GroupResult) error {
	return g.Settle(ctx, r, make([]int64, len(g.limiters)))
}

// Settle corrects the charge of r to what its request has used of each limit; see
// [Limiter.Settle]. A limit whose cost was 0 was not asked, and is not charged now; if the
// cost is unknown, ask for 1. Settle tries all limits and joins their errors.
func (g *Group) Settle(ctx context.Context, r GroupResult, used []int64) error {
	if len(used) != len(g.limiters) {
		return g.mismatch(len(used), "costs")
	}
	var errs []error
	for i, l := range g.limiters {
		if paid := r.results(len(used))[i]; !paid.free {
			errs = append(errs, l.Settle(ctx, paid, used[i]))
		}
	}
	return errors.Join(errs...)
}
