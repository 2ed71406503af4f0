package demand

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/go-reservoir/reservoir/backend"
)

const s = time.Second

// The limit of the rows is 60,000 a minute.
var limit = backend.Limit{Tokens: 60_000, Window: time.Minute}

// at is a demand of rate and size, with a peak and a recent rate that are no higher.
func at(rate, size float64) *Demand {
	return &Demand{rateEstimate: rateEstimate{rate: rate, recent: rate, seen: 600, size: size}}
}

// TestRate: the means and the peak after each observation.
func TestRate(t *testing.T) {
	p := rateEstimate{size: 1}.observe(time.Minute, 10*s, 100, 1)
	assert.InDelta(t, 10, p.rate, 0.01, "the first observation counts whole")
	assert.InDelta(t, 8, p.peak, 0.01, "less two deviations of 10")
	p = p.observe(time.Minute, 10*s, 0, 1)
	assert.InDelta(t, 10*0.368, p.rate, 0.01, "forgotten in a sixth of the window")
	assert.InDelta(t, 8*0.846, p.peak, 0.01, "the peak in a whole one")
	p = p.observe(time.Minute, s/100, 100, 1)
	assert.InDelta(t, 8000, p.peak, 0.01)
	assert.Zero(t, rateEstimate{size: 1}.observe(time.Minute, 0, 1, 1).peak, "one token is no rate")
	assert.Zero(t, rateEstimate{size: 1}.observe(time.Minute, s, -3, 1).peak, "more was refunded than spent")
	assert.Zero(t, rateEstimate{size: 1}.observe(time.Minute, s, -3, 1).rate)

	p = rateEstimate{size: 1}.observe(time.Minute, s, 4, 1)
	assert.InDelta(t, 2, p.observe(time.Minute, 3*s, 4, 1).rate, 0.01, "a mean, until the memory is full")
	slow := rateEstimate{rate: 1, recent: 1, seen: 300, size: 1}
	assert.InDelta(t, math.Exp(-0.2), slow.observe(time.Minute, 20*s, 0, 1).rate, 0.01, "100 requests long")
	assert.Greater(t, slow.observe(time.Minute, 5*s, 500, 1).rate, 30.0, "it is surely faster now")
	large := rateEstimate{rate: 10, recent: 10, seen: 600, size: 10}
	assert.InDelta(t, 10*math.Exp(-0.2), large.observe(time.Minute, 20*s, 0, 10).rate, 0.01, "100 requests of ten tokens")
	assert.InDelta(t, 5, rateEstimate{size: 1}.observe(time.Minute, s, 4, 5).size, 0.01, "the first whole")
	assert.InDelta(t, 2, rateEstimate{size: 1, seen: 1}.observe(time.Minute, s, 4, 5).size, 0.01, "a quarter of the way")
	rare := rateEstimate{rate: 0.01, recent: 0.01, seen: 1e6, size: 1}
	assert.InDelta(t, 0.01*math.Exp(-0.2), rare.observe(time.Minute, 60*s, 0, 1).rate, 1e-5, "five windows at most")

	five := rateEstimate{rate: 20, recent: 20, seen: 600, size: 5}.observe(time.Minute, s, 0, 5)
	assert.InDelta(t, 20*math.Exp(-0.2), five.recent, 0.01, "20 requests of five tokens")

	quick := rateEstimate{rate: 100, recent: 100, seen: 600, size: 1}.observe(time.Minute, s, 0, 1)
	assert.InDelta(t, 100*math.Exp(-1), quick.recent, 0.01, "a sixtieth of the window")
	assert.InDelta(t, 100*math.Exp(-0.1), quick.rate, 0.01, "a sixth")
	tardy := rateEstimate{rate: 1, recent: 1, seen: 600, size: 1}.observe(time.Minute, s, 0, 1)
	assert.InDelta(t, math.Exp(-0.1), tardy.recent, 0.01, "20 requests, but a sixth at most")
	mid := rateEstimate{rate: 4, recent: 4, seen: 600, size: 1}.observe(time.Minute, s, 0, 1)
	assert.InDelta(t, 4*math.Exp(-0.2), mid.recent, 0.01, "20 requests are 5 s")
}

