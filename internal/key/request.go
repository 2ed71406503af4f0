package key

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/demand"
	"github.com/go-reservoir/reservoir/internal/denial"
	"github.com/go-reservoir/reservoir/internal/tokens"
	"github.com/go-reservoir/reservoir/internal/waiters"
)

// This file has what callers do to a key: a request that the hot path cannot answer, its settlement, and another limit.

type waiter = waiters.Waiter[Verdict]

// Acquire decides on a request, and waits for a fetch if one is needed.
func (k *Key) Acquire(ctx context.Context, q Ask) (v Verdict) {
	w, v := k.decide(ctx, q, !k.env.ByKey)
	if v.Next == askLimit {
		if _, v.Err = k.AskLimit(nil); v.Err != nil {
			return Verdict{Err: v.Err}
		}
		w, v = k.decide(ctx, q, true)
	}
	if v.Next != wait {
		return v
	}
	defer k.env.waiters.Put(w)
	select { // the fetch that w waits for ends by its own timeout
	case <-w.Ready:
		return w.Outcome
	case <-ctx.Done():
		k.cancel(w)
		return Verdict{Err: ctx.Err()}
	}
}

// decide answers the caller from memory or by the failure policy, or puts it in line as w. It serves nobody before the
// callers in line: an Allow waits behind the active ones, a Wait behind all. Unless the limit is known to be the present one, decide may
// want it to be asked for first.
func (k *Key) decide(ctx context.Context, q Ask, present bool) (w *waiter, v Verdict) {
	k.event(func(now int64) effect {
		u, l, lease := k.use, k.Limit.Load(), k.Lease.Load()
		alive := lease != nil && now < lease.Deadline.Load()
		switch {
		case k.env.Closed.Load():
			v.Err = ErrClosed
			return unchanged
		case k.phase == retired || k.parted:
			v.Next = StartOver
			return unchanged
		// Limits by key may change at any time. To ask before each request would cost a call of the user's function, so a key asks only
		// where another limit could turn a refusal into an answer.
		case !present && (q.N > l.Tokens || u.denial.AskLimit(now, l.Window)): // another limit may matter
			v.Next = askLimit
			return changed
		}
		// n is what the request gets here, least what it would be content with.
		q := q.under(l)
		n, least, stay := q.N, q.N, q.Stays
		if q.Some {
			least = 1
		}
		if n > l.Tokens {
			if v = k.env.TooMuch(*l); v.Err == nil && alive {
				v.Answer = k.answer(false, n, now, Local) // the open window's end, which does not move
			}
			return unchanged
		}
		k.phase = active // the key stays in memory, because a caller has come
		if k.env.Parts != nil {
			k.findShard()
		}
		// A circuit that is open does not refuse by itself: what is in stock may still be spent, and a denial still holds.
		away := k.shard.Open.Load()
		refuse := func() effect { // from memory. A probe looks whether that is still true; nobody waits for it
			did := effect{}
			if u.fetch == nil && !away && u.denial.Probe(now, l.Window) {
				did = effect{changed: true, probe: least}
			}
			k.Refusals.Add(1)
			v.Answer = k.answer(false, n, now, Local)
			return did
		}
		if held := u.denial.State == denial.Held; held && !stay {
			return refuse()
		} else if held {
			away = false // whatever the store does, the caller waits for the hold's end
		}

		// From memory. Where no more than the stock is to be had, some tokens are those.
		if q.Some && alive && (away || u.denial.State == denial.Denied && lease.Remaining.Load() == 0) {
			if stock := k.Held(); stock > 0 {
				n = min(n, stock)
			}
		}
		// A caller that has just come does not pass the line. Otherwise newcomers would take what those in it wait for.
		if alive && u.line.Active == 0 && (!stay || u.line.Parked == 0) {
			if left, ok := lease.Spend(n); ok {
				k.Used(n)
				v.Answer = k.answer(true, n, now, Local)
				return effect{changed: lease.ClaimReorder(left)}
			}
		}
		// Nobody waits for what the store surely does not have. One who stays does, and so does one for whom the rest and the stock may do.
		if alive && !stay && u.denial.State == denial.Denied && least > lease.Remaining.Load()+k.Held() {
			return refuse()
		}

		// By the failure policy, or in line. After memory, because what the process holds may be spent whatever the store does: it is
		// charged already.
		if away {
			var decided bool
			if v, decided = k.policy(q, now, k.shard.OpenError()); decided {
				return unchanged
			}
		}
		// Only those who stay may wait for long. A fetch answers the others.
		if most := k.env.MaxWaiting; stay && most > 0 && u.line.Len-u.line.Passing >= most {
			v.Err = ErrMaxWaiting
			return unchanged
		}
		k.env.Counts.Waited.Add(1)
		v.Next, w = wait, k.env.waiters.Get(q.N, stay)
		w.Some = q.Some
		// Only who stays needs its deadline in the line, which tells at once that no window comes in time. The others leave by their context.
		if d, ok := ctx.Deadline(); ok && stay {
			w.Deadline = now + min(int64(time.Until(d)), math.MaxInt64-now)
		}
		u.line.Push(w)
		u.joined++
		return changed
	})
	return w, v
}

