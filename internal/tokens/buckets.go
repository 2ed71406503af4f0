package tokens

import (
	"slices"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/invariant"
)

// Buckets is one limiter's account of one key with a rolling limit. Each token that a reply grants belongs to a bucket. It is spent before
// that bucket ends, the oldest first, or goes back to exactly that bucket. A statement says by how much each bucket has
// changed since the last reply that was taken. Times are ns by the limiter's clock. It is not safe for concurrent use; the
// owner's lock guards it.
//
// The stock that is spent without the lock is a lease of the first bucket that has tokens: First names it, and it is over at that
// bucket's Deadline, though it has the tokens of later buckets, too. Then Expire says what stays for the next lease.
// A method that takes held, which is what the process holds, first takes what is missing for spent.
type Buckets struct {
	limit     backend.Limit
	life, seq int64
	known     int64 // Seq of the last reply taken; 0 = none
	gen       int64 // of that reply
	sent, at  int64 // the best reading of the store's clock: at, us, was read after sent
	low       int64 // the first bucket that counted at the last reply
	balance   int64 // tokens held, spent or unconfirmed
	list      []bucket
}

// bucket is what a bucket has of the account, by replies: granted tokens that are held, and that are spent; and what no reply has
// confirmed: tokens used without a grant, and given back, and the parts of them that the last statement has said. Debt that is
// confirmed is in neither, and cannot be refunded: where a clock has stepped back, the store may have charged it in another bucket.
type bucket struct {
	number             int64
	held, used         int64
	debt, back         int64
	saidDebt, saidBack int64
}

// Begin begins a life, which must have a higher number than all lives of this limiter before it.
func (a *Buckets) Begin(limit backend.Limit, life int64) { *a = Buckets{limit: limit, life: life} }

// State writes the account into q, which is about to be sent. Replies to earlier statements count no more.
func (a *Buckets) State(q *backend.Statement) {
	a.seq++
	q.Life, q.Seq, q.Known, q.Window, q.Changes = a.life, a.seq, a.known, backend.Window{Gen: a.gen}, nil
	for i := range a.list {
		b := &a.list[i]
		b.saidDebt, b.saidBack = b.debt, b.back
		if n := b.debt - b.back; n != 0 {
			q.Changes = append(q.Changes, backend.Change{Bucket: b.number, Tokens: n})
		}
	}
}

// Apply applies the reply r to q, the last statement, which was sent at sent, and is not void. If there was a Reset since the last
// reply, all that is held expires. Afterwards the balance includes the grants.
func (a *Buckets) Apply(q *backend.Statement, r *backend.Reply, held, sent, now int64) (m Moved) {
	a.note(held)
	a.read(r.Now, sent, now)
	if a.known = q.Seq; r.Window.Gen != a.gen {
		m = a.Leave(held)
		a.gen = r.Window.Gen
	}
	a.balance += m.Expired // until all is counted
	over := max(r.Used-r.Grant-q.Limit.Tokens, 0)
	a.low = backend.Bucket(r.Now, a.limit.Window) - backend.Buckets
	kept := a.list[:0]
	for _, b := range a.list {
		m.Taken, m.Returned = m.Taken+b.saidDebt, m.Returned+b.saidBack
		b.debt, b.back = b.debt-b.saidDebt, b.back-b.saidBack
		b.saidDebt, b.saidBack = 0, 0
		if b.number < a.low { // it counts no more
			m.Expired, m.Overdrawn, m.Settled = m.Expired+b.held+b.back, m.Overdrawn+b.debt, m.Settled+b.used
		} else if b != (bucket{number: b.number}) {
			kept = append(kept, b)
		}
	}
	a.list = kept
	m.Overdrawn += min(m.Taken, over)
	a.balance += m.Taken - m.Returned - m.Expired
	for _, g := range r.Grants {
		a.bucket(g.Bucket).held += g.Tokens
		m.Taken += g.Tokens
		a.balance += g.Tokens
	}
	a.check()
	return m
}

// Leave ends the account of a generation: what is held or has gone back in vain expires, and debt must not be charged any more.
func (a *Buckets) Leave(held int64) (m Moved) {
	m.Settled = a.InUse(held)
	m.Expired, m.Overdrawn = held+a.Unconfirmed(), a.Unpaid()
	a.balance -= m.Expired
	a.list = nil
	return m
}

// note takes what is held no more for spent, of the oldest buckets.
func (a *Buckets) note(held int64) {
	spent := a.held() - held
	for i := 0; i < len(a.list) && spent > 0; i++ {
		b := &a.list[i]
		n := min(spent, b.held)
		b.held, b.used, spent = b.held-n, b.used+n, spent-n
	}
	if invariant.Enabled {
		invariant.That(spent == 0, "%d tokens more are held than there were", -spent)
	}
}

// bucket returns that with a number, which it makes if there is none.
func (a *Buckets) bucket(number int64) *bucket {
	i, found := slices.BinarySearchFunc(a.list, number, func(b bucket, number int64) int { return int(b.number - number) })
	if !found {
		a.list = slices.Insert(a.list, i, bucket{number: number})
	}
	return &a.list[i]
}

// drift bounds how much two clocks differ in speed: 1/drift, 500 parts in a million.
const drift = 2000

// read keeps a reading of the store's clock if it says more than the last one, or shows that the clock was set forward.
func (a *Buckets) read(at, sent, now int64) {
	last := a.clock(now)
	if a.known == 0 || at > last || at+a.passed(sent, now) <= last {
		a.sent, a.at = sent, at
	}
}

