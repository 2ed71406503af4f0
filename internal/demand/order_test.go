package demand

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// terms are those of one of 3,000 processes that share the limit of 60,000 a minute. So the smallest batch is 5 tokens. Nothing else
// bounds a batch but that 6,000 tokens may lie idle. The window has just begun.
func terms(change func(t *Terms)) *Terms {
	t := &Terms{Policy: Policy{Min: 1}, Limit: limit, Clients: 3000, Lead: s / 100, Open: true, Left: time.Minute}
	if change != nil {
		change(t)
	}
	return t
}

// known is a demand of that rate in its second window, where the limit lasts for 30 s. The last batch was of 60 tokens.
func known(rate, size float64) *Demand {
	d := fresh(rate, size)
	d.lasted = 30 * s
	return d
}

// fresh is the same in the first window of the key, of which nothing is forecast: 20 s count.
func fresh(rate, size float64) *Demand {
	d := at(rate, size)
	d.lasts, d.guessed, d.batch, d.batchSpent = limit.Window, limit.Window, 60, 1000
	return d
}

// running is known at 10 tokens a second, and has got run tokens in a row, in visits of so many tokens.
func running(run int64, visit float64) *Demand {
	d := known(10, 1)
	d.before, d.usual = run, visit
	return d
}

// TestOrder: how many tokens a key asks for, and why. 1,000 were used before the last batch.
func TestOrder(t *testing.T) {
	of := func(k Kind, least, most int64) func(*Terms) {
		return func(t *Terms) { t.Policy = Policy{k, least, most} }
	}
	closed := func(t *Terms) { of(Ladder, 10, 100)(t); t.Open = false }
	small := func(t *Terms) { t.Limit.Tokens, t.Clients = 60, 2 }
	spent := func(n int64) Need { return Need{Spent: 1000 + n} }
	wait := func(n int64) Need { return Need{Tokens: n, Waiting: n, Spent: 1000} }
	ladder := func(batch int64) *Demand { return &Demand{batch: batch, batchSpent: 1000} }
	runs := Need{Tokens: 2, Waiting: 2, Spent: 1000, Runs: true}
	for _, row := range []struct {
		name   string
		terms  func(*Terms)
		demand *Demand
		need   Need
		want   string
	}{
		{"no stock", func(t *Terms) { t.Kind = Direct }, known(10, 1), wait(3), "3 exact direct"},
		{"fixed", of(Fixed, 10, 10), nil, wait(0), "10 exact fixed"},
		{"fixed, and who waits", of(Fixed, 10, 10), nil, wait(99), "99 exact fixed"},
		{"fixed above the limit", of(Fixed, 99_999, 99_999), nil, wait(0), "60000 exact fixed"},
		{"more wait than there are", of(Fixed, 10, 10), nil, Need{Tokens: 60_000, Waiting: 99_999}, "60000 exact fixed"},

		{"a ladder starts low", of(Ladder, 10, 100), nil, wait(0), "10 exact first"},
		{"climbs by half", closed, ladder(20), spent(20), "30 exact used up"},
		{"climbs in an open window", of(Ladder, 10, 100), ladder(20), spent(0), "30 exact used up"},
		{"climbs from one", of(Ladder, 1, 100), ladder(1), spent(1), "2 exact used up"},
		{"ends", closed, ladder(90), spent(90), "100 exact used up"},
		{"stays", closed, ladder(40), spent(39), "40 exact kept"},
		{"stays at half", closed, ladder(40), spent(20), "40 exact kept"},
		{"falls by half", closed, ladder(40), spent(19), "20 exact wasted"},
		{"falls to its foot", closed, ladder(12), spent(1), "10 exact wasted"},
		{"and callers need more", closed, ladder(12), Need{Tokens: 300, Waiting: 300, Spent: 1000}, "300 exact wasted"},

		{"the first batch is up to the store", nil, nil, wait(3), "3 first"},
		{"unless the user wants more", of(Adaptive, 80, 0), nil, wait(3), "80 first"},
		{"as it is where nothing was used", nil, fresh(0, 1), wait(3), "3 first"},
		{"a bound that the store keeps, too", of(Adaptive, 1, 5), nil, wait(3), "3 first"},
		{"and when the demand is known", func(t *Terms) { t.Max, t.Clients = 20, 1 }, known(10, 1), wait(3), "20 demand"},
		{"or less than the store gives", func(t *Terms) { t.Max, t.Clients = 20, 1 }, nil, wait(3), "3 exact first"},
		{"10/s for 30 s", nil, known(10, 1), spent(0), "300 demand"},
		{"a part of a token", nil, known(10.001, 1), spent(0), "301 demand"},
		{"less what is in stock", nil, known(10, 1), Need{Stock: 50}, "250 demand"},
		{"no longer than the window", func(t *Terms) { t.Left, t.Passed = 5*s, 20*s }, known(10, 1), spent(0), "50 demand"},
		{"and who waits", func(t *Terms) { t.Left, t.Passed = 5*s, 20*s }, known(10, 1), wait(6), "56 demand"},
		{"at least what is worth a call", nil, known(0.1, 1), spent(0), "5 demand"},
		{"at most what the user wants", of(Adaptive, 1, 100), known(10, 1), spent(0), "100 demand"},
		{"but what callers need", of(Adaptive, 1, 100), known(10, 1), wait(150), "150 demand"},
		{"at most what may lie idle", nil, known(1e9, 1), wait(2), "6002 demand"},
		{"less what does", nil, known(1e9, 1), Need{Tokens: 2, Free: 1000}, "5002 demand"},
		{"and not less than nothing", nil, known(1e9, 1), Need{Tokens: 2, Free: 9000}, "2 demand"},
		{"what the user wants may", of(Adaptive, 8000, 0), known(10, 1), wait(2), "8000 demand"},
		{"three usual requests may", func(t *Terms) { t.Clients = 1 }, known(1e9, 3000), spent(0), "9000 demand"},

		{"at first no more than three times what was seen", nil, fresh(1000, 1), spent(8), "24 growing"},
		{"or is wanted now", nil, fresh(1000, 1), wait(8), "24 growing"},
		{"at least what is worth a call", nil, fresh(1000, 1), spent(0), "5 growing"},
		{"until that is more than the demand", nil, fresh(1, 1), spent(7), "20 demand"},

		{"a small limit: what callers need", small, running(3, 7), wait(2), "2 exact small"},
		{"but as much again as in the run", small, running(3, 7), runs, "5 run of 3"},
		{"though not more than may lie idle", small, running(40, 7), runs, "8 run of 40"},
		{"or than the limit", small, running(90, 7), runs, "8 run of 60"},
		{"and not for a run of one request", small, running(1, 7), runs, "2 exact small of 1"},
		{"a run is told of a large limit, too", nil, running(40, 1), runs, "302 demand of 40"},
		{"but not of a fixed batch", of(Fixed, 10, 10), running(40, 1), runs, "10 exact fixed"},

		{"rolling: the store spreads what may lie idle", func(t *Terms) { t.Limit.Rolls = true }, running(40, 7), runs, "6002 pace"},
		{"as much as the user wants", func(t *Terms) { t.Limit.Rolls, t.Max = true, 100 }, known(10, 1), wait(2), "100 pace"},
		{"and callers need", func(t *Terms) { t.Limit.Rolls, t.Max = true, 100 }, known(10, 1), wait(200), "200 pace"},
		{"rolling, in fixed batches", func(t *Terms) { t.Policy, t.Limit.Rolls = Policy{Fixed, 10, 10}, true }, nil, wait(2), "10 exact fixed"},
		{"rolling, without stock", func(t *Terms) { t.Kind, t.Limit.Rolls = Direct, true }, nil, wait(2), "2 exact direct"},
	} {
		o := row.demand.Order(terms(row.terms), row.need)
		got := fmt.Sprint(o.Want)
		if o.Exact {
			got += " exact"
		}
		if got += " " + o.Reason; o.Run != 0 {
			got += fmt.Sprint(" of ", o.Run)
		}
		assert.Equal(t, row.want, got, row.name)
		if row.demand != nil {
			assert.Equal(t, []int64{o.Want, row.need.Spent}, []int64{row.demand.batch, row.demand.batchSpent}, row.name)
		}
	}
}