// TestOneLargeRequestIsNoBurst: a twentieth of the limit at once, before and after
// which one token a second goes, makes no process believe in 3,000 tokens a second.
func TestOneLargeRequestIsNoBurst(t *testing.T) {
	d := New(1, 0)
	var spent, now int64
	step := func(n, largest int64, in time.Duration) {
		spent, now = spent+n, now+int64(in)
		d.Observe(limit.Window, now, spent, largest)
	}
	for range 60 {
		step(1, 1, s)
	}
	before := d.Reorder(limit, 2*time.Millisecond, 100)
	step(3000, 3000, time.Millisecond)
	assert.Less(t, d.peak, 2.0)
	assert.LessOrEqual(t, d.Reorder(limit, 2*time.Millisecond, 100), before+5000/60+50+100)
	step(3000, 1, s)
	assert.Greater(t, d.peak, 2000.0, "but 3,000 requests are")
}

// TestObserve: nothing is learnt from the time in which requests were refused.
func TestObserve(t *testing.T) {
	d := New(5, 0)
	d.Observe(limit.Window, int64(10*s), 100, 1)
	assert.InDelta(t, 10, d.rate, 0.01)
	d.Exhausted(int64(11 * s))
	assert.True(t, d.IsExhausted())
	d.Observe(limit.Window, int64(50*s), 110, 1)
	assert.InDelta(t, 10, d.rate, 0.01)
	d.Observe(limit.Window, int64(51*s), 110, 1)
	assert.InDelta(t, 10, d.rate, 0.01)
	d.Exhausted(0)
	assert.False(t, d.IsExhausted())
	d.Observe(limit.Window, int64(52*s), 110, 1)
	assert.Less(t, d.rate, 10.0)
	same := *d
	d.Observe(limit.Window, int64(52*s), 110, 1)
	assert.Equal(t, same, *d, "no time has passed")
	assert.EqualValues(t, 1, New(0, 0).batch)
	assert.EqualValues(t, 5, New(5, 0).batch)
}

func TestUse(t *testing.T) {
	d := at(10, 1)
	assert.EqualValues(t, 600, d.PerWindow(limit))
	assert.EqualValues(t, 60_000, at(1e9, 1).PerWindow(limit))
	d.recent = 40
	assert.EqualValues(t, 1200, d.PerWindow(limit), "half of what it is of late")
	assert.InDelta(t, 5, d.Within(s/2), 0.001)
	assert.True(t, at(2.0/60, 1).Regular(time.Minute))
	assert.False(t, at(1.9/60, 1).Regular(time.Minute))

	d.Opened(limit.Window, 7, 3)
	assert.False(t, d.UsedIn(7, 3))
	assert.True(t, d.UsedIn(8, 3))
	assert.True(t, d.UsedIn(7, 4))

	var none *Demand
	assert.Zero(t, none.PerWindow(limit))
	assert.Zero(t, none.Within(s))
	assert.Zero(t, none.Reorder(limit, s, 9))
	assert.False(t, none.Regular(time.Minute))
	assert.False(t, none.IsExhausted())
	assert.False(t, none.UsedIn(1, 1))
}

// TestRun: tokens got in a row, less what others got meanwhile, in one window, and not by the present visit.
func TestRun(t *testing.T) {
	d, now := at(10, 1), int64(s)
	run := func() int64 {
		now += int64(s)
		d.Ordered(now, s/10, 1)
		return d.Run()
	}
	d.Got(3, 500) // what others got before it counts for nothing
	d.Got(5, 0)
	assert.EqualValues(t, 8, run())
	d.Got(2, 6)
	assert.EqualValues(t, 2, d.Run(), "of the visits before")
	assert.EqualValues(t, 4, run())
	d.Got(2, -7) // others gave back
	assert.EqualValues(t, 6, run())
	d.EndRun()
	assert.Zero(t, d.Run())
	d.Got(2, 0)
	d.Opened(limit.Window, 7, 3)
	assert.Zero(t, run())

	var none *Demand
	none.Got(1, 0)
	none.EndRun()
	none.Ordered(1, 1, 1)
	assert.Zero(t, none.Run())
}

