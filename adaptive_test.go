package reservoir

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Rows that can be checked by eye. The limit is 60,000 a minute: the horizon is
// 30 s.
func TestSizing(t *testing.T) {
	const s = time.Second
	ten := pace{rate: 10}
	for _, c := range []struct {
		name   string
		sizing Sizing
		pace   pace
		seen   observation
		size   int64
		reason string
	}{
		{"fixed", Fixed(10), pace{}, observation{}, 10, "fixed"},
		{"fixed whatever waits", Fixed(10), pace{}, observation{last: 10, waiting: 99}, 10, "fixed"},
		{"fixed above the limit", Fixed(99_999), pace{}, observation{}, 60_000, "fixed"},

		{"ladder starts low", Ladder(10, 100), pace{}, observation{}, 10, "first"},
		{"ladder climbs", Ladder(10, 100), pace{}, observation{last: 10, spent: 10}, 15, "used up"},
		{"ladder climbs from one", Ladder(1, 100), pace{}, observation{last: 1, spent: 1}, 2, "used up"},
		{"ladder ends", Ladder(10, 100), pace{}, observation{last: 90, spent: 90}, 100, "used up"},
		{"ladder stays", Ladder(10, 100), pace{}, observation{last: 40, spent: 30}, 40, "kept"},
		{"ladder falls", Ladder(10, 100), pace{}, observation{last: 40, spent: 19}, 20, "wasted"},
		{"ladder falls to its foot", Ladder(10, 100), pace{}, observation{last: 12, spent: 1}, 10, "wasted"},

		{"first", Adaptive(1, 0), pace{}, observation{left: 60 * s, waiting: 3}, 3, "first"},
		{"first is bounded below", Adaptive(80, 0), pace{}, observation{left: 60 * s}, 80, "first"},
		{"first is bounded above", Adaptive(1, 20), pace{}, observation{left: 60 * s, waiting: 30}, 20, "first"},
		{"10/s for 30 s", Adaptive(1, 0), ten, observation{left: 60 * s, last: 60, spent: 60}, 300, "demand"},
		{"less what is in stock", Adaptive(1, 0), ten, observation{left: 60 * s, last: 60, spent: 60, stock: 50}, 250, "demand"},
		{"no longer than the window", Adaptive(1, 0), ten, observation{left: 5 * s, last: 60, spent: 60}, 50, "demand"},
		{"and who waits", Adaptive(1, 0), ten, observation{left: 5 * s, last: 60, spent: 54, waiting: 6}, 56, "demand"},
		{"growth is bounded", Adaptive(1, 0), ten, observation{left: 60 * s, last: 60, spent: 2}, 200, "growing"},
		{"no demand", Adaptive(1, 0), pace{}, observation{left: 60 * s, last: 60}, 1, "demand"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.seen.limit, c.seen.lasts = PerMinute(60_000), 30*s
			size, reason := c.sizing.size(c.pace, c.seen)
			assert.Equal(t, c.size, size)
			assert.Equal(t, c.reason, reason)
		})
	}
}

func TestPace(t *testing.T) {
	const s = time.Second
	p := pace{}.observe(time.Minute, 10*s, 100)
	assert.InDelta(t, 10, p.rate, 0.01, "the first measure counts whole")
	assert.InDelta(t, 8, p.peak, 0.01, "less two deviations of 10")
	p = p.observe(time.Minute, 10*s, 0)
	assert.InDelta(t, 10*0.368, p.rate, 0.01, "forgotten in a sixth of the window")
	assert.InDelta(t, 8*0.846, p.peak, 0.01, "the peak in a whole one")
	p = p.observe(time.Minute, s/100, 100)
	assert.InDelta(t, 8000, p.peak, 0.01)
	assert.Zero(t, pace{}.observe(time.Minute, 0, 1).peak, "one token is no rate")

	p = pace{}.observe(time.Minute, s, 4)
	assert.InDelta(t, 2, p.observe(time.Minute, 3*s, 4).rate, 0.01, "a mean, until the memory is full")
	slow := pace{rate: 1, recent: 1, seen: 300}
	assert.InDelta(t, math.Exp(-0.2), slow.observe(time.Minute, 20*s, 0).rate, 0.01, "100 tokens long")
	assert.Greater(t, slow.observe(time.Minute, 5*s, 500).rate, 30.0, "it is surely faster now")
	assert.Zero(t, pace{}.observe(time.Minute, s, -3).peak, "more was refunded than spent")

	assert.EqualValues(t, 0, pace{rate: 5}.reorder(2*time.Millisecond), "when the last token leaves")
	assert.EqualValues(t, 100+30, pace{peak: 10_000}.reorder(10*time.Millisecond))
}

func TestExcess(t *testing.T) {
	const left = 30 * time.Second
	steady := pace{rate: 10, recent: 10}
	assert.EqualValues(t, 700, steady.excess(time.Minute, left, left, 1000, 6))
	assert.EqualValues(t, 0, steady.excess(time.Minute, left, left, 600, 6), "less than half is not worth a call")
	assert.EqualValues(t, 900, steady.excess(time.Minute, left, 10*time.Second, 1000, 6), "the limit ends sooner")
	assert.EqualValues(t, 1000, pace{rate: 10}.excess(time.Minute, left, left, 1000, 6), "nothing of late")
	assert.EqualValues(t, 0, pace{rate: 10}.excess(time.Minute, left, left, 12, 6), "what may be stranded is not worth a call")
	assert.EqualValues(t, 990, steady.excess(time.Minute, left, 0, 1000, 6), "the limit lasts longer than foreseen: a second")
	assert.EqualValues(t, 0, pace{}.excess(time.Minute, left, left, 0, 0))
}

func FuzzSizing(f *testing.F) {
	f.Add(int64(60_000), int64(60), int64(5), int64(100), int64(3), int64(7), 1.5, uint8(2))
	f.Fuzz(func(t *testing.T, tokens, last, elapsed, spent, stock, waiting int64, rate float64, policy uint8) {
		l := Limit{Tokens: tokens, Window: time.Minute}
		if l.Validate() != nil || last < 0 || elapsed < 0 || spent < 0 || stock < 0 || waiting < 0 || !(rate >= 0 && rate < 1e15) {
			return
		}
		sizing := []Sizing{Adaptive(1, 0), Fixed(10), Ladder(1, 1000)}[policy%3]
		p := pace{rate: rate}.observe(l.Window, time.Duration(elapsed), min(spent, tokens))
		size, reason := sizing.size(p, observation{
			limit: l, left: time.Minute, last: min(last, tokens),
			spent: min(spent, tokens), stock: min(stock, tokens), waiting: min(waiting, tokens),
		})
		if size < 1 || size > tokens || reason == "" {
			t.Fatalf("a batch of %d (%s) of %d", size, reason, tokens)
		}
		if n := p.reorder(time.Duration(elapsed % int64(time.Second))); n < 0 {
			t.Fatalf("a re-order point of %d", n)
		}
	})
}
