package tokens

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

var seventh, eighth = backend.Window{End: 3, Gen: 7}, backend.Window{End: 3, Gen: 8}

// says lets x make a statement at sent, s, to which the store replies at once, and a second later the reply is here.
func says(x *Tokens, sent int64, r backend.Reply) applied {
	q := &backend.Statement{Limit: limit}
	if x.Account.Ring != nil {
		q.Limit, r.Now = aMinute, (300+sent)*1_000_000
	}
	for _, g := range r.Grants {
		r.Grant += g.Tokens
	}
	of := backend.Window{}
	if w := x.Lease.Load(); w != nil {
		of = w.Window
	}
	x.Account.State(q, of)
	m, entered := x.Apply(q, &r, sent*sec, (sent+1)*sec)
	return applied{m, entered}
}

// applied is what a reply has changed.
type applied struct {
	Moved
	entered bool
}

// inWindow was granted 10 tokens in the first window, which ends in a minute. 6 of them are in stock.
func inWindow() *Tokens {
	x := new(Tokens)
	x.Account.Begin(limit, 3)
	says(x, 0, inFirst(10, 10))
	x.Publish(0)
	x.Lease.Load().Spend(4)
	return x
}

func inFirst(mine, grant int64) backend.Reply {
	return backend.Reply{State: backend.State{Window: first, Left: time.Minute, Remaining: 50}, Mine: mine, Grant: grant, Used: 40}
}

func inSecond(mine, grant int64) backend.Reply {
	r := inFirst(mine, grant)
	r.Window = second
	return r
}

// rolling was granted 5 tokens of a bucket that ends at 3 s, and 7 of one that ends at 9 s. 8 of them are in stock.
func rolling() *Tokens {
	x := new(Tokens)
	x.Account.Begin(aMinute, 3)
	says(x, 0, inRing(backend.Change{Bucket: 100, Tokens: 5}, backend.Change{Bucket: 102, Tokens: 7}))
	x.Publish(0)
	x.Lease.Load().Spend(4)
	return x
}

func inRing(grants ...backend.Change) backend.Reply {
	return backend.Reply{State: backend.State{Window: seventh, Remaining: 50}, Grants: grants}
}

// figures is where the tokens of x are.
func figures(x *Tokens) string {
	s, bucket, stock, used := "", int64(0), int64(0), x.Account.InUse(x.Held())
	debt, back := x.Account.Unconfirmed()
	if w := x.Lease.Load(); w != nil {
		bucket, stock = w.Bucket, w.Stock.Load()
	}
	for _, f := range []struct {
		n    int64
		name string
	}{{stock, "in stock"}, {x.Reserved, "reserved"}, {used, "in use"}, {back, "back"}, {debt, "debt"}, {bucket, "bucket"}} {
		if f.n != 0 {
			s += fmt.Sprint(f.n, " ", f.name, ", ")
		}
	}
	return s
}

type event struct {
	name  string
	does  func(x *Tokens) any // says what the event does
	wants any
	then  string
}

func play(t *testing.T, begin func() *Tokens, events []event) {
	for _, e := range events {
		x := begin()
		assert.EqualValues(t, e.wants, e.does(x), e.name)
		assert.Equal(t, e.then, figures(x), e.name)
	}
}

func charge(w backend.Window, bucket int64) Charge {
	return Charge{Tokens: 4, Window: w, Bucket: bucket}
}

func refund(c Charge, n int64, spend bool, now int64) func(x *Tokens) any {
	return func(x *Tokens) any {
		r, ok := x.Refund(c, n, spend, now)
		return fmt.Sprint(r.Stock, r.Back, r.Paid, ok)
	}
}

func expire(now int64, inFlight bool) func(x *Tokens) any {
	return func(x *Tokens) any {
		m, reserved := x.Expire(now, inFlight)
		return fmt.Sprint(m.Expired, m.Overdrawn, reserved)
	}
}

// after is both, one after the other.
func after(before func(x *Tokens), does func(x *Tokens) any) func(x *Tokens) any {
	return func(x *Tokens) any { before(x); return does(x) }
}

func overrun(n int64) func(x *Tokens) { return func(x *Tokens) { x.Overrun(n, sec) } }

