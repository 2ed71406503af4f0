package tokens

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

const ms = int64(time.Millisecond)

var w = backend.Window{End: 1}

// TestBounds: of several readings the closest bounds count, but they do not pass each
// other, though the store counts in microseconds and its clock may be set.
func TestBounds(t *testing.T) {
	l := fresh()
	assert.False(t, l.Alive(0), "it has no end yet")
	assert.False(t, l.Over(1<<60))
	for _, row := range []struct {
		what                                     string
		left, sent, now, deadline, reset, latest int64
	}{
		{"first", 10 * ms, 0, 2 * ms, 10*ms - 5000, 10 * ms, 12*ms + 5000},
		{"a closer reading", 8 * ms, 2 * ms, 3 * ms, 10*ms - 4000, 10 * ms, 11*ms + 4000},
		{"a wider one changes nothing", 5 * ms, 4 * ms, 9 * ms, 10*ms - 4000, 10 * ms, 11*ms + 4000},
		{"none is left", 0, 10 * ms, 10 * ms, 10 * ms, 10 * ms, 10 * ms},
		{"the store's clock was set back", 5 * ms, 9 * ms, 9 * ms, 14*ms - 2500, 14*ms - 2500, 14*ms - 2500},
	} {
		l.Read(backend.State{Left: time.Duration(row.left), Remaining: 7}, row.sent, row.now)
		assert.Equal(t, []int64{row.deadline, row.reset, row.latest}, []int64{l.Deadline.Load(), l.Reset.Load(), l.Latest}, row.what)
		assert.True(t, l.Alive(row.deadline-1))
		assert.False(t, l.Alive(row.deadline))
		assert.False(t, l.Over(row.latest))
		assert.True(t, l.Over(row.latest+1))
		assert.EqualValues(t, 7, l.Remaining.Load())
	}
}

// fresh is a lease that no reading has given an end.
func fresh() *Lease { return new(Tokens).turn(w, 0, math.MaxInt64/2) }

// TestDoubt: nothing is spent after a doubt until a reading says that the window is open that was requested then or later.
func TestDoubt(t *testing.T) {
	l := fresh()
	l.Read(backend.State{Left: time.Second}, 0, ms)
	assert.True(t, l.Alive(3*ms) && !l.Doubted())
	l.Doubt(4 * ms)
	l.Read(backend.State{Left: time.Second}, 4*ms-1, 5*ms)
	assert.True(t, l.Doubted())
	assert.False(t, l.Alive(5*ms), "the reply may have left the store before")
	l.Read(backend.State{Left: time.Second}, 4*ms, 6*ms)
	assert.True(t, l.Alive(6*ms) && !l.Doubted())
	assert.False(t, (*Lease)(nil).Doubted())
	l = fresh()
	l.Doubt(0)
	assert.True(t, l.Doubted(), "at the clock's first instant")
}

func TestStock(t *testing.T) {
	l := fresh()
	l.Stock.Store(10)
	left, ok := l.Spend(4)
	assert.True(t, ok)
	assert.EqualValues(t, 6, left)
	left, ok = l.Spend(7)
	assert.False(t, ok)
	assert.Zero(t, left)
	assert.EqualValues(t, 6, l.Stock.Load())
	_, ok = l.Spend(6)
	assert.True(t, ok, "the last")
	l.Stock.Store(10)
	assert.EqualValues(t, 4, l.spendUpTo(4))
	assert.EqualValues(t, 6, l.spendUpTo(7), "all that there is")
	assert.Zero(t, l.Stock.Load())
}

// TestClaimReorder: of all who see the stock at the re-order point, one must order.
func TestClaimReorder(t *testing.T) {
	l := fresh()
	assert.False(t, l.ClaimReorder(0), "there is none")
	l.Reorder.Store(3)
	assert.False(t, l.ClaimReorder(4))
	assert.True(t, l.ClaimReorder(3))
	assert.EqualValues(t, Due, l.Reorder.Load())
	assert.False(t, l.ClaimReorder(3), "once")
	l.CancelOrder()
	assert.EqualValues(t, None, l.Reorder.Load())
	l.Reorder.Store(0)
	l.CancelOrder()
	assert.True(t, l.ClaimReorder(0), "none was due that could be cancelled")
	(*Lease)(nil).CancelOrder()
}