// cancel takes w out of the line for a caller whose context has ended. Tokens that w got
// meanwhile are refunded: they go to the next waiter, or back to the stock.
func (k *Key) cancel(w *waiter) {
	k.event(func(now int64) effect {
		if w.InLine {
			k.use.line.Remove(w)
			return changed
		}
		// It was served before its context ended, or at the same time. Nobody reads that outcome, so its tokens must not be lost.
		c, n := chargeOf(w.Outcome.Answer), w.N
		if c.Tokens > 0 && !c.Fallback {
			k.env.Counts.Extra.Add(k.node.Hash, 1)
		}
		return k.refund(c, min(n, c.Tokens), now)
	})
}

// Expect orders a fetch for a request for n tokens that may come soon, unless memory will
// answer it.
func (k *Key) Expect(n int64) {
	k.event(func(now int64) effect {
		k.findShard()
		l, w, u := k.Limit.Load(), k.Lease.Load(), k.use
		switch {
		// A fetch in flight ends soon, and the request itself finds what it has brought.
		case k.phase == retired || k.parted || u.fetch != nil || n > l.Tokens || k.shard.Open.Load() || u.denial.State == denial.Held:
			return unchanged
		case w.Alive(now) && (w.Stock.Load() >= n || u.denial.State == denial.Denied):
			return unchanged
		}
		k.phase = active
		return effect{changed: true, probe: n, expects: true}
	})
}

// OrderIfLow orders a batch if rest, the stock of w after a spend, is at the re-order
// point. Only one of the callers that find it there orders. The point of a key's first
// batch only tells that the key is used again, and so needs an estimate of its demand.
func (k *Key) OrderIfLow(w *tokens.Lease, rest int64) {
	if !w.ClaimReorder(rest) {
		return
	}
	k.event(func(now int64) effect {
		if k.Lease.Load() != w || k.phase == retired {
			return unchanged
		}
		if !k.parted { // one that left would give the batch back at once, and order the next
			k.phase = active
		}
		if k.use.demand == nil {
			k.observe(now)
		}
		// The point was set when the fetch ended, for the rate of that time. If the key is slower now, the order can wait.
		t := k.sizes(now, w.Alive(now))
		if point := k.use.demand.ReorderPoint(&t); rest > point {
			k.setReorder(&t, point)
		}
		return changed
	})
}

// setReorder sets the re-order point. The stock may be below it already, because the batch is
// smaller than what is used during the next fetch: the hot path reports only a stock that
// falls to the point.
func (k *machine) setReorder(t *demand.Terms, point int64) {
	w := k.Lease.Load()
	w.Reorder.Store(point)
	if point > 0 && k.use.demand.Regular(t) && k.Held()-k.use.line.Tokens <= point {
		w.Reorder.Store(tokens.Due)
	}
}

// Charge is what a request was charged.
type Charge struct {
	tokens.Charge
	Fallback bool // admitted by the failure policy
}

func chargeOf(a Answer) Charge {
	return Charge{tokens.Charge{Tokens: a.Charged, Window: a.Of, Bucket: a.Bucket}, a.Source == Fallback}
}

// Refund takes back n tokens of c that were not used. They go into the stock, or to the store if nobody may spend them here, after they
// have paid for debt. Tokens of a window that the account has left have expired.
func (k *Key) Refund(c Charge, n int64) {
	k.event(func(now int64) effect { return k.refund(c, n, now) })
}

func (k *machine) refund(c Charge, n, now int64) effect {
	// What a policy has admitted was never charged: only the share has it back.
	u, counts := k.use, &k.env.Counts
	if c.Fallback {
		u.share.takeBack(c, n)
		counts.RefundLeft(n)
		return unchanged
	}
	r, ok := tokens.Refunded{}, false
	if k.phase != retired {
		k.inUse() // the store does not know that these are idle
		r, ok = k.Tokens.Refund(c.Charge, n, !k.parted, now)
	}
	if !ok {
		counts.RefundLeft(n)
		return unchanged
	}
	counts.Extra.Add(k.node.Hash, r.Paid) // spent again
	counts.Refunded.Add(r.Stock + r.Back + r.Paid)
	u.surplus.Refunded = true
	if u.line.Active == 0 {
		k.publish()
	}
	// Mostly nothing has to be decided, and a program may settle each of its requests.
	return effect{changed: r.Back > 0 || u.line.Len > 0 || u.fetch != nil || u.denial.State == denial.Denied || k.idle() > u.surplus.Known}
}