// TestVisit: callers of orders that are not two lead times apart from the first one are one visit. The usual visit grows at
// once, and shrinks slowly.
func TestVisit(t *testing.T) {
	const lead = 10 * time.Millisecond
	d, now := at(10, 3), int64(s)
	visit := func(callers ...int64) float64 {
		for i, n := range callers {
			d.Ordered(now+int64(2*lead)*int64(i)/int64(len(callers)), lead, n)
		}
		now += int64(2*lead) + 1
		return d.Visit() / d.Size()
	}
	assert.EqualValues(t, 1, d.Visit()/d.Size(), "nothing is known")
	assert.EqualValues(t, 1, visit(1))
	assert.EqualValues(t, 1, visit(1), "or two of them would be one")
	assert.InDelta(t, 10.0, visit(8, 1, 1), 5)
	for range 5 {
		visit(8, 1, 1)
	}
	assert.InDelta(t, 10.0, visit(8, 1, 1), 0.2)
	assert.Greater(t, visit(1), 9.8, "it may not be over")
	assert.InDelta(t, 10-9.0/visitWeight, visit(1), 0.2)
	for range 100 {
		visit(1)
	}
	assert.InDelta(t, 1, visit(1), 0.01)
	assert.EqualValues(t, 1, (*Demand)(nil).Visit())
}

// TestSoon: a burst says less of what comes the longer ago it was, without an observation.
func TestSoon(t *testing.T) {
	var none *Demand
	assert.Zero(t, none.Soon(time.Minute, s, 5, 5))
	d := New(0, 1)
	d.Observe(time.Minute, int64(4*time.Millisecond), 8, 1)
	d.Exhausted(int64(4 * time.Millisecond))
	was := *d
	assert.InDelta(t, 8, d.Soon(time.Minute, 4*time.Millisecond, int64(4*time.Millisecond), 8), 0.5)
	assert.InDelta(t, 2, d.Soon(time.Minute, 4*time.Millisecond, int64(16*time.Millisecond), 8), 0.2)
	assert.InDelta(t, 4, d.Soon(time.Minute, 4*time.Millisecond, int64(16*time.Millisecond), 16), 0.2, "used meanwhile")
	assert.Less(t, d.Soon(time.Minute, 4*time.Millisecond, int64(s), 8), 0.1)
	assert.Equal(t, was, *d, "nothing is observed")
}

// TestPace: what a process uses in a window, at no more than twice its rate of late, and until the limit is used up.
func TestPace(t *testing.T) {
	for _, row := range []struct {
		name               string
		rate, recent       float64
		pace, half, surely int64 // in a window, in half of one, and surely in that
	}{
		{"10/s", 10, 10, 600, 300, 352},
		{"of late 2/s", 10, 2, 240, 120, 153},
		{"2,000/s, for 30 s", 2000, 2000, 60_000, 30_000, 30_520},
		{"of late 100/s", 2000, 100, 6000, 3000, 3165},
		{"silent", 0, 0, 0, 0, 0},
	} {
		d := at(row.rate, 1)
		d.recent, d.observed = row.recent, 7
		got := []int64{d.Pace(limit, 7, 0), int64(d.Uses(limit, 30*s, 7, 0)), d.Keeps(limit, 30*s, 7, 0)}
		assert.Equal(t, []int64{row.pace, row.half, row.surely}, got, row.name)
	}
	d := at(10, 1)
	d.exhausted = 1
	assert.Less(t, d.Pace(limit, int64(5*s), 0), int64(100), "silent for 5 s")
	assert.Greater(t, d.Pace(limit, int64(5*s), 50), int64(590), "and not so")
	assert.Equal(t, d.Pace(limit, 0, 0), int64(600), "nothing is observed")
	assert.Zero(t, (*Demand)(nil).Keeps(limit, s, 7, 7))
}