// TestDenies: by the stock and by what the store has left.
func TestDenies(t *testing.T) {
	l := fresh()
	l.Read(backend.State{Left: time.Second, Remaining: 2}, 0, 0)
	l.Stock.Store(3)
	assert.False(t, l.Denies(9, 0), "not known")
	l.deny(100 * ms)
	assert.False(t, l.Denies(5, 0))
	assert.True(t, l.Denies(6, 0))
	assert.True(t, l.Denies(6, 100*ms-1))
	assert.False(t, l.Denies(6, 100*ms+3000), "over")
	l.deny(0)
	assert.False(t, l.Denies(6, 0), "stock is hidden")
	l.deny(-1)
	assert.False(t, l.Denies(6, 0))
}

// TestDenialsDiffer: while a caller looks twice, hundreds of rounds may hide and show
// the stock. None stores an instant that it has seen, whatever the instant is.
func TestDenialsDiffer(t *testing.T) {
	for _, until := range []int64{1, 998, 999, 1000, 1499, 1999, 1<<20 - 1, 1 << 40, 1<<62 - 1} {
		l, seen := fresh(), map[int64]bool{}
		for i := range 500 {
			if i%3 == 0 {
				l.deny(0)
			}
			l.deny(until)
			d := l.denied.Load()
			require.GreaterOrEqual(t, d, until)
			require.LessOrEqual(t, d, until+3*int64(time.Microsecond))
			require.False(t, seen[d], "round %d of %d", i, until)
			seen[d] = true
		}
	}
}

// with are tokens whose lease has a stock.
func with(stock int64) (*Tokens, *Lease) {
	x, l := new(Tokens), fresh()
	l.Stock.Store(stock)
	x.Lease.Store(l)
	return x, l
}

// TestNoFalseRefusal: the owner hides the stock and shows it again, always enough for a request of one. Nobody is refused, though some look
// while it is hidden.
func TestNoFalseRefusal(t *testing.T) {
	for _, until := range []int64{1 << 40, 1<<40 + 999 - (1<<40)%1000} {
		x, l := with(1)
		x.Publish(until)
		var wg sync.WaitGroup
		var looking atomic.Int32
		for range 2 {
			looking.Add(1)
			wg.Go(func() {
				defer looking.Add(-1)
				hidden := false
				for times := 0; times < 500; {
					if l.Denies(1, 0) {
						t.Error("refused, with a token in stock")
						return
					}
					was := hidden
					if hidden = l.Stock.Load() == 0; hidden && !was {
						times++
					}
				}
			})
		}
		for looking.Load() > 0 {
			x.Reserve()
			x.Publish(until)
		}
		wg.Wait()
	}
}

// TestSpendIsExact: however many spend, and whatever the owner does meanwhile, as much is spent as was put in.
func TestSpendIsExact(t *testing.T) {
	const tokens = 60_000
	x, l := with(0)
	var spent atomic.Int64
	var done atomic.Bool
	var wg sync.WaitGroup
	for i := range 3 {
		n := int64(1 + i)
		wg.Go(func() {
			for !done.Load() || l.Stock.Load() >= n {
				left, ok := l.Spend(n)
				if ok {
					spent.Add(n)
				}
				part := l.spendUpTo(n)
				spent.Add(part)
				if min(left, part) < 0 {
					t.Error("less than nothing is left")
				}
			}
		})
	}
	for put := int64(0); put < tokens; put += 6 {
		x.Reserve()
		x.Reserved += 6
		x.Publish(put % 2)
	}
	done.Store(true)
	wg.Wait()
	assert.EqualValues(t, tokens, spent.Load()+x.Held())
}
