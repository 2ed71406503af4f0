package reservoir

import (
	"fmt"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/demand"
	"github.com/go-reservoir/reservoir/internal/lease"
)

// Sizing decides how many tokens a key fetches at a time: Fixed(n), Ladder(min,
// max) or Adaptive(min, max). The zero Sizing is an error of New. Whatever the
// policy, a batch is ordered before the stock is gone, so that nobody waits for it.
type Sizing struct{ policy demand.Policy }

// Fixed fetches n tokens at a time, at least 1, and more only where so many callers
// wait. It is right where demand is known and even, and n more than is used during one
// fetch: up to n tokens in each process may lie idle when the limit has run out.
// Fixed(1) holds nothing, so each request waits for a call.
func Fixed(n int64) Sizing { return Sizing{demand.Policy{Kind: demand.Fixed, Min: n, Max: n}} }

// Ladder climbs from min towards max: half as much again when a batch was used
// up, half as much when most of one was wasted. It is Rockset's published rule
// ("How We Improved the Concurrency and Scalability of Our Redis Rate Limiting
// System", 2021), kept as a yardstick. min is at least 1, and max at least min.
func Ladder(min, max int64) Sizing {
	return Sizing{demand.Policy{Kind: demand.Ladder, Min: min, Max: max}}
}

// Adaptive, the default, fetches what the key's demand will use for as long as
// the limit is expected to last, before the stock runs out, and lets the store
// taper that as the limit runs out. min, at least 1, and max, at least min, bound
// one batch in tokens; a max of 0 is no bound.
func Adaptive(min, max int64) Sizing {
	return Sizing{demand.Policy{Kind: demand.Adaptive, Min: min, Max: max}}
}

func (s Sizing) validate() error {
	switch p := s.policy; {
	case p.Min < 1:
		return fmt.Errorf("%w: a batch of %d tokens, want at least 1", ErrOption, p.Min)
	case p.Max != 0 && p.Max < p.Min:
		return fmt.Errorf("%w: a largest batch of %d below the smallest of %d", ErrOption, p.Max, p.Min)
	case p.Max == 0 && !p.Guided():
		return fmt.Errorf("%w: a ladder needs a largest batch", ErrOption)
	}
	return nil
}

// readingLocked is what was known of w at that time, while it was read once only.
func (k *keyState) readingLocked(w *lease.Lease, at int64) backend.State {
	return backend.State{Window: w.Window, Left: time.Duration(w.Late() - at), Remaining: w.Remaining()}
}

// sizeLocked writes into f how much to ask for. What the first in line lacks the store
// is to grant as a whole or not at all.
func (k *keyState) sizeLocked(f *fetch, w *lease.Lease, wanted, now int64) {
	limit := k.limit()
	line := &k.busy.line
	var hand int64
	if w.Alive(now) {
		hand = k.heldLocked()
	}
	reserved := hand
	if line.Active() == 0 {
		reserved = 0
	}
	need := min(max(line.Tokens()-reserved, 0)+wanted, limit.Tokens)
	least := wanted
	if first := line.First(); first != nil {
		least = max(first.N-reserved, 0)
	}
	reorder := k.reorderLocked()
	f.req.Need, f.req.Least = need, min(least, need)
	f.req.Want, f.reason = need, "direct"
	if !k.l.direct {
		f.req.Want, f.reason = k.batchLocked(w, hand-reserved, now)
		f.req.Want = max(f.req.Want, need)
	}
	f.req.Strand = -1
	if k.l.guided() {
		f.req.Strand = k.demand().Idle(k.l.sizing.policy, k.l.stranding, limit.Tokens, int64(max(k.clients, 1)), reorder)
	}
	k.demand().Asked(f.req.Want, k.spentLocked())
}

// demand is nil for a key that was fetched for once at most.
func (k *keyState) demand() *demand.Demand {
	if k.use == nil {
		return nil
	}
	return &k.use.Demand
}

// batchLocked asks the policy for a batch.
func (k *keyState) batchLocked(w *lease.Lease, stock, now int64) (int64, string) {
	left := k.limit().Window
	if w.Alive(now) {
		left = time.Duration(w.Deadline() - now)
	}
	return k.demand().Batch(k.l.sizing.policy, demand.Situation{
		Limit: k.limit(), Open: w.Alive(now), Left: left, Lasts: k.lastsLocked(w, now), Spent: k.spentLocked(),
		Stock: stock, Waiting: k.busy.line.Tokens(),
	})
}

// sparePart of the limit may be held by all clients together for the next large
// request, while the limit is not going to run out.
const sparePart = 20

func (k *keyState) reorderLocked() int64 {
	if !k.l.ahead() {
		return 0
	}
	limit := k.limit()
	idle := k.idleShare()
	if !k.short { // what is held lacks to nobody
		idle = max(idle, limit.Tokens/sparePart/int64(max(k.clients, 1)))
	}
	return k.demand().Reorder(limit, k.shard.Lead(), idle)
}

// idleShare is this process' part of the tokens that may lie idle.
func (k *keyState) idleShare() int64 {
	return int64(k.l.stranding*float64(k.limit().Tokens)) / int64(max(k.clients, 1))
}

// surplusLocked is what will not be used and others may want.
func (k *keyState) surplusLocked(w *lease.Lease, now int64) int64 {
	k.observeLocked(now)
	left := time.Duration(w.Deadline() - now)
	return k.use.Surplus(k.limit().Window, left, k.lastsLocked(w, now), w.Stock(), k.idleShare())
}

// lastsLocked is how long the limit will last from now on.
func (k *keyState) lastsLocked(w *lease.Lease, now int64) time.Duration {
	var d *demand.Demand
	if k.use != nil {
		d = &k.use.Demand
	}
	window := k.limit().Window
	if !w.Alive(now) {
		return d.Lasts(window, 0, false)
	}
	return d.Lasts(window, window-time.Duration(w.Late()-now), true)
}