// TestInAWindow: each row begins with 6 tokens in stock, and 4 in use.
func TestInAWindow(t *testing.T) {
	mine := charge(first, 0)
	apply := func(r backend.Reply) func(x *Tokens) any { return func(x *Tokens) any { return says(x, 5, r) } }
	carry := func(x *Tokens) { says(x, 5, inSecond(15, 5)) }
	play(t, inWindow, []event{
		{"callers in line take", func(x *Tokens) any { x.Reserve(); x.Reserved -= 2; return x.Held() }, 4, "4 reserved, 6 in use, "},
		{"the rest is spent", func(x *Tokens) any { x.Reserve(); x.Publish(0); return x.Held() }, 6, "6 in stock, 4 in use, "},

		{"some go back", func(x *Tokens) any { return []int64{x.Return(2), x.Lease.Load().Remaining.Load()} }, []int64{2, 52}, "4 in stock, 4 in use, 2 back, "},
		{"all that there are", func(x *Tokens) any { return x.Return(9) }, 6, "4 in use, 6 back, "},
		{"but not those of callers in line", func(x *Tokens) any { x.Reserve(); return x.Return(9) }, 0, "6 reserved, 4 in use, "},
		{"unless the key leaves", func(x *Tokens) any { x.Reserve(); return x.Return(-1) }, 6, "4 in use, 6 back, "},

		{"more was used", func(x *Tokens) any { return x.Overrun(2, sec) }, 0, "4 in stock, 6 in use, "},
		{"more than there is", func(x *Tokens) any { return x.Overrun(9, sec) }, 3, "10 in use, 3 debt, "},
		{"debt is spent once it is charged", after(overrun(9), apply(inFirst(13, 0))), applied{Moved{Taken: 3}, false}, "13 in use, "},

		{"a refund", refund(mine, 3, true, sec), "3 0 0 true", "6 in stock, 3 reserved, 1 in use, "},
		{"of no more than is spent", refund(mine, 5, true, sec), "4 0 0 true", "6 in stock, 4 reserved, "},
		{"that may not be spent here", refund(mine, 3, false, sec), "0 3 0 true", "6 in stock, 1 in use, 3 back, "},
		{"that pays for debt first", after(overrun(9), refund(mine, 5, true, sec)), "2 0 3 true", "2 reserved, 8 in use, "},
		{"of another window", refund(charge(second, 0), 3, true, sec), "0 0 0 false", "6 in stock, 4 in use, "},
		{"of the window before, if the store has carried it over", after(carry, refund(mine, 3, true, 6*sec)), "3 0 0 true", "14 reserved, 1 in use, "},
		{"but of no other one", after(carry, refund(charge(backend.Window{End: 3}, 0), 3, true, 6*sec)), "0 0 0 false", "11 reserved, 4 in use, "},
		{"or of none", after(func(x *Tokens) { x.Return(0); x.Return(1) }, refund(Charge{}, 3, true, sec)), "0 0 0 false", "5 in stock, 4 in use, 1 back, "},

		{"the window is not surely over", expire(61*sec, false), "0 0 false", "6 in stock, 4 in use, "},
		{"it is", expire(62*sec, false), "6 0 false", "4 in use, "},
		{"what is reserved, and debt, is over, too", after(func(x *Tokens) { x.Overrun(9, sec); x.Refund(mine, 5, true, sec); x.Overrun(3, sec) }, expire(62*sec, false)), "2 3 false", "8 in use, "},
		{"unless a reply decides", expire(62*sec, true), "0 0 false", "6 in stock, 4 in use, "},
		{"the key leaves", func(x *Tokens) any { x.Reserve(); return x.Drop() }, Moved{Expired: 6, Settled: 4}, ""},

		{"a grant", apply(inFirst(15, 5)), applied{Moved{Taken: 5}, false}, "11 reserved, 4 in use, "},
		{"of another window", apply(inSecond(5, 5)), applied{Moved{Taken: 5, Expired: 6, Settled: 4}, true}, "5 reserved, "},
		{"of one in which the rest counts, too", apply(inSecond(15, 5)), applied{Moved{Taken: 5}, true}, "11 reserved, 4 in use, "},
		{"nothing is charged, and no window is open", apply(backend.Reply{}), applied{Moved{Expired: 6, Settled: 4}, true}, ""},
		{"nor was", after(func(x *Tokens) { x.Drop() }, apply(backend.Reply{})), applied{Moved{}, false}, ""},
		{"a first grant", after(func(x *Tokens) { x.Drop(); x.Account.Begin(limit, 4) }, apply(inFirst(2, 2))), applied{Moved{Taken: 2}, true}, "2 reserved, "},
	})
}

