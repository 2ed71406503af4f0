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

// at is a demand of rate and size, with a recent rate that is no higher.
func at(rate, size float64) *Demand {
	return &Demand{rate: rate, recent: rate, seen: 600, size: size, usual: 1}
}

// then is the demand after an observation of spent tokens in elapsed.
func (d Demand) then(elapsed time.Duration, spent, largest int64) Demand {
	d.Observe(time.Minute, d.observed+int64(elapsed), d.spent+spent, largest)
	return d
}

// TestRate: the means after each observation.
func TestRate(t *testing.T) {
	p := New(1, 0).then(10*s, 100, 1)
	assert.InDelta(t, 10, p.rate, 0.01, "the first observation counts whole")
	p = p.then(10*s, 0, 1)
	assert.InDelta(t, 10*0.368, p.rate, 0.01, "forgotten in a sixth of the window")
	assert.Zero(t, New(1, 0).then(s, -3, 1).rate, "more was refunded than spent")

	p = New(1, 0).then(s, 4, 1)
	assert.InDelta(t, 2, p.then(3*s, 4, 1).rate, 0.01, "a mean, until the memory is full")
	slow := at(1, 1)
	slow.seen = 300
	assert.InDelta(t, math.Exp(-0.2), slow.then(20*s, 0, 1).rate, 0.01, "100 requests long")
	assert.Greater(t, slow.then(5*s, 500, 1).rate, 30.0, "it is surely faster now")
	assert.InDelta(t, 10*math.Exp(-0.2), at(10, 10).then(20*s, 0, 10).rate, 0.01, "100 requests of ten tokens")
	assert.InDelta(t, 0.01*math.Exp(-0.2), at(0.01, 1).then(60*s, 0, 1).rate, 1e-3, "five windows at most")

	assert.InDelta(t, 5, New(1, 0).then(s, 4, 5).size, 0.01, "the first whole")
	assert.InDelta(t, 2, at(1, 1).then(s, 4, 5).size, 0.01, "a quarter of the way")

	assert.InDelta(t, 20*math.Exp(-0.2), at(20, 5).then(s, 0, 5).recent, 0.01, "20 requests of five tokens")
	quick := at(100, 1).then(s, 0, 1)
	assert.InDelta(t, 100*math.Exp(-1), quick.recent, 0.01, "a sixtieth of the window")
	assert.InDelta(t, 100*math.Exp(-0.1), quick.rate, 0.01, "a sixth")
	assert.InDelta(t, math.Exp(-0.1), at(1, 1).then(s, 0, 1).recent, 0.01, "20 requests, but a sixth at most")
	assert.InDelta(t, 4*math.Exp(-0.2), at(4, 1).then(s, 0, 1).recent, 0.01, "20 requests are 5 s")
}

// TestOneLargeRequestIsNoBurst: a twentieth of the limit at once, before and after
// which one token a second goes, makes no process believe in 3,000 tokens a second.
func TestOneLargeRequestIsNoBurst(t *testing.T) {
	d := *New(1, 0)
	for range 60 {
		d = d.then(s, 1, 1)
	}
	x := terms(func(t *Terms) { t.Limit.Rolls, t.Clients, t.Lead = true, 30, 2*time.Millisecond }) // 100 may lie idle
	before := d.ReorderPoint(x)
	d = d.then(time.Millisecond, 3000, 3000)
	assert.LessOrEqual(t, d.ReorderPoint(x), before+30+100)
	d = d.then(s, 3000, 1)
	assert.Greater(t, d.recent, 500.0, "but 3,000 requests are")
}

