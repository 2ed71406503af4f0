package tokens

import (
	"slices"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/invariant"
)

// Ring says in which buckets the tokens of an account with a rolling limit are charged. Each token that a
// reply grants belongs to a bucket. It is spent before that ends, the oldest first, or goes back to exactly
// that bucket. A statement says by how much each bucket has changed since the last reply that was taken. Only
// the account writes it.
//
// The stock is a lease of the first bucket that has tokens, and is over at that bucket's Deadline, though it
// has the tokens of later buckets, too.
type Ring struct {
	window   time.Duration
	known    int64    // Seq of the last reply taken; 0 = none
	sent, at int64    // the best reading of the store's clock: at, us, was read after sent
	low      int64    // the first bucket that counted at the last reply
	list     []bucket // in order; those in which something is charged or changes
}

// bucket is what a bucket has of the account, by replies: granted tokens that are held, and that are spent;
// and what no reply has confirmed: tokens used without a grant, and given back, and the parts of them that
// the last statement has said. Debt that is confirmed is in neither, and cannot be refunded: where a clock
// has stepped back, the store may have charged it in another bucket.
type bucket struct {
	number             int64
	held, used         int64
	debt, back         int64
	saidDebt, saidBack int64
}

// state writes into q what a statement of a rolling limit says instead of sums. It names no window, but its
// generation, because none ends, and none runs.
func (a *Ring) state(q *backend.Statement) {
	q.Window.End, q.Runs, q.Mine, q.Used, q.Change = 0, false, 0, 0, 0
	q.Known, q.Changes = a.known, nil
	for i := range a.list {
		b := &a.list[i]
		b.saidDebt, b.saidBack = b.debt, b.back
		if n := b.debt - b.back; n != 0 {
			q.Changes = append(q.Changes, backend.Change{Bucket: b.number, Tokens: n})
		}
	}
}

// apply applies the reply r to q. It returns the sums of the buckets that count no more, and how much is
// charged in the others.
func (a *Ring) apply(q *backend.Statement, r *backend.Reply, held, sent, now int64) (gone bucket, charged int64) {
	// What was spent since, and what the store's clock is.
	a.note(held)
	if last := a.clock(now); a.known == 0 || r.Now > last || r.Now+a.passed(sent, now) <= last { // it says more, or the clock was set forward
		a.sent, a.at = sent, r.Now
	}

	// What q has said is confirmed. Of what counts no more, the account takes leave.
	a.known, a.low = q.Seq, backend.Bucket(r.Now, a.window)-backend.Buckets
	kept := a.list[:0]
	for _, b := range a.list {
		b.debt, b.back, b.saidDebt, b.saidBack = b.debt-b.saidDebt, b.back-b.saidBack, 0, 0
		if b.number < a.low {
			gone.add(b)
		} else if b != (bucket{number: b.number}) {
			kept = append(kept, b)
		}
	}
	a.list = kept

	// The grants.
	for _, g := range r.Grants {
		a.bucket(g.Bucket).held += g.Tokens
	}
	in := a.sum()
	return gone, in.held + in.used + in.back
}

// note takes what is held no more for spent, of the oldest buckets.
func (a *Ring) note(held int64) {
	spent := a.sum().held - held
	for i := 0; i < len(a.list) && spent > 0; i++ {
		b := &a.list[i]
		n := min(spent, b.held)
		b.held, b.used, spent = b.held-n, b.used+n, spent-n
	}
	invariant.That(spent == 0, "%d tokens more are held than there were", -spent)
}

// bucket returns that with a number, which it makes if there is none.
func (a *Ring) bucket(number int64) *bucket {
	i, found := slices.BinarySearchFunc(a.list, number, func(b bucket, number int64) int { return int(b.number - number) })
	if !found {
		a.list = slices.Insert(a.list, i, bucket{number: number})
	}
	return &a.list[i]
}

// Drift bounds how much two clocks differ in speed: 1/Drift, 500 parts in a million.
const Drift = 2000

