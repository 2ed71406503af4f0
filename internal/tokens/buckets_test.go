package tokens

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

// aMinute is a rolling limit with buckets of 3 s. Bucket n ends at 3(n+1) s.
var aMinute = backend.Limit{Tokens: 100, Window: time.Minute}.Rolling()

const sec = int64(time.Second)

// answered lets a make a statement at the time sent, s, which the store answers as its clock stands at now, s. A second later the
// reply is here.
func answered(a *Account, held, sent, now int64, grants ...backend.Change) Moved {
	q := changes(a)
	r := backend.Reply{Now: now * 1_000_000, Grants: grants}
	for _, g := range grants {
		r.Grant += g.Tokens
	}
	m, _ := a.Apply(&q, &r, held, sent*sec, (sent+1)*sec)
	return m
}

func begun(grants ...backend.Change) *Account {
	a := new(Account)
	a.Begin(aMinute, 1)
	answered(a, 0, 0, 300, grants...)
	return a
}

// changes is what the next statement says.
func changes(a *Account) (q backend.Statement) {
	q.Limit = aMinute
	a.State(&q, backend.Window{End: 5})
	return q
}

func TestWhatIsUnspentGoesBackToItsBucket(t *testing.T) {
	a := begun(backend.Change{Bucket: 100, Tokens: 5}, backend.Change{Bucket: 102, Tokens: 7})
	require.Equal(t, []int64{100, 102}, []int64{a.Ring.First(), a.Ring.Last()})
	_, left := a.Expire(10, a.Ring.Deadline(100)-1)
	require.EqualValues(t, 10, left)
	_, left = a.Expire(10, a.Ring.Deadline(100))
	require.EqualValues(t, 7, left, "2 of the first bucket were spent, and 3 go back")
	require.Equal(t, int64(102), a.Ring.First())
	q := changes(a)
	require.Equal(t, []backend.Change{{Bucket: 100, Tokens: -3}}, q.Changes)
	require.Equal(t, []int64{1, 2, 1}, []int64{q.Life, q.Seq, q.Known})
	a.Return(4, 6)
	require.Equal(t, []backend.Change{{Bucket: 100, Tokens: -3}, {Bucket: 102, Tokens: -4}}, changes(a).Changes, "no reply came, so it is said again")
	require.Equal(t, Moved{Returned: 7}, answered(a, 2, 4, 304))
	require.Empty(t, changes(a).Changes)
	require.Equal(t, []int64{3, 5, 5}, []int64{a.InUse(2), a.Balance, a.Mine})
	require.Equal(t, []int64{0, 0}, outstanding(a))
	require.Nil(t, a.open)
}

func TestADeadlineCountsFromTheSending(t *testing.T) {
	a := begun(backend.Change{Bucket: 101, Tokens: 5})
	left := 6*sec - 6*sec/Drift - 2000
	require.Equal(t, left, a.Ring.Deadline(101))
	answered(a, 5, 2, 303) // it took a second to the store: the first reading says more
	require.Equal(t, left, a.Ring.Deadline(101))
	answered(a, 5, 3, 303)
	require.Equal(t, 6*sec-3*sec/Drift-2000, a.Ring.Deadline(101))
	answered(a, 5, 4, 306) // the store's clock was set forward
	require.Less(t, a.Ring.Deadline(101), 5*sec)
	require.Equal(t, int64(102), a.Ring.Now(5*sec))
}

func TestARefundGoesToItsBucket(t *testing.T) {
	a := begun(backend.Change{Bucket: 100, Tokens: 2}, backend.Change{Bucket: 103, Tokens: 4})
	require.Equal(t, Refunded{Stock: 1}, a.Refund(1, 100, 4, true, 0))
	require.EqualValues(t, 100, a.Ring.First(), "it is not over")
	_, left := a.Expire(5, 3*sec)
	require.EqualValues(t, 4, left)
	require.Equal(t, Refunded{Stock: 1, Back: 1}, a.Refund(2, 100, 1, true, 3*sec), "1 of bucket 100, which is over, and 3 of 103 are spent")
	require.Equal(t, []backend.Change{{Bucket: 100, Tokens: -2}}, changes(a).Changes)
	require.Equal(t, Refunded{Back: 2}, a.Refund(9, 101, 2, false, 3*sec), "no more than is spent, and to the store if it may not be spent here")
	require.EqualValues(t, 11, a.Balance, "6 were granted, and 5 refunded")
	require.Equal(t, []int64{0, 4}, outstanding(a))
}