// TestReorder: what goes in the lead time, three deviations, and a large request less
// a token, as far as that may be held.
func TestReorder(t *testing.T) {
	for _, row := range []struct {
		name       string
		rate, peak float64
		size       float64
		lead       time.Duration
		idle       int64
		want       int64
	}{
		{"when the last token leaves", 5, 0, 1, 2 * time.Millisecond, 6, 0},
		{"100 go, and 30 may", 10_000, 0, 1, 10 * time.Millisecond, 6, 130},
		{"by the peak", 5, 10_000, 1, 10 * time.Millisecond, 6, 130},
		{"requests of 4, that come seldom", 0, 0, 4, 10 * time.Millisecond, 6, 3},
		{"25 go, by requests of 4", 2500, 0, 4, 10 * time.Millisecond, 6, 25 + 30 + 3},
		{"no more than may lie idle", 0, 0, 400, 10 * time.Millisecond, 6, 6},
		{"or than a sixtieth of what goes", 900, 0, 4000, 0, 6, 900},
	} {
		d := at(row.rate, row.size)
		d.peak = row.peak
		assert.Equal(t, row.want, d.Reorder(limit, row.lead, row.idle), row.name)
	}
}

// TestLasts: how long the limit lasts from now on, 20 s into the window.
func TestLasts(t *testing.T) {
	third := backend.State{Remaining: 40_000, Left: 40 * s} // as much as time: it lasts to the end
	half := backend.State{Remaining: 30_000, Left: 40 * s}
	assert.False(t, Short(limit, third))
	assert.True(t, Short(limit, half))

	var none *Demand
	assert.Equal(t, 20*s, none.Lasts(time.Minute, 20*s, true))
	d := at(1, 1)
	d.Opened(time.Minute, 0, 0)
	d.Forecast(limit, half, 0)
	assert.Equal(t, 20*s, d.Lasts(time.Minute, 20*s, true), "at this rate it lasts for 40 s")
	assert.Equal(t, 3*s, d.Lasts(time.Minute, 39*s, true), "a guess has a least,")
	assert.Equal(t, 20*s, d.Lasts(time.Minute, 0, true), "and a most")
	d.Forecast(limit, backend.State{Remaining: 60_000, Left: 60 * s}, 0)
	assert.Equal(t, 10*s, d.Lasts(time.Minute, 50*s, true), "nothing is used: to the end")
	d.Forecast(limit, third, 0)
	assert.Equal(t, 10*s, d.Lasts(time.Minute, 50*s, true))
	d.Forecast(limit, backend.State{Left: 20 * s}, 35*s)
	assert.Equal(t, 15*s, d.Lasts(time.Minute, 20*s, true), "it was used up")
	assert.Equal(t, 35*s, d.Lasts(time.Minute, 0, false), "and so it will be in the next window")

	d.Opened(time.Minute, 0, 0)
	assert.Equal(t, 25*s, d.Lasts(time.Minute, 10*s, true), "as long as in the one before")
	d.Forecast(limit, half, 30*s)
	assert.Equal(t, 20*s, d.Lasts(time.Minute, 10*s, true), "or shorter")
	d.Exhausted(7)
	d.Opened(time.Minute, 0, 0)
	assert.False(t, d.IsExhausted())
}

// What the store charges after an outage is no burst of this moment.
func TestSkip(t *testing.T) {
	d := New(10, 1)
	d.Observe(time.Minute, int64(10*time.Second), 100, 1)
	d.Skip(50_000)
	d.Observe(time.Minute, int64(10*time.Second+time.Millisecond), 50_100, 1)
	limit := backend.Limit{Tokens: 100_000, Window: time.Minute}
	if r := d.Reorder(limit, 10*time.Millisecond, 0); r > 5 {
		t.Errorf("a re-order point of %d at 10 tokens a second", r)
	}
	(*Demand)(nil).Skip(1)

	d.batch, d.batchSpent = 100, 50_100
	d.Skip(1000)
	o := d.Order(&Terms{Policy: Policy{Kind: Ladder, Min: 10, Max: 1000}, Limit: limit, Clients: 1}, Need{Spent: 51_100})
	if o.Want != 50 || o.Reason != "wasted" {
		t.Errorf("a batch of %d, %s, though nothing of the last one was used", o.Want, o.Reason)
	}
}