// TestSmall: 60 tokens, of which six may lie idle, for visits of one token.
func TestSmall(t *testing.T) {
	for _, row := range []struct {
		name    string
		visit   float64
		clients int64
		change  func(*Terms)
		small   bool
		size    float64 // of requests; 0 = 1
	}{
		{"a part of five visits", 1, 12, nil, false, 0},
		{"a part of fewer", 1, 13, nil, true, 0},
		{"of larger visits", 2, 7, nil, true, 0},
		{"a part of five visits with requests of three tokens", 2, 2, nil, false, 3},
		{"a part of fewer such", 2, 3, nil, true, 3},
		{"a visit that may lie idle", 6, 1, nil, false, 0},
		{"a visit that may not", 7, 1, nil, true, 0},
		{"rolling", 7, 1, func(t *Terms) { t.Limit.Rolls = true }, false, 0},
		{"without stock", 7, 1, func(t *Terms) { t.Kind = Direct }, false, 0},
		{"as the user wants", 7, 1, func(t *Terms) { t.Kind = Fixed }, false, 0},
	} {
		x := terms(row.change)
		x.Limit.Tokens, x.Clients = 60, row.clients
		d := running(0, row.visit)
		if row.size != 0 {
			d.size = row.size
		}
		assert.Equal(t, row.small, d.small(x), row.name)
	}
}