// TestARefundOfWhatCountsNoMore: once the bucket of a lease counts no more, nobody knows which of its tokens still do.
func TestARefundOfWhatCountsNoMore(t *testing.T) {
	a := begun(backend.Change{Bucket: 100, Tokens: 2}, backend.Change{Bucket: 110, Tokens: 4})
	require.Equal(t, Moved{Settled: 2}, answered(a, 0, 63, 363))
	require.Zero(t, a.Refund(1, 100, 0, true, 63*sec))
	require.Equal(t, Refunded{Back: 1}, a.Refund(1, 101, 0, false, 63*sec))
	require.Equal(t, int64(3), a.InUse(0))
}

// TestARefundOfTwoBuckets: what fits into one bucket is not taken from the next one, too.
func TestARefundOfTwoBuckets(t *testing.T) {
	a := begun(backend.Change{Bucket: 100, Tokens: 1}, backend.Change{Bucket: 101, Tokens: 3})
	require.Equal(t, Refunded{Stock: 2}, a.Refund(2, 100, 0, true, 0))
	require.EqualValues(t, 2, a.InUse(2))
}

// TestABucketCountsNoMore: bucket 100 ends at 303 s, and counts until 363 s. Then nothing of it is held, debt or on its way.
func TestABucketCountsNoMore(t *testing.T) {
	for _, row := range []struct {
		at, held int64
		moved    Moved
		has      []int64 // in use, back, debt, in all
	}{
		{362, 11, Moved{Taken: 5}, []int64{2, 1, 1, 15}},
		{363, 9, Moved{Taken: 5, Expired: 3, Overdrawn: 1, Settled: 2 + 1}, []int64{0, 0, 0, 12}},
	} {
		a := begun(backend.Change{Bucket: 100, Tokens: 5}, backend.Change{Bucket: 101, Tokens: 4})
		q := changes(a)
		a.Refund(1, 100, 6, false, 0) // 3 of 100 are spent
		a.Declare(1, 0)
		r := backend.Reply{Now: row.at * 1_000_000, Grant: 5, Grants: []backend.Change{{Bucket: 110, Tokens: 5}}}
		m, held := a.Apply(&q, &r, 6, 62*sec, 62*sec)
		require.Equal(t, row.moved, m, "at %d s", row.at)
		debt, back := a.Unconfirmed()
		require.Equal(t, row.held, held, "at %d s", row.at)
		require.Equal(t, row.has, []int64{a.InUse(held), back, debt, a.Balance}, "at %d s", row.at)
	}
}

// TestOverdrawnInBuckets: of debt that is charged, what was above the limit then, once.
func TestOverdrawnInBuckets(t *testing.T) {
	a := begun()
	a.Declare(5, 0)
	q := changes(a)
	r := backend.Reply{Now: 301_000_000, State: backend.State{}, Used: aMinute.Tokens + 2 + 4, Grant: 4, Grants: []backend.Change{{Bucket: 100, Tokens: 4}}}
	m, held := a.Apply(&q, &r, 0, sec, sec)
	require.Equal(t, Moved{Taken: 9, Overdrawn: 2}, m)
	require.EqualValues(t, 4, held)
	require.Equal(t, []int64{0, 0}, outstanding(a))
	require.Zero(t, answered(a, 4, 2, 302), "once")
}

func TestAResetEndsWhatIsHeld(t *testing.T) {
	a := begun(backend.Change{Bucket: 100, Tokens: 5})
	a.Return(1, 5)
	a.Declare(2, 0)
	q := changes(a)
	require.Equal(t, []backend.Change{{Bucket: 100, Tokens: 1}}, q.Changes)
	r := backend.Reply{Now: 301_000_000, State: backend.State{Window: backend.Window{Gen: 7}}, Grant: 3, Grants: []backend.Change{{Bucket: 100, Tokens: 3}}}
	m, held := a.Apply(&q, &r, 3, sec, sec)
	require.Equal(t, Moved{Taken: 3, Expired: 4, Overdrawn: 2, Settled: 1 + 2}, m)
	require.Equal(t, []int64{3, 4, 0}, []int64{held, a.Balance, a.InUse(held)})
}

func TestDebtIsSpentOnceItIsCharged(t *testing.T) {
	a := begun(backend.Change{Bucket: 100, Tokens: 1})
	a.Declare(2, 4*sec)
	require.Equal(t, []backend.Change{{Bucket: 101, Tokens: 2}}, changes(a).Changes)
	require.Equal(t, Moved{Taken: 2}, answered(a, 0, 1, 301))
	require.Equal(t, []int64{1, 3}, []int64{a.InUse(0), a.Balance})
	require.Equal(t, Refunded{Back: 1}, a.Refund(9, 100, 0, false, sec), "debt stays charged")
}