// TestInBuckets: each row begins with 8 tokens in stock, of which 1 is of the bucket that ends at 3 s and 7 of that at 9 s, and
// with 4 spent.
func TestInBuckets(t *testing.T) {
	mine := charge(seventh, 100)
	apply := func(r backend.Reply) func(x *Tokens) any { return func(x *Tokens) any { return says(x, 1, r).Moved } }
	turned := func(x *Tokens) { x.Expire(3*sec, false) }
	doubt := func(x *Tokens) { x.Lease.Load().Doubt(2 * sec) }
	spent := func(x *Tokens) { x.Overrun(8, sec); says(x, 1, inRing()) }
	reset := inRing()
	reset.Window = eighth
	play(t, rolling, []event{
		{"the bucket is not over", expire(2*sec, false), "0 0 false", "8 in stock, 4 in use, 100 bucket, "},
		{"it is, so its token goes back", expire(3*sec, false), "0 0 true", "7 reserved, 4 in use, 1 back, 102 bucket, "},
		{"also while a statement is in flight", expire(3*sec, true), "0 0 true", "7 reserved, 4 in use, 1 back, 102 bucket, "},
		{"but not while a Reset is in doubt", after(doubt, expire(3*sec, false)), "0 0 false", "8 in stock, 4 in use, 100 bucket, "},
		{"all are", expire(9*sec, false), "0 0 true", "4 in use, 8 back, "},

		{"some go back, of the last bucket", func(x *Tokens) any { n := x.Return(7); _, last := x.Last(); return []int64{n, last} }, []int64{7, 100}, "1 in stock, 4 in use, 7 back, 100 bucket, "},
		{"all do", func(x *Tokens) any { x.Reserve(); return x.Return(-1) }, 8, "4 in use, 8 back, 100 bucket, "},
		{"more was used than there is", func(x *Tokens) any { return x.Overrun(9, sec) }, 1, "12 in use, 1 debt, 100 bucket, "},

		{"a refund", refund(mine, 3, true, sec), "3 0 0 true", "8 in stock, 3 reserved, 1 in use, 100 bucket, "},
		{"of no more than is spent", refund(mine, 5, true, sec), "4 0 0 true", "8 in stock, 4 reserved, 100 bucket, "},
		{"that may not be spent here", refund(mine, 3, false, sec), "0 3 0 true", "8 in stock, 1 in use, 3 back, 100 bucket, "},
		{"or is in doubt", after(doubt, refund(mine, 3, true, sec)), "0 3 0 true", "8 in stock, 1 in use, 3 back, 100 bucket, "},
		{"of a bucket that is over", after(turned, refund(mine, 3, true, 3*sec)), "0 3 0 true", "7 reserved, 1 in use, 4 back, 102 bucket, "},
		{"after all was spent", after(spent, refund(charge(seventh, 102), 3, true, 2*sec)), "3 0 0 true", "3 reserved, 9 in use, 102 bucket, "},
		{"of what a Reset has voided", refund(charge(eighth, 100), 3, true, sec), "0 0 0 false", "8 in stock, 4 in use, 100 bucket, "},
		{"of nothing", after(func(x *Tokens) { x.Refund(mine, 4, true, sec) }, refund(mine, 3, true, sec)), "0 0 0 false", "8 in stock, 4 reserved, 100 bucket, "},

		{"a grant", apply(inRing(backend.Change{Bucket: 105, Tokens: 3})), Moved{Taken: 3}, "11 reserved, 4 in use, 100 bucket, "},
		{"of a later bucket, when all is spent", after(spent, apply(inRing(backend.Change{Bucket: 105, Tokens: 3}))), Moved{Taken: 3}, "3 reserved, 12 in use, 105 bucket, "},
		{"a refund of an earlier bucket than that of the lease", after(func(x *Tokens) { x.Overrun(1, sec); says(x, 1, inRing()); x.Publish(0) }, refund(mine, 3, true, 2*sec)), "3 0 0 true", "10 reserved, 2 in use, 100 bucket, "},
		{"a Reset, and a grant of the same bucket", func(x *Tokens) any {
			r := inRing(backend.Change{Bucket: 100, Tokens: 2})
			r.Window = eighth
			says(x, 1, r)
			return x.Lease.Load().Window
		}, eighth, "2 reserved, 100 bucket, "},
		{"a Reset", apply(reset), Moved{Expired: 8, Settled: 4}, ""},
		{"the key leaves", func(x *Tokens) any { x.Reserve(); return x.Drop() }, Moved{Expired: 8, Settled: 4}, ""},
	})
}