// passed is how many us pass by the store's clock between two times at most.
func (a *Buckets) passed(from, to int64) int64 { return (to-from+(to-from)/drift)/1000 + 1 }

// clock is the store's clock at now, us, at the latest.
func (a *Buckets) clock(now int64) int64 { return a.at + a.passed(a.sent, now) }

// Now is the bucket in which the store is at now, at the latest, and 0 if no reply has told the store's clock.
func (a *Buckets) Now(now int64) int64 {
	if a.known == 0 {
		return 0
	}
	return backend.Bucket(a.clock(now), a.limit.Window)
}

// Deadline is until when tokens of a bucket may be spent. It counts from the sending of a statement, because the store read its clock after
// that.
func (a *Buckets) Deadline(number int64) int64 {
	left := (backend.BucketEnd(number, a.limit.Window) - a.at) * 1000
	return a.sent + left - left/drift - 2000
}

// First is the first bucket that has tokens which are held, and 0 if none has.
func (a *Buckets) First() int64 {
	for _, b := range a.list {
		if b.held > 0 {
			return b.number
		}
	}
	return 0
}

// Last is the last bucket that has tokens which are held, and 0 if none has. A statement that is made before it ends may
// ask for later ones; see [backend.Rolling].
func (a *Buckets) Last() int64 {
	for _, b := range slices.Backward(a.list) {
		if b.held > 0 {
			return b.number
		}
	}
	return 0
}

// Expire takes the tokens of buckets that are over out of what is held. They go back to their buckets. It returns how many they
// are.
func (a *Buckets) Expire(held, now int64) (n int64) {
	a.note(held)
	for i := range a.list {
		if b := &a.list[i]; b.held > 0 && now >= a.Deadline(b.number) {
			n += b.held
			b.held, b.back = 0, b.back+b.held
		}
	}
	a.check()
	return n
}

// Return takes n unspent tokens out of what is held, those of the last buckets. They count as held until the store has confirmed
// a statement that returns them.
func (a *Buckets) Return(n, held int64) {
	a.note(held)
	for i := len(a.list) - 1; i >= 0 && n > 0; i-- {
		b := &a.list[i]
		some := min(n, b.held)
		b.held, b.back, n = b.held-some, b.back+some, n-some
	}
	a.check()
}

// Refund records that n tokens were not used after all that were spent under a lease of the bucket number. stock of them are held
// again, under the present lease, which is one of the bucket lease and must not be over; a lease of 0 is none. back go back to the store. The
// others count no more.
//
// They are taken from the first bucket from number on of which tokens are used, because the tokens spent under leases are
// interchangeable. The ring needs for each token that is spent a charge of its own in the bucket of that instant or a later one. Let
// each be matched so. The token x that was not used was matched to number or a later bucket when it was spent, as all of its
// lease were. The first bucket i from number on with a used token y is not later than that of x. If it is another one, match
// y to the bucket of x: that is later than i, so it is not before y was spent. Now x is matched to i, and can go. A match only ever moves
// to a later bucket, so that holds for the next refund, too. If number itself counts no more, x may be matched to what was forgotten.
func (a *Buckets) Refund(n, number, lease, held int64) (stock, back int64) {
	if a.note(held); number < a.low {
		return 0, 0
	}
	for i := range a.list {
		b := &a.list[i]
		if b.number < number {
			continue
		}
		some := min(n-stock-back, b.used)
		if b.used -= some; lease > 0 && b.number >= lease {
			b.held, stock = b.held+some, stock+some
		} else {
			b.back, back = b.back+some, back+some
		}
	}
	a.balance += stock + back
	a.check()
	return stock, back
}

// Declare adds n tokens of debt, which were used without a grant in a bucket; 0 is the one in which the store hears of it.
func (a *Buckets) Declare(n, number int64) {
	b := a.bucket(number)
	b.debt = min(b.debt+n, backend.MaxTokens)
}

func (a *Buckets) sum(of func(bucket) int64) (n int64) {
	for _, b := range a.list {
		n += of(b)
	}
	return n
}

func (a *Buckets) held() int64 { return a.sum(func(b bucket) int64 { return b.held }) }

// Unpaid is the debt that the store has not confirmed.
func (a *Buckets) Unpaid() int64 { return a.sum(func(b bucket) int64 { return b.debt }) }

// Unconfirmed is how many tokens that went back the store has not confirmed.
func (a *Buckets) Unconfirmed() int64 { return a.sum(func(b bucket) int64 { return b.back }) }

// InUse is how many granted tokens that still count are spent.
func (a *Buckets) InUse(held int64) int64 {
	a.note(held)
	return a.sum(func(b bucket) int64 { return b.used })
}

// Spent is how many tokens requests have used over the account's life.
func (a *Buckets) Spent(held int64) int64 { return a.balance - held - a.Unconfirmed() }

// Balance is the sum of the tokens held, spent and unconfirmed.
func (a *Buckets) Balance() int64 { return a.balance }

// check asserts the invariants.
func (a *Buckets) check() {
	if invariant.Enabled {
		for i, b := range a.list {
			invariant.That(i == 0 || a.list[i-1].number < b.number, "buckets out of order: %v", a.list)
			invariant.That(b.held >= 0 && b.used >= 0 && 0 <= b.saidDebt && b.saidDebt <= b.debt && 0 <= b.saidBack && b.saidBack <= b.back, "bucket %+v", b)
		}
	}
}
