package key

import (
	"math"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/lease"
	"github.com/go-reservoir/reservoir/internal/next"
)

// This file has what differs for a rolling limit. Its tokens belong to buckets; see account.Buckets. The lease is that of the
// first bucket of which the key has tokens, and ends with it, though the stock has those of later ones, too.

// What a rolling key looks at. A Part divides a bucket.
const (
	renewPart = 7  // over which processes spread their calls for the next buckets
	freesPart = 20 // over which they spread those for tokens that count no more
	keptPart  = 8  // whose tokens a key keeps that others call
	worthTwo  = 2  // tokens in a bucket from which on they are ordered ahead
)

// longestRolling is how long a token of a rolling limit counts at most after its grant.
func longestRolling(window time.Duration) time.Duration {
	return window * backend.MaxChanges / backend.Buckets
}

// bucketLength is the length of a bucket.
func bucketLength(window time.Duration) time.Duration { return window / backend.Buckets }

// turn gives back the tokens of buckets that are over, and makes the lease that of the first bucket with tokens. sent is when the
// reading was requested that says window, and -1 if none has just come.
func (k *Key) turn(window backend.Window, sent, now int64) {
	from, b := k.lease.Load(), k.account.Buckets
	if from != nil && from.Bucket != 0 && now >= from.Deadline() || sent >= 0 {
		held := k.drain() // or callers could spend them meanwhile
		k.queued().reserved = held - b.Expire(held, now)
	}
	latest, bucket := sent+int64(longestRolling(k.Limit().Window)), b.First()
	if sent < 0 {
		latest = from.LatestEnd()
	}
	deadline := latest
	if bucket != 0 {
		deadline = b.Deadline(bucket)
	}
	to := from.Turn(window, bucket, deadline, latest, sent)
	if to == from {
		return
	}
	k.lease.Store(to) // before the stock moves, so that a caller with the old lease finds the new one
	if n := from.Drain(); n > 0 {
		k.queued().reserved += n
	}
	if from == nil {
		k.inWindow(phaseOpen)
	}
}

// expireRolling gives back what is left of buckets that are over. A refusal ends when some tokens count no more.
func (k *Key) expireRolling(w *lease.Lease, now int64) (changed bool) {
	if changed = k.deniedUntil() != 0 && now >= k.deniedUntil(); changed {
		k.allow()
		w.AddRemaining(1)
	}
	if now >= w.Deadline() && k.account.Buckets.First() != 0 && !w.Doubted() {
		k.turn(w.Window, -1, now)
		k.publish(k.lease.Load())
		return true
	}
	return changed
}

// bookRolling is book of a rolling limit.
func (f *Fetch) bookRolling(w *lease.Lease, r *backend.Reply, sent, now int64) {
	k, held := f.k, f.k.held()
	if w != nil && w.Window.Gen != r.Window.Gen { // a Reset has voided all
		held = k.drain()
	}
	m := k.account.Buckets.Apply(&f.Req, r, held, sent, now)
	k.moved(m, r.Grant)
	k.queue.reserved += r.Grant
	k.reported, k.clients = uint16(min(r.Clients, math.MaxUint16)), 0
	k.turn(r.Window, sent, now)
}

// stateRolling writes what only statements about rolling limits have. How long a reply may take is longer after one that came too
// late.
func (f *Fetch) stateRolling(now int64) {
	k, q := f.k, &f.Req
	q.Pace = k.use.demand().Pace(q.Limit, now, k.spent())
	q.Within = 2 * k.shard.Lead()
	if k.queue != nil {
		q.Within <<= k.queue.unserved
	}
	if f.renews() {
		q.After = k.account.Buckets.Last()
	}
	if k.use != nil {
		k.use.charge = 0 // it says all
	}
}

// forecastRolling derives from a reply when to order next. While others have all, that is not before tokens come, and
// little later than that, at random.
func (f *Fetch) forecastRolling(r *backend.Reply, w *lease.Lease, denied bool, now int64) {
	k, window := f.k, f.k.Limit().Window
	bucket := bucketLength(window)
	frees := r.Frees
	if frees > 0 {
		frees += chance.Part(bucket / freesPart)
	}
	w.Note(r.Remaining, frees, now)
	k.short = frees > 0 || r.Remaining < f.Req.Limit.Tokens/backend.Buckets
	k.allow()
	if denied {
		k.deny(w, now)
	} else {
		k.use.demand().Exhausted(0)
	}
	u := k.use
	if u == nil {
		if s := k.situation(now); s.ahead() && r.Remaining > 0 {
			w.SetReorder(k.held() - k.queue.line.Tokens() - fewUses)
		}
		return
	}
	u.spread = int64(chance.Part(bucket / renewPart))
	if u.hold = 0; frees > 0 {
		u.hold = now + int64(frees)
	} else if f.asks() && r.Grant == 0 {
		u.hold = now + int64(bucket/keptPart)
	}
	reorder := int64(-1)
	if s := k.situation(now); s.ahead() && k.pace(bucket, now) >= worthTwo && u.hold == 0 && r.Remaining > 0 {
		reorder = s.reorder()
	}
	if f.asks() {
		k.setReorder(w, reorder)
	} else if !w.OrderDue() { // it was reached meanwhile
		w.SetReorder(reorder)
	}
}

// pace is how many tokens the key is likely to use in so long.
func (k *Key) pace(in time.Duration, now int64) float64 {
	t := k.Limit()
	return float64(k.use.demand().Pace(*t, now, k.spent())) * in.Seconds() / t.Window.Seconds()
}

// lookAhead sets when to order tokens of the buckets after the last of which the key has some.
func (k *Key) lookAhead(f *next.Facts) {
	b, u, bucket := k.account.Buckets, k.use, bucketLength(k.Limit().Window)
	f.Low = f.Low && f.Now >= u.hold
	if last := b.Last(); last != 0 && k.env.ahead() && k.pace(bucket, f.Now) >= worthTwo {
		f.Refresh = max(b.Deadline(last)-k.lead(bucket)-u.spread, u.hold)
	}
}

// lead is how long before a bucket ends a key orders tokens of the next.
func (k *Key) lead(bucket time.Duration) int64 { return int64(min(2*k.shard.Lead(), bucket/2)) }

// kept is how many tokens the key will use of those that it has, within so long, and so many deviations more.
func (k *Key) kept(within time.Duration, deviations float64, now int64) int64 {
	b := k.account.Buckets
	use := k.pace(min(time.Duration(b.Deadline(b.Last())-now), within), now)
	if use < 0.5 {
		return 0
	}
	return int64(math.Ceil(use + deviations*math.Sqrt(use)))
}

// refundRolling takes back n tokens that a request was charged for under a lease: into the stock, or to the store with the next
// statement if their buckets are over. It reports whether they still count.
func (k *Key) refundRolling(c Charge, n, now int64) (effect, bool) {
	w, b := k.lease.Load(), k.account.Buckets
	if w == nil || w.Window.Gen != c.Window.Gen || k.phase == phaseRetired {
		return unchanged, false
	}
	var present int64
	if !k.parted && !w.Doubted() {
		present = b.Now(now)
	}
	waited := k.account.Unconfirmed() > 0
	stock, back := b.Refund(n, c.Bucket, present, k.held())
	k.env.Counts.Refunded.Add(stock + back)
	if stock > 0 {
		k.queued().reserved += stock
		k.turn(w.Window, -1, now)
		k.usage().recall.refunded = true
	}
	if u := k.usage(); back > 0 && (u.charge == 0 || !waited) {
		u.charge = k.chargeAt(w, now)
	}
	return changed, stock+back > 0
}
