package reservoir

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/demand"
	"github.com/go-reservoir/reservoir/internal/lease"
	"github.com/go-reservoir/reservoir/internal/next"
)

// Sizing decides how many tokens a key fetches at a time: [Fixed], [Ladder] or
// [Adaptive]. New returns [ErrOption] for the zero Sizing. Every Sizing orders a batch
// before the stock is gone, so that nobody waits for it. Up to four batches are held for
// requests that are larger than a batch; a request for more waits for a call of its own.
type Sizing struct{ policy demand.Policy }

// Fixed fetches n tokens at a time, at least 1, and more only if callers wait for more. It
// suits a known and even demand, with an n above what is used during one fetch. Up to n
// tokens in each process may lie idle when the limit has run out. Fixed(1) holds nothing,
// so each request waits for a call.
func Fixed(n int64) Sizing { return Sizing{demand.Policy{Kind: demand.Fixed, Min: n, Max: n}} }

// Ladder climbs from min towards max: half as much again when a batch was used up, half
// as much when most of one was wasted. It is Rockset's published rule ("How We Improved
// the Concurrency and Scalability of Our Redis Rate Limiting System", 2021), kept for
// comparison. min is at least 1, and max at least min.
func Ladder(min, max int64) Sizing {
	return Sizing{demand.Policy{Kind: demand.Ladder, Min: min, Max: max}}
}

// Adaptive, the default, fetches what the key is expected to use while the limit lasts,
// and lets the store taper batches as the limit runs out. min and max bound one batch in
// tokens: min is at least 1, and max at least min, or 0 for no bound.
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

// situation is the state of a key when a batch, a re-order point or a surplus is sized.
type situation struct {
	*config
	limit  Limit
	demand *demand.Demand // nil for a key with one fetch at most
	lease  *lease.Lease
	now    int64
	peers  int64         // processes that share the key, including this one
	idle   int64         // this process' part of the tokens that may lie idle
	short  bool          // the limit will run out before the window ends
	lead   time.Duration // from ordering a batch to having it
}

func (k *keyState) situationLocked(now int64) situation {
	return situation{
		config: &k.l.config, limit: k.limit(), demand: k.use.demand(), lease: k.lease.Load(), now: now,
		peers: int64(max(k.clients, 1)), idle: k.idle(), short: k.short, lead: k.shard.Lead(),
	}
}

// sparePart divides the limit. All clients together may hold that much for the next large
// request, while the limit is not going to run out.
const sparePart = 20

// reorder is the stock at which to order the next batch.
func (s *situation) reorder() int64 {
	if !s.ahead() {
		return 0
	}
	idle := s.idle
	if !s.short { // nobody lacks what is held
		idle = max(idle, s.limit.Tokens/sparePart/s.peers)
	}
	at := s.demand.Reorder(s.limit, s.lead, idle)
	if most := s.sizing.policy.Max; most > 0 {
		at = min(at, mostAhead*min(most, s.limit.Tokens))
	}
	return at
}

// mostAhead is how many batches are held for a request that is larger than a batch. To
// hold more would cost more calls than that request's own.
const mostAhead = 4

// idle is this process' part of the tokens that may lie idle.
func (k *keyState) idle() int64 {
	return int64(k.l.stranding*float64(k.bound.Load().Tokens)) / int64(max(k.clients, 1))
}

// strand is how many tokens may lie idle in all processes; -1 asks the store to grant
// exactly what is wanted.
func (s *situation) strand() int64 {
	if !s.guided() {
		return -1
	}
	return s.demand.Idle(s.sizing.policy, s.stranding, s.limit.Tokens, s.peers, s.reorder())
}

// batch asks the policy for the size of a batch and the reason in a word or two.
func (s *situation) batch(spent, stock, waiting int64) (int64, string) {
	left, open := s.left()
	return s.demand.Batch(s.sizing.policy, demand.Situation{
		Limit: s.limit, Open: open, Left: left, Lasts: s.lasts(), Spent: spent, Stock: stock, Waiting: waiting,
	})
}

// surplus is how many tokens of the stock will not be used, and others may want.
func (s *situation) surplus() int64 {
	left, _ := s.left()
	return s.demand.Surplus(s.limit.Window, left, s.lasts(), s.lease.Stock(), s.idle)
}

// left is how long tokens of the window may still be spent, or the length of the next
// window if none is open.
func (s *situation) left() (left time.Duration, open bool) {
	if !s.lease.Alive(s.now) {
		return s.limit.Window, false
	}
	return time.Duration(s.lease.Deadline() - s.now), true
}

// lasts is how long the limit will last from now on.
func (s *situation) lasts() time.Duration {
	if !s.lease.Alive(s.now) {
		return s.demand.Lasts(s.limit.Window, 0, false)
	}
	return s.demand.Lasts(s.limit.Window, s.limit.Window-time.Duration(s.lease.LatestEnd()-s.now), true)
}

// sizeLocked writes into the statement how much to ask for. The store must grant all that
// the first caller in line lacks, or nothing.
func (f *fetch) sizeLocked(wanted int64) {
	k, now := f.k, f.ordered
	s, line := k.situationLocked(now), k.busy.callers()
	var hand, forLine int64
	if s.lease.Alive(now) {
		hand = k.heldLocked()
	}
	if line.Active() > 0 {
		forLine = hand
	}
	least := wanted // a grant to a probe is useful only if it serves the refused request
	if first := line.First(); first != nil {
		least = max(first.N-forLine, 0)
	}
	q := &f.req
	q.Need = min(max(line.Tokens()-forLine, 0)+wanted, s.limit.Tokens)
	q.Least = min(least, q.Need)
	q.Want, f.reason = q.Need, "direct"
	if !s.direct {
		q.Want, f.reason = s.batch(k.spentLocked(), hand-forLine, line.Tokens())
		q.Want = max(q.Want, q.Need)
	}
	q.Strand = s.strand()
	s.demand.Asked(q.Want, k.spentLocked())
}

