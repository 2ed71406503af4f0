package reservoir

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Rows that can be checked by eye. The limit is 60,000 a minute, a thousand a
// second: the horizon is 20 s, the mean's memory 10 s, the first batch 60.
func TestSizing(t *testing.T) {
	const s = time.Second
	l := PerMinute(60_000)
	for _, c := range []struct {
		name   string
		sizing Sizing
		pace   pace
		seen   observation
		size   int64
		reason string
	}{
		{"fixed", Fixed(10), pace{}, observation{}, 10, "fixed"},
		{"fixed whatever waits", Fixed(10), pace{size: 10}, observation{waiting: 99}, 10, "fixed"},
		{"fixed above the limit", Fixed(99_999), pace{}, observation{}, 60_000, "fixed"},

		{"ladder starts low", Ladder(10, 100), pace{}, observation{}, 10, "first"},
		{"ladder climbs", Ladder(10, 100), pace{size: 10}, observation{spent: 10}, 15, "used up"},
		{"ladder climbs from one", Ladder(1, 100), pace{size: 1}, observation{spent: 1}, 2, "used up"},
		{"ladder ends", Ladder(10, 100), pace{size: 90}, observation{spent: 90}, 100, "used up"},
		{"ladder stays", Ladder(10, 100), pace{size: 40}, observation{spent: 30}, 40, "kept"},
		{"ladder falls", Ladder(10, 100), pace{size: 40}, observation{spent: 19}, 20, "wasted"},
		{"ladder falls to its foot", Ladder(10, 100), pace{size: 12}, observation{spent: 1}, 10, "wasted"},

		{"first", Adaptive(1, 0), pace{}, observation{left: 60 * s}, 60, "first"},
		{"first is bounded below", Adaptive(80, 0), pace{}, observation{left: 60 * s}, 80, "first"},
		{"first is bounded above", Adaptive(1, 20), pace{}, observation{left: 60 * s}, 20, "first"},
		{"10/s for 20 s", Adaptive(1, 0), pace{size: 60}, observation{left: 60 * s, elapsed: 6 * s, spent: 60}, 200, "demand"},
		{"less what is in stock", Adaptive(1, 0), pace{size: 60}, observation{left: 60 * s, elapsed: 6 * s, spent: 60, stock: 50}, 150, "demand"},
		{"no longer than the window", Adaptive(1, 0), pace{size: 60}, observation{left: 5 * s, elapsed: 6 * s, spent: 60}, 50, "demand"},
		{"and who waits", Adaptive(1, 0), pace{size: 60}, observation{left: 5 * s, elapsed: 6 * s, spent: 54, waiting: 6}, 56, "demand"},
		{"growth is bounded", Adaptive(1, 0), pace{size: 60}, observation{left: 60 * s, elapsed: s, spent: 60}, 240, "growing"},
		{"an instant is a millisecond", Adaptive(1, 0), pace{size: 60}, observation{left: 60 * s, spent: 1}, 240, "growing"},
		{"no demand", Adaptive(1, 0), pace{size: 60, rate: 10}, observation{left: 60 * s, elapsed: 1000 * s}, 1, "demand"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.seen.limit = l
			next, size, reason := c.sizing.next(c.pace, c.seen)
			assert.Equal(t, c.size, size)
			assert.Equal(t, c.reason, reason)
			assert.Equal(t, size, next.size)
		})
	}
}

// The mean forgets: after one memory of silence a bit more than a third is left.
func TestMeanRateForgets(t *testing.T) {
	o := observation{limit: PerMinute(60_000), left: time.Minute, elapsed: 10 * time.Second}
	p, _, _ := Adaptive(1, 0).next(pace{size: 1, rate: 1000}, o)
	assert.InDelta(t, 368, p.rate, 1)
}

func FuzzSizing(f *testing.F) {
	f.Add(int64(60_000), int64(60), int64(5), int64(100), int64(3), int64(7), 1.5, uint8(2))
	f.Fuzz(func(t *testing.T, tokens, last, elapsed, spent, stock, waiting int64, rate float64, policy uint8) {
		l := Limit{Tokens: tokens, Window: time.Minute}
		if l.Validate() != nil || last < 0 || elapsed < 0 || spent < 0 || stock < 0 || waiting < 0 || !(rate >= 0 && rate < 1e15) {
			return
		}
		sizing := []Sizing{Adaptive(1, 0), Fixed(10), Ladder(1, 1000)}[policy%3]
		p := pace{rate: rate, size: min(last, tokens)}
		_, size, reason := sizing.next(p, observation{
			limit: l, left: time.Minute, elapsed: time.Duration(elapsed),
			spent: min(spent, tokens), stock: min(stock, tokens), waiting: min(waiting, tokens),
		})
		if size < 1 || size > tokens || reason == "" {
			t.Fatalf("a batch of %d (%s) of %d", size, reason, tokens)
		}
	})
}