// Overrun charges n tokens that a request has used above its charge: from stock, also while the key is held, because
// they are used already, and what the stock lacks as debt. They are charged to the window that this process knows, whatever the
// request was charged in; if it knows none, they are overdrawn. It reports whether the key was
// forgotten meanwhile, so that nothing was done.
func (k *Key) Overrun(n int64) (forgotten bool) {
	var w *tokens.Lease
	k.event(func(now int64) effect {
		if forgotten = k.phase == retired; forgotten {
			return unchanged
		}
		// The account takes nothing for a window that is over by the time of the statement.
		if now >= k.Until() { // no statement would be in time
			k.env.Counts.Overdrawn.Add(n)
			return unchanged
		}
		w = k.Lease.Load()
		was, _ := k.Account.Unconfirmed()
		withheld := int64(0)
		if k.use.line.Active == 0 { // by a hold; nobody in line will get it
			withheld = min(n, k.Reserved)
			k.Reserved -= withheld
		}
		debt := k.Tokens.Overrun(n-withheld, now)
		k.env.Counts.Extra.Add(k.node.Hash, n-debt)
		if debt > 0 && was == 0 {
			k.inUse().owes = now
		}
		return effect{changed: debt > 0}
	})
	if w != nil {
		k.OrderIfLow(w, w.Stock.Load())
	}
	return forgotten
}

// chargePart divides the window. Settled debt may wait that long for a statement.
const chargePart = 20

// policy answers, by the failure policy, a request for which the store call failed with err.
// If err is no *backend.Error, it is the answer. Callers that stay and are not admitted get
// no answer, unless an operator must act.
func (k *machine) policy(q Ask, now int64, err error) (v Verdict, decided bool) {
	failure, ok := errors.AsType[*backend.Error](err)
	if !ok {
		return Verdict{Err: err}, true
	}
	s, counts, l := k.shareAt(now), &k.env.Counts, k.Limit.Load()
	rest, n := s.left(k.env.Fallback, l.Tokens), q.N
	// Who takes some gets what the share has.
	if q.Some && rest > 0 {
		n = min(n, rest)
	}
	if n > rest && (q.Stays || s == nil) {
		if q.Stays && failure.Class != backend.Rejected {
			return v, false
		}
		counts.Failed.Add(1)
		return Verdict{Err: err}, true
	}
	counts.Fallbacks.Add(1)
	a := Answer{Source: Fallback, Allowed: n <= rest, Limit: l.Tokens, Window: s.length, Of: s.window, Reset: s.window.Time()}
	if a.Allowed {
		counts.AdmittedByPolicy.Add(1)
		counts.overdraw(n)
		s.admitted = min(s.admitted+n, backend.MaxTokens) // FailOpen has no bound
		rest -= n
		a.Charged = n
	} else {
		k.Refusals.Add(1)
		a.Shadowed, a.RetryAfter = l.Shadow, RetryAfter(time.Duration(s.end-now), s.length)
	}
	a.Remaining = max(min(rest, l.Tokens-s.admitted), 0)
	return Verdict{Answer: a}, true
}

// shareAt returns what the failure policy has admitted in its own window at now, nil with FailClosed, and for a key that is not
// kept in memory and so cannot count. A new window ends with the store's, if one is open as far as this process knows, or by the
// process' clock.
func (k *machine) shareAt(now int64) *share {
	u, policy, l, w := k.use, k.env.Fallback, k.Limit.Load(), k.Lease.Load()
	if policy.Mode == FailClosed || policy.Mode == FailLocal && k.phase == retired {
		return nil
	}
	// The share counts in a window of its own, because while the store is away nobody knows which one is open there.
	if u.share == nil {
		u.share = new(share)
	}
	s := u.share
	if now <= s.end && s.window.End != 0 {
		return s
	}
	*s = share{length: l.Window}
	if !w.Over(now) && l.Calendar.Period == 0 && !k.Limit.Load().Rolls {
		s.window, s.end = w.Window, w.Latest
	} else {
		end := l.Ends(time.Now()) // of a calendar, more exactly than an old reading
		s.window, s.end = backend.Window{End: end.UnixMilli()}, now+int64(time.Until(end))
	}
	return s
}