// passed is how many us pass by the store's clock between two times at most.
func (a *Ring) passed(from, to int64) int64 { return (to-from+(to-from)/Drift)/1000 + 1 }

// clock is the store's clock at now, us, at the latest.
func (a *Ring) clock(now int64) int64 { return a.at + a.passed(a.sent, now) }

// Now is the bucket in which the store is at now, at the latest, and 0 if no reply has told the store's
// clock.
func (a *Ring) Now(now int64) int64 {
	if a.known == 0 {
		return 0
	}
	return backend.Bucket(a.clock(now), a.window)
}

// Deadline is until when tokens of a bucket may be spent. It counts from the sending of a statement, because
// the store read its clock after that.
func (a *Ring) Deadline(number int64) int64 {
	left := (backend.BucketEnd(number, a.window) - a.at) * 1000
	return a.sent + left - left/Drift - 2000
}

// First is the first bucket that has tokens which are held, and 0 if none has.
func (a *Ring) First() int64 {
	for _, b := range a.list {
		if b.held > 0 {
			return b.number
		}
	}
	return 0
}

// Last is the last bucket that has tokens which are held, and 0 if none has. A statement that is made before
// it ends may ask for later ones; see [backend.Rolling].
func (a *Ring) Last() int64 {
	for _, b := range slices.Backward(a.list) {
		if b.held > 0 {
			return b.number
		}
	}
	return 0
}

// expire gives the tokens of buckets that are over back to them, and returns how many they are.
func (a *Ring) expire(held, now int64) (n int64) {
	a.note(held)
	for i := range a.list {
		if b := &a.list[i]; b.held > 0 && now >= a.Deadline(b.number) {
			n += b.held
			b.held, b.back = 0, b.back+b.held
		}
	}
	return n
}

// giveBack gives back n of the tokens held, those of the last buckets.
func (a *Ring) giveBack(n, held int64) {
	a.note(held)
	for i := len(a.list) - 1; i >= 0 && n > 0; i-- {
		b := &a.list[i]
		some := min(n, b.held)
		b.held, b.back, n = b.held-some, b.back+some, n-some
	}
}

// refund records that n tokens were not used after all that were spent under a lease of the bucket number.
// stock of them are held again, if their bucket is not over. back go back to the store. The others count no
// more.
//
// They are taken from the first bucket from number on of which tokens are used, because the tokens spent
// under leases are interchangeable. The ring needs for each token that is spent a charge of its own in the
// bucket of that instant or a later one. Let each be matched so. The token x that was not used was matched to
// number or a later bucket when it was spent, as all of its lease were. The first bucket i from number on
// with a used token y is not later than that of x. If it is another one, match y to the bucket of x: that is
// later than i, so it is not before y was spent. Now x is matched to i, and can go. A match only ever moves
// to a later bucket, so that holds for the next refund, too. If number itself counts no more, x may be
// matched to what was forgotten.
func (a *Ring) refund(n, number, held int64, spend bool, now int64) (stock, back int64) {
	if a.note(held); number < a.low {
		return 0, 0
	}
	present := a.Now(now)
	for i := range a.list {
		b := &a.list[i]
		if b.number < number {
			continue
		}
		some := min(n-stock-back, b.used)
		if b.used -= some; spend && b.number >= present {
			b.held, stock = b.held+some, stock+some
		} else {
			b.back, back = b.back+some, back+some
		}
	}
	return stock, back
}

// sum is the sum of all buckets.
func (a *Ring) sum() (all bucket) {
	for i, b := range a.list {
		if all.add(b); invariant.Enabled {
			invariant.That(i == 0 || a.list[i-1].number < b.number, "buckets out of order: %v", a.list)
			invariant.That(b.held >= 0 && b.used >= 0 && 0 <= b.saidDebt && b.saidDebt <= b.debt && 0 <= b.saidBack && b.saidBack <= b.back, "bucket %+v", b)
		}
	}
	return all
}

func (b *bucket) add(o bucket) {
	b.held, b.used, b.debt, b.back = b.held+o.held, b.used+o.used, b.debt+o.debt, b.back+o.back
}