// usage is the part of a key's state that only a key in use needs.
type usage struct {
	demand.Demand
	timer    *time.Timer
	due      int64         // when timer fires
	replied  int64         // when the store answered last
	spread   int64         // delay after the reset, so that processes do not all call at once
	backoff  int64         // after a failed fetch, the earliest time of the next
	pause    time.Duration // of the last back-off; it doubles
	recheck  int64         // when a refused key asks WithLimits again
	conflict int64         // until when requests get ErrConflict without a call
	blocked  uint64        // number of the last call of relimit when WithLimits had returned a special limit
	charge   int64         // when to state debt at the latest; 0 = at once

	look         int64 // when to look for a surplus; 0 = not yet
	lookSpent    int64 // tokens spent in all at the last look
	refetchUntil int64 // a prefetch before that shows that the surplus of the last look was none
	refetches    int8  // how often in this window it was none; each after the first doubles the time between looks
	overstocked  bool  // requests gave back more than may lie idle: look whether it is used

	failedAt int64 // when a fetch failed last
	rejected bool  // the last fetch was rejected
}

// demand returns the estimate, nil for a key with one fetch at most.
func (u *usage) demand() *demand.Demand {
	if u == nil {
		return nil
	}
	return &u.Demand
}

// arm sets the key's timer for at, unless it fires before that anyway.
func (u *usage) arm(now, at int64) {
	if now < u.due && u.due <= at {
		return
	}
	u.due = at
	u.timer.Reset(time.Duration(at - now))
}

// How often a key looks for a surplus.
const (
	lookPart     = 60 // of the window between two looks
	maxRefetches = 7  // all but one double that time: then it is longer than a window
)

// lookLocked looks, now and then, for tokens that are worth giving back. at is when to look
// again; 0 = no need. A key that leaves, or makes direct calls, keeps no tokens.
func (k *keyState) lookLocked(now int64) (surplus, at int64) {
	w, u := k.lease.Load(), k.use
	switch {
	case k.leaving || k.l.direct:
		return w.Stock(), 0
	case !u.overstocked && (!k.l.guided() || !k.short), !w.Alive(now): // the usual case, which must be cheap
		return 0, 0
	}
	s := k.situationLocked(now)
	if k.heldLocked() <= 2*s.idle {
		u.overstocked = false
		return 0, 0
	}
	if spent := k.spentLocked(); now >= u.look {
		// The first look only records the figures. A stock is no surplus if the rate since
		// the last look uses it up long before the next one.
		if u.look != 0 && 30*w.Stock() > spent-u.lookSpent {
			u.observe(k, now)
			surplus = s.surplus()
		}
		u.looked(now, int64(s.limit.Window)/lookPart, spent, surplus)
	}
	return surplus, u.look
}

// looked records a look for a surplus, with the tokens spent in all and the surplus found.
// The next look comes after pause, or later: see prefetched.
func (u *usage) looked(now, pause, spent, surplus int64) {
	u.look, u.lookSpent, u.refetchUntil = now+pause<<max(u.refetches-1, 0), spent, 0
	if surplus > 0 {
		u.refetchUntil = now + pause
	}
}

// prefetched records a prefetch. A peak that is over may still order what the rate has no
// use for, and the next look would give that back, again and again. A prefetch soon after
// a give-back shows this, so from the second one on, looks become rarer.
func (u *usage) prefetched(now int64) {
	if u != nil && now < u.refetchUntil {
		u.refetchUntil, u.refetches = 0, min(u.refetches+1, maxRefetches)
	}
}

// The pause after a failed fetch, before a fetch that no caller needs at once. It doubles.
const (
	firstPause   = 2 * time.Millisecond
	longestPause = time.Second
)

func (u *usage) backOff(now int64, longest time.Duration) {
	u.pause = min(max(2*u.pause, firstPause), longest)
	u.backoff = now + int64(u.pause/2+chance.Part(u.pause/2))
}

// usageLocked returns the key's usage, making one if there is none.
func (k *keyState) usageLocked() *usage {
	if k.use != nil {
		return k.use
	}
	limit := k.limit()
	k.use = &usage{Demand: *demand.New(k.account.InUse(0), k.firstFetch), spread: spread(limit.Window)}
	k.use.timer = time.AfterFunc(next.Never, func() {
		k.event(func(int64) int64 { k.use.due = 0; return 0 })
	})
	k.use.timer.Stop()                                      // until it is armed
	if w := k.lease.Load(); w != nil && k.firstFetch != 0 { // it was read once, at k.firstFetch
		k.use.Opened(limit.Window, 0, 0)
		k.use.Forecast(limit, backend.State{Window: w.Window, Left: time.Duration(w.LatestEnd() - k.firstFetch), Remaining: w.Remaining()}, 0)
	}
	return k.use
}

// spread is how long after a reset this process waits before it calls the store.
func spread(window time.Duration) int64 {
	return int64(chance.Part(min(window/spreadPart, spreadMax)))
}

// most is the size of the largest request since the last take.
type most struct{ atomic.Uint32 }

func (m *most) record(n int64) {
	if size := uint32(min(n, math.MaxUint32)); size > m.Load() {
		m.Store(size)
	}
}

func (m *most) take() int64 { return int64(m.Swap(0)) }

// observe brings the estimate of the demand for k up to date, under its lock.
func (u *usage) observe(k *keyState, now int64) {
	u.Observe(k.limit().Window, now, k.spentLocked(), k.largest.take())
}