// TestObserve: nothing is learnt from the time in which requests were refused.
func TestObserve(t *testing.T) {
	d := New(5, 0)
	d.Observe(limit.Window, int64(10*s), 100, 1)
	assert.InDelta(t, 10, d.rate, 0.01)
	d.Exhausted = int64(11 * s)
	d.Observe(limit.Window, int64(50*s), 110, 1)
	assert.InDelta(t, 10, d.rate, 0.01)
	d.Observe(limit.Window, int64(51*s), 110, 1)
	assert.InDelta(t, 10, d.rate, 0.01)
	d.Exhausted = 0
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
	x := terms(nil)
	assert.True(t, at(2.0/60, 1).Regular(x))
	assert.False(t, at(1.9/60, 1).Regular(x))
	assert.False(t, at(2, 1).Regular(terms(func(t *Terms) { t.Kind = Direct })), "nothing is held")
	assert.False(t, at(2, 1).Regular(terms(func(t *Terms) { t.Limit.Tokens = 100 })), "nor of a small limit")

	d.Opened(limit.Window, 7, 3)
	assert.False(t, d.UsedIn(7, 3))
	assert.True(t, d.UsedIn(8, 3))
	assert.True(t, d.UsedIn(7, 4))

	var none *Demand
	assert.Zero(t, none.PerWindow(limit))
	assert.Zero(t, none.Uses(limit, s, 5, 5))
	assert.False(t, none.Regular(x))
}

// TestRun: tokens got in a row, less what others got meanwhile, in one window, and not by the present visit.
func TestRun(t *testing.T) {
	d, now := at(10, 1), int64(s)
	got := func(grant, others int64) { d.Reply(Reply{Limit: limit, Grant: grant, Others: others}) }
	run := func() int64 {
		now += int64(s)
		return d.Order(terms(nil), Need{Now: now, Callers: 1, Runs: true}).Run
	}
	got(3, 500) // what others got before it counts for nothing
	got(5, 0)
	assert.EqualValues(t, 8, run())
	got(2, 6)
	assert.EqualValues(t, 2, d.before, "of the visits before")
	assert.EqualValues(t, 4, run())
	got(2, -7) // others gave back
	assert.EqualValues(t, 6, run())
	d.EndRun()
	assert.Zero(t, d.before)
	got(2, 0)
	d.Opened(limit.Window, 7, 3)
	assert.Zero(t, run())
	d.Reply(Reply{Limit: backend.Limit{Tokens: 9, Window: time.Minute, Rolls: true}, Grant: 5})
	assert.Zero(t, run(), "a rolling limit has no window")

	var none *Demand
	none.Reply(Reply{Limit: limit, Grant: 1})
	none.EndRun()
	assert.Zero(t, none.Order(terms(nil), Need{Now: 1, Callers: 1, Runs: true}).Run)
}

// TestVisit: callers of orders that are not two lead times apart from the first one are one visit. The usual visit grows at
// once, and shrinks slowly.
func TestVisit(t *testing.T) {
	const lead = 10 * time.Millisecond
	d, now, x := at(10, 3), int64(s), terms(func(t *Terms) { t.Lead = lead })
	visit := func(callers ...int64) float64 {
		for i, n := range callers {
			d.Order(x, Need{Now: now + int64(2*lead)*int64(i)/int64(len(callers)), Callers: n})
		}
		now += int64(2*lead) + 1
		return d.usual
	}
	assert.EqualValues(t, 1, d.usual, "nothing is known")
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
}

