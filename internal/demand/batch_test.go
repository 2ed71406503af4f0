package demand

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestBatch: the window has 60 s, and the limit lasts for 30 s.
func TestBatch(t *testing.T) {
	adaptive, ladder := Policy{Min: 1}, Policy{Kind: Ladder, Min: 10, Max: 100}
	fixed := Policy{Kind: Fixed, Min: 10}
	asked := func(batch int64) *Demand {
		d := at(0, 1)
		d.Asked(batch, 1000)
		return d
	}
	spent := func(n int64) Situation { return Situation{Spent: 1000 + n} }
	known := func(rate, size float64) *Demand { // in its second window
		d := at(rate, size)
		d.lasted = 60 * s
		return d
	}
	ten, tenNew := known(10, 1), at(10, 1)
	ten.Asked(60, 0)
	tenNew.Asked(60, 0)
	for _, row := range []struct {
		name   string
		policy Policy
		demand *Demand
		s      Situation
		size   int64
		reason string
	}{
		{"fixed", fixed, nil, Situation{}, 10, "fixed"},
		{"fixed, and who waits", fixed, nil, Situation{Waiting: 99}, 99, "fixed"},
		{"fixed above the limit", Policy{Kind: Fixed, Min: 99_999}, nil, Situation{}, 60_000, "fixed"},

		{"ladder starts low", ladder, nil, Situation{}, 10, "first"},
		{"ladder climbs", ladder, asked(10), spent(10), 15, "used up"},
		{"ladder climbs in an open window", ladder, asked(10), Situation{Open: true}, 15, "used up"},
		{"ladder climbs from one", Policy{Kind: Ladder, Min: 1, Max: 100}, asked(1), spent(1), 2, "used up"},
		{"ladder ends", ladder, asked(90), spent(90), 100, "used up"},
		{"ladder stays", ladder, asked(40), spent(39), 40, "kept"},
		{"ladder stays at half", ladder, asked(40), spent(20), 40, "kept"},
		{"ladder falls", ladder, asked(40), spent(19), 20, "wasted"},
		{"ladder falls to its foot", ladder, asked(12), spent(1), 10, "wasted"},

		{"first", adaptive, nil, Situation{Waiting: 3}, 3, "first"},
		{"first is bounded below", Policy{Min: 80}, nil, Situation{}, 80, "first"},
		{"first is bounded above", Policy{Min: 1, Max: 20}, nil, Situation{Waiting: 30}, 20, "first"},
		{"10/s for 30 s", adaptive, ten, Situation{Spent: 60}, 300, "demand"},
		{"less what is in stock", adaptive, ten, Situation{Spent: 60, Stock: 50}, 250, "demand"},
		{"no longer than the window", adaptive, ten, Situation{Left: 5 * s, Spent: 60}, 50, "demand"},
		{"and who waits", adaptive, ten, Situation{Left: 5 * s, Spent: 54, Waiting: 6}, 56, "demand"},
		{"what was seen is what went since the last batch", adaptive, func() *Demand { d := at(1000, 1); d.Asked(1, 1000); return d }(), Situation{Spent: 1008}, 24, "growing"},
		{"in the first window to three times what was seen", adaptive, tenNew, Situation{Spent: 20}, 60, "growing"},
		{"from the first request on", adaptive, tenNew, Situation{Spent: 5}, 15, "growing"},
		{"from one token if none was seen", adaptive, tenNew, Situation{}, 3, "growing"},
		{"but not below the floor", adaptive, tenNew, Situation{Spent: 5, Floor: 20}, 20, "growing"},
		{"as long as that is less than the demand", adaptive, tenNew, Situation{Spent: 150}, 300, "demand"},
		{"no demand", adaptive, at(0, 1), Situation{}, 1, "first"},
		{"never above the limit", adaptive, known(1e9, 1), Situation{Spent: 1e6}, 60_000, "demand"},
	} {
		t.Run(row.name, func(t *testing.T) {
			x := row.s
			x.Limit, x.Lasts = limit, 30*s
			if x.Left == 0 {
				x.Left = 60 * s
			}
			size, reason := row.demand.Batch(row.policy, x)
			assert.Equal(t, fmt.Sprint(row.size, " ", row.reason), fmt.Sprint(size, " ", reason))
		})
	}
}

func TestPolicy(t *testing.T) {
	assert.True(t, Policy{}.Guided())
	assert.False(t, Policy{Kind: Fixed}.Guided())
	assert.False(t, Policy{Kind: Ladder}.Guided())
	assert.True(t, Policy{}.Ahead())
	assert.True(t, Policy{Kind: Ladder, Min: 1}.Ahead())
	assert.True(t, Policy{Kind: Fixed, Min: 2}.Ahead())
	assert.False(t, Policy{Kind: Fixed, Min: 1}.Ahead(), "nothing is to be held")
}

// TestRequestsOfAnySize: at one rate of tokens, requests of 1, 5 and 100 make batches of
// the same size, within half as much again.
func TestRequestsOfAnySize(t *testing.T) {
	batches := map[int64]float64{}
	for _, n := range []int64{1, 5, 100} {
		d := New(n, 0)
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
			size, _ := d.Batch(Policy{Min: 1}, Situation{
				Limit: limit, Open: true, Left: 30 * s, Lasts: 20 * s, Spent: spent, Stock: stock, Waiting: n,
			})
			d.Asked(size, spent)
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