// TestReorderPoint: 100 tokens go in the 10 ms until a batch comes, and three deviations of that are 30, so the point is 130.
func TestReorderPoint(t *testing.T) {
	fast := func() *Demand { return at(10_000, 1) }
	late := at(5, 1)
	late.recent = 10_000
	for _, row := range []struct {
		name   string
		terms  func(*Terms)
		demand *Demand
		want   int64
	}{
		{"what goes meanwhile", nil, fast(), 130},
		{"by the rate of late", nil, late, 130},
		{"when the last token leaves", func(t *Terms) { t.Lead = s / 500 }, at(5, 1), 0},
		{"nobody knows", nil, nil, 0},
		{"no stock", func(t *Terms) { t.Kind = Direct }, fast(), -1},
		{"one token at a time", func(t *Terms) { t.Policy = Policy{Fixed, 1, 1} }, fast(), -1},
		{"two", func(t *Terms) { t.Policy = Policy{Fixed, 2, 2} }, fast(), 8},
		{"four batches at most", func(t *Terms) { t.Max = 20 }, fast(), 80},
		{"four times the limit", func(t *Terms) { t.Clients, t.Limit.Tokens, t.Max = 1, 20, 100 }, fast(), 1},
		{"four times the limit, in fixed batches", func(t *Terms) { t.Limit.Tokens, t.Policy = 20, Policy{Fixed, 100, 100} }, fast(), 80},
		{"half of what may lie idle", func(t *Terms) { t.Clients, t.Limit.Tokens = 1, 100 }, fast(), 5},
		{"half of what the user wants", func(t *Terms) { t.Clients, t.Limit.Tokens, t.Min = 1, 100, 40 }, fast(), 20},
		{"rolling, all of it", func(t *Terms) { t.Limit.Tokens, t.Limit.Rolls = 100, true }, fast(), 130},
		{"a small limit", func(t *Terms) { t.Limit.Tokens = 100 }, fast(), -1},
		{"one more is used before the end", func(t *Terms) { t.Left = s }, at(1, 1), 0},
		{"none is", func(t *Terms) { t.Left = s - 1 }, at(1, 1), -1},
		{"rolling, none is", func(t *Terms) { t.Left, t.Limit.Rolls = s-1, true }, at(1, 1), 0},
		{"requests of 4, that come seldom", func(t *Terms) { t.Clients = 500 }, at(1.0/60, 4), 3},
		{"25 go, by requests of 4", func(t *Terms) { t.Clients = 500 }, at(2500, 4), 25 + 30 + 3},
		{"a large request, of which a hundredth of a twentieth may lie idle", func(t *Terms) { t.Clients, t.Limit.Rolls = 100, true }, at(0, 4000), 30},
	} {
		assert.Equal(t, row.want, row.demand.ReorderPoint(terms(row.terms)), row.name)
	}
}

// TestFloor: a twentieth of a process' part, or five tokens, but no more than a third of it.
func TestFloor(t *testing.T) {
	for _, row := range []struct{ limit, processes, want int64 }{
		{60_000, 10, 300}, {1000, 10, 5}, {100, 10, 3}, {60, 30, 0}, {15, 1, 5}, {14, 1, 1}, {14, 15, 0},
	} {
		assert.Equal(t, row.want, Floor(row.limit, row.processes), "%+v", row)
	}
}

// TestRequestsOfAnySize: at one rate of tokens, requests of 1, 5 and 100 make batches of
// the same size, within half as much again.
func TestRequestsOfAnySize(t *testing.T) {
	batches := map[int64]float64{}
	for _, n := range []int64{1, 5, 100} {
		d := New(n, 0)
		d.Opened(limit.Window, 0, 0)
		var now, spent, stock, calls int64
		interval := n * int64(s) / 500 // 500 tokens a second, for ten windows
		for now < int64(10*time.Minute) {
			now += interval
			if stock >= n {
				stock -= n
				spent += n
				continue
			}
			d.Observe(limit.Window, now, spent, n)
			size := d.Order(terms(func(t *Terms) { t.Clients, t.Left = 10, 30*s }), Need{Tokens: n, Waiting: n, Stock: stock, Free: stock, Spent: spent}).Want
			spent += n
			stock += size - n
			calls++
		}
		batches[n] = float64(spent) / float64(calls)
	}
	t.Log(batches)
	for _, n := range []int64{5, 100} {
		assert.InEpsilon(t, 1, batches[n]/batches[1], 0.5, "%d: %v", n, batches)
		assert.InEpsilon(t, 1, batches[1]/batches[n], 0.5, "%d: %v", n, batches)
	}
}