// TestUses: what a process uses in a window, at no more than twice its rate of late, and until the limit is used up.
func TestUses(t *testing.T) {
	for _, row := range []struct {
		name         string
		rate, recent float64
		all, half    float64 // in a window, and in half of one
	}{
		{"10/s", 10, 10, 600, 300},
		{"of late 2/s", 10, 2, 240, 120},
		{"2,000/s, for 30 s", 2000, 2000, 60_000, 30_000},
		{"of late 100/s", 2000, 100, 6000, 3000},
		{"silent", 0, 0, 0, 0},
	} {
		d := at(row.rate, 1)
		d.recent, d.observed = row.recent, 7
		assert.InDelta(t, row.all, d.Uses(limit, limit.Window, 7, 0), 0.01, row.name)
		assert.InDelta(t, row.half, d.Uses(limit, 30*s, 7, 0), 0.01, row.name)
	}
	d := at(10, 1)
	d.Exhausted = 1
	was := *d
	assert.Less(t, d.Uses(limit, limit.Window, int64(5*s), 0), 100.0, "silent for 5 s")
	assert.Greater(t, d.Uses(limit, limit.Window, int64(5*s), 50), 590.0, "and not so")
	assert.Equal(t, was, *d, "nothing is observed")

	d = New(0, 1) // a burst says less of what comes the longer ago it was
	const ms = int64(time.Millisecond)
	d.Observe(time.Minute, 4*ms, 8, 1)
	soon := func(now, spent int64) float64 { return d.Uses(limit, 4*time.Millisecond, now, spent) }
	assert.Greater(t, soon(16*ms, 16), 1.5*soon(16*ms, 8), "used meanwhile")
	assert.Less(t, soon(int64(s), 8), 0.1)
}

// TestLasts: how long the limit lasts from now on, 20 s into the window.
func TestLasts(t *testing.T) {
	third := backend.State{Remaining: 40_000, Left: 40 * s} // as much as time: it lasts to the end
	half := backend.State{Remaining: 30_000, Left: 40 * s}
	assert.False(t, Short(limit, third))
	assert.True(t, Short(limit, half))

	d := at(1, 1)
	lasts := func(passed time.Duration, open bool) time.Duration {
		return d.Lasts(&Terms{Limit: limit, Passed: passed, Open: open})
	}
	d.Opened(time.Minute, 0, 0)
	d.Reply(Reply{Limit: limit, State: half})
	assert.Equal(t, 20*s, lasts(20*s, true), "at this rate it lasts for 40 s")
	assert.Equal(t, 20*s, lasts(0, true), "a guess has a most")
	d.Reply(Reply{Limit: limit, State: backend.State{Remaining: 60_000, Left: 60 * s}})
	assert.Equal(t, 10*s, lasts(50*s, true), "nothing is used: to the end")
	d.Reply(Reply{Limit: limit, State: third})
	assert.Equal(t, 10*s, lasts(50*s, true))
	d.Reply(Reply{Limit: limit, State: backend.State{Left: 20 * s}, Lasted: 35 * s})
	assert.Equal(t, 15*s, lasts(20*s, true), "it was used up")
	assert.Equal(t, 35*s, lasts(0, false), "and so it will be in the next window")

	d.Opened(time.Minute, 0, 0)
	assert.Equal(t, 25*s, lasts(10*s, true), "as long as in the one before")
	d.Reply(Reply{Limit: limit, State: half, Lasted: 30 * s})
	assert.Equal(t, 20*s, lasts(10*s, true), "or shorter")
	d.Exhausted = 7
	d.Opened(time.Minute, 0, 0)
	assert.Zero(t, d.Exhausted)
}

// TestCharged: what the store charges after an outage is no burst of this moment, and no use of a batch.
func TestCharged(t *testing.T) {
	d := New(10, 1)
	d.Observe(time.Minute, int64(10*time.Second), 100, 1)
	d.Reply(Reply{Limit: limit, Charged: 50_000})
	d.Observe(time.Minute, int64(10*time.Second+time.Millisecond), 50_100, 1)
	assert.LessOrEqual(t, d.ReorderPoint(terms(nil)), int64(5), "at 10 tokens a second")

	d.batch, d.batchSpent = 100, 50_100
	d.Reply(Reply{Limit: limit, Charged: 1000})
	o := d.Order(terms(func(t *Terms) { t.Policy, t.Open = Policy{Kind: Ladder, Min: 10, Max: 1000}, false }), Need{Spent: 51_100})
	assert.Equal(t, Order{Want: 50, Exact: true, Reason: "wasted"}, o, "nothing of the last batch was used")
}