// TestTurn: the lease of the next bucket knows what the last one knew, and callers who have that find nothing there.
func TestTurn(t *testing.T) {
	x := rolling()
	was := x.Lease.Load()
	was.Reorder.Store(5)
	was.Free(20*time.Second, 0)
	x.Expire(3*sec, false)
	is := x.Lease.Load()
	require.NotSame(t, was, is)
	assert.Equal(t, []int64{0, 0}, []int64{was.Stock.Load(), is.Stock.Load()})
	assert.Equal(t, []int64{50, x.Account.Ring.Deadline(102), was.Latest}, []int64{is.Remaining.Load(), is.Deadline.Load(), is.Latest})
	assert.True(t, is.ClaimReorder(5) && is.Reset.Load() == 20*sec+20*sec/Drift)

	until, last := x.Last()
	assert.Equal(t, []int64{is.Deadline.Load(), 102}, []int64{until, last})
	x.Publish(100 * sec)
	says(x, 4, inRing())
	assert.Same(t, is, x.Lease.Load(), "of the same bucket")
	assert.False(t, is.Denies(99, 5*sec), "there may be more")
	is.Doubt(6 * sec)
	says(x, 5, inRing())
	assert.True(t, x.Lease.Load().Doubted(), "the statement was made before")
	says(x, 6, inRing())
	assert.False(t, x.Lease.Load().Doubted())
}

// TestStated: what a statement says of the tokens, and until when they count.
func TestStated(t *testing.T) {
	for _, row := range []struct {
		name    string
		x       *Tokens
		until   int64 // when it is too late to state what is held, within a second
		longest time.Duration
		taken   int64
	}{
		{"of a window", inWindow(), 60 * sec, time.Minute, 10},
		{"of buckets", rolling(), 94 * sec, 93 * time.Second, 12},
	} {
		q, of := backend.Statement{}, row.x.Lease.Load().Window
		assert.False(t, row.x.Empty(), row.name)
		row.x.Return(2)
		row.x.Account.State(&q, of)
		assert.Equal(t, of.Gen, q.Window.Gen, row.name)
		assert.Equal(t, row.x.Account.Ring == nil, q.Window.End != 0, "%s: a ring has no end", row.name)
		change := q.Change
		for _, c := range q.Changes {
			change += c.Tokens
		}
		assert.EqualValues(t, -2, change, row.name)
		assert.InDelta(t, row.until, row.x.Until(), float64(sec/10), row.name)
		assert.Equal(t, row.taken, row.x.Account.Mine, row.name)
		row.x.Refund(Charge{Window: of, Bucket: 100}, 3, true, sec)
		assert.Equal(t, []int64{4, row.taken + 3}, []int64{row.x.Spent(), row.x.Account.Balance}, "%s: what is refunded was spent", row.name)
		l := limit
		l.Rolls = row.x.Account.Ring != nil
		assert.Equal(t, row.longest, Longest(l), row.name)
		row.x.Return(-1)
		assert.False(t, row.x.Empty(), "%s: not confirmed", row.name)
	}
	x := new(Tokens)
	x.Account.Begin(limit, 3)
	q := backend.Statement{}
	x.Account.State(&q, backend.Window{})
	assert.Equal(t, backend.Statement{Life: 3, Seq: 1}, q)
	assert.True(t, x.Empty() && x.Until() == 0)
	_, ok := x.Refund(charge(first, 0), 1, true, 0)
	assert.False(t, ok)
	x = inWindow()
	x.Overrun(9, sec)
	assert.False(t, x.Empty(), "in debt")
}

// TestFrees: a rolling limit says when its next tokens count no more, and a fixed one has a reset instead.
func TestFrees(t *testing.T) {
	x := rolling()
	x.Lease.Load().Free(20*time.Second, sec)
	assert.Equal(t, 21*sec+20*sec/Drift, x.Frees())
	assert.Zero(t, inWindow().Frees())
	until, last := inWindow().Last()
	assert.Equal(t, []int64{0, 0}, []int64{until, last})
}

// TestLateReply: a window and more after a Reset, about which the reply before was in doubt, a statement of a rolling limit is answered that
// was sent long ago. What is held of buckets that count no more must not be spent with what the reply brings; and this may count for as
// long after the reply as any, because nobody knows how long the statement took to arrive.
func TestLateReply(t *testing.T) {
	var k Tokens
	k.Account.Begin(aMinute, 1)
	hear := func(sent, store, now, grant int64) Moved {
		q := backend.Statement{Limit: aMinute}
		k.Account.State(&q, seventh)
		r := backend.Reply{State: backend.State{Window: seventh}, Now: store * 1_000_000, Grant: grant, Grants: []backend.Change{{Bucket: store / 3, Tokens: grant}}}
		m, _ := k.Apply(&q, &r, sent*sec, now*sec)
		return m
	}
	hear(0, 300, 1, 5)
	k.Lease.Load().Doubt(sec)
	m := hear(2, 370, 71, 7)
	require.EqualValues(t, 5, m.Expired)
	require.EqualValues(t, 7, k.Held())
	require.Zero(t, k.Spent())
	require.Equal(t, 71*sec+int64(Longest(aMinute)), k.Lease.Load().Latest)
}