// fallBack answers the callers in line up to last by the failure policy.
// Callers that stay until they are served wait on, unless the policy admits
// them or an operator must act. Those who wait on are looked at again when the policy has
// more tokens than then.
func (k *machine) fallBack(last uint64, now int64, err error) {
	u := k.use
	if u.denial.State == denial.Held { // nobody is admitted
		return
	}
	// Each failed call comes here, and a million callers may wait through an outage. So those are skipped whom the policy had no tokens for
	// when it was asked last, unless it has more now.
	rest := func() int64 { return k.shareAt(now).left(k.env.Fallback, k.Limit.Load().Tokens) }
	var from uint64
	if failure, ok := errors.AsType[*backend.Error](err); ok && failure.Class != backend.Rejected && u.policed > 0 && rest() <= u.shared {
		from = u.policed
	}
	waits, alive := false, k.Lease.Load().Alive(now)
	u.line.Since(from, func(c *waiter) {
		if c.Seq > last {
			return
		}
		if n := min(c.N, k.Reserved); c.Some && c == u.line.First && n > 0 && alive { // what is at hand is charged already
			k.Reserved -= n
			k.Used(n)
			u.line.Notify(c, Verdict{Answer: k.answer(true, n, now, Local)})
			return
		}
		if v, decided := k.policy(Ask{c.N, c.Stays, c.Some}, now, err); decided {
			u.line.Notify(c, v)
		} else {
			waits = true
		}
	})
	if waits {
		u.policed, u.shared = last, rest()
	}
}

// AskLimit asks for the present limit, which may be another one, and applies it, also to f, a statement that is about to be
// sent; f may be nil. It holds no lock while it calls the user's function. If that
// has returned a special limit to another call meanwhile, or a Refresh has begun, its answer here may
// be older, and does not count, unless it is a block.
func (k *Key) AskLimit(f *Fetch) (backend.Limit, error) {
	e := k.env
	if !e.varies {
		return *k.Limit.Load(), nil
	}
	asked := e.asks.Add(1)
	limit, err := e.Caller.Limit(k.node.Key)
	if err == nil {
		k.Relimit(limit, asked, f)
	}
	return limit, err
}

// Refresh asks for the limit because it has changed.
func (k *Key) Refresh() error {
	k.event(func(int64) effect {
		if k.env.varies && k.phase != retired {
			k.inUse().asked = k.env.asks.Load()
		}
		return unchanged
	})
	_, err := k.AskLimit(nil)
	return err
}

// Told is the number of a limit that nobody has asked for: it counts whatever was asked before.
const Told = math.MaxUint64

// Relimit makes limit the key's limit, unless it answers a question before the last that counts, and brings f up to date; f may be nil. One
// that counts in another counter, or in none, is not this key's: it leaves its own, the next request finds another key, or none, and
// callers in line start over. A caller in line that wants more than the limit has gets ErrExceedsLimit or, in shadow, passes.
func (k *Key) Relimit(limit backend.Limit, asked uint64, f *Fetch) {
	var full bool
	k.event(func(now int64) (did effect) {
		u, was := k.use, k.Limit.Load()
		switch {
		// An answer to an old question. But a block counts from the moment when the function has returned it.
		case asked <= u.asked && PlanOf(limit) != Blocked:
		case PlanOf(limit) != Counted || !SameCounter(&limit, was):
			if k.parted || k.phase == retired {
				break
			}
			k.parted, k.phase, did = true, leaving, changed
			u.denial.Open()
			// First it stands among those that leave, or a request could make another key of this counter, whose first statement
			// would make void what this one gives back.
			full = !k.env.leavers.add(&k.node.State)
			k.env.Table.Delete(k.node)
			u.line.Since(0, func(c *waiter) { u.line.Notify(c, Verdict{Next: StartOver}) })
		default:
			limit := limit
			limit.Calendar = was.Calendar // the zone may be another pointer
			if limit == *was {
				break
			}
			if limit.Tokens > was.Tokens { // the store may have more now
				u.denial.Open()
			}
			k.Limit.Store(&limit)
			u.line.Since(0, func(c *waiter) {
				switch {
				case c.N > limit.Tokens && !c.Some:
					v := k.env.TooMuch(limit)
					if v.Err == nil && k.Lease.Load().Alive(now) {
						v.Answer = k.answer(false, c.N, now, Local)
					}
					u.line.Notify(c, v)
				case limit.Shadow && (c.Stays || c.Some): // nobody waits for a limit in shadow, or gets a part
					u.line.Notify(c, Verdict{Next: StartOver})
				}
			})
			did = changed
		}
		if f != nil {
			f.relimit()
		}
		return did
	})
	if full { // what it holds expires with its window
		k.Retire(false)
	}
}
