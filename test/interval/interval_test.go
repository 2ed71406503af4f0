package interval

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = int64(time.Millisecond)

// row is a history by hand of a limit of 3 tokens in 10 ms. All times are in ms.
//
// Spends are "begin-end:tokens", then "w" and the window's name, and "back n at t" if n were given back.
type row struct {
	why    string
	spends string
	also   func(*History)
	most   int64  // tokens in an interval
	broken string // rules
}

func spends(text string) (list []Spend) {
	for _, word := range strings.Split(text, ", ") {
		var s Spend
		_, _ = fmt.Sscanf(word+" w0 back 0 at 0", "%d-%d:%d w%d back %d at %d", &s.Begin, &s.End, &s.Tokens, &s.Window, &s.Back, &s.BackAt)
		s.Begin, s.End, s.BackAt = s.Begin*ms, s.End*ms, s.BackAt*ms
		list = append(list, s)
	}
	return list
}

func seconds(h *History) { h.Window = 2 * time.Second }
func reset(from, to int64) func(*History) {
	return func(h *History) { h.Resets = []Span{{from * ms, to * ms}} }
}
func raised(at, down, late int64) func(*History) {
	return func(h *History) {
		h.Limits = []Limit{{0, 3}, {at * ms, 6}, {down * ms, 3}}
		h.Late = time.Duration(late * ms)
	}
}

// clock is set from 100 ms before to as much ahead at a moment.
func clock(at, ahead int64) func(*History) {
	return func(h *History) { h.Clock = []Setting{{Span{0, 0}, 100 * ms}, {Span{at * ms, at * ms}, ahead * ms}} }
}

func both(a, b func(*History)) func(*History) { return func(h *History) { a(h); b(h) } }

var rolling = []row{
	{why: "all at once", spends: "0-1:3", most: 3},
	{why: "one more", spends: "0-1:3, 2-3:1", most: 4, broken: "in an interval"},
	{why: "a window apart", spends: "0-1:3, 9-10:3", most: 3},
	{why: "almost a window apart", spends: "1-1:3, 9-10:3", most: 6, broken: "in an interval"},
	{why: "one by one", spends: "0-0:1, 4-4:1, 8-8:1, 10-10:1, 14-14:1, 18-18:1", most: 3},
	{why: "one by one, and one early", spends: "0-0:1, 4-4:1, 8-8:1, 9-9:1", most: 4, broken: "in an interval"},
	{why: "a call that lasts for a window may have spent at any time", spends: "0-10:3, 11-12:3", most: 3},
	{why: "one that lasts for less counts", spends: "1-10:3, 10-10:3", most: 6, broken: "in an interval"},
	{why: "calls at the same time", spends: "0-5:2, 1-4:2", most: 4, broken: "in an interval"},
	{why: "given back, and spent again", spends: "0-1:3 w0 back 3 at 4, 4-5:3", most: 3},
	{why: "spent again before it is given back", spends: "0-1:3 w0 back 3 at 5, 3-4:1", most: 4, broken: "in an interval"},
	{why: "a part is given back", spends: "0-1:3 w0 back 2 at 4, 4-5:2", most: 3},
	{why: "less is given back than is spent again", spends: "0-1:3 w0 back 2 at 4, 4-5:3", most: 4, broken: "in an interval"},
	{why: "given back a window later", spends: "0-1:3 w0 back 3 at 20, 9-10:3", most: 3},
	{why: "a reset gives one limit more", spends: "0-1:3, 5-6:3", also: reset(3, 4), most: 6},
	{why: "and no more", spends: "0-1:3, 5-6:4", also: reset(3, 4), most: 7, broken: "in an interval"},
	{why: "not before it", spends: "0-1:3, 5-6:3", also: reset(7, 8), most: 6, broken: "in an interval"},
	{why: "what was held at a reset is spent for a window", spends: "13-14:3, 15-16:3", also: reset(3, 4), most: 6},
	{why: "and not later", spends: "24-25:3, 26-27:3", also: reset(3, 4), most: 6, broken: "in an interval"},
	{why: "a larger limit", spends: "0-1:3, 11-12:6", also: raised(10, 30, 0), most: 6},
	{why: "not before it was raised", spends: "0-1:3, 2-3:3", also: raised(10, 30, 0), most: 6, broken: "in an interval"},
	{why: "what it was charged by may be spent later", spends: "48-49:6", also: raised(10, 30, 0), most: 6},
	{why: "for two windows", spends: "51-52:6", also: raised(10, 30, 0), most: 6, broken: "in an interval"},
	{why: "or longer, where a limit was read", spends: "51-52:6", also: raised(10, 30, 5), most: 6},
	{why: "a step back gives nothing", spends: "0-1:3, 6-7:1", also: clock(5, 90), most: 4, broken: "in an interval"},
	{why: "a jump ahead", spends: "0-1:3, 6-7:3", also: clock(5, 110), most: 6},
	{why: "which has nothing to do with it", spends: "20-21:3, 26-27:3", also: clock(5, 110), most: 6, broken: "in an interval"},
}

var fixed = []row{
	{why: "all at once", spends: "0-1:3 w110", most: 3},
	{why: "around a reset", spends: "9-9:3 w110, 11-11:3 w120", most: 6},
	{why: "one more in a window", spends: "0-1:3 w110, 8-9:1 w110", most: 4, broken: "in a window"},
	{why: "one more, at any time", spends: "0-1:3 w110, 99-99:1 w110", most: 3, broken: "in a window"},
	{why: "three windows in one", spends: "9-9:3 w110, 11-11:3 w115, 16-16:1 w125", most: 7, broken: "in an interval"},
	{why: "also of unknown names", spends: "9-9:3, 11-11:3, 16-16:1", most: 7, broken: "in an interval"},
	{why: "after its window", spends: "12-12:1 w110", also: clock(50, 90), most: 1, broken: "after its window"},
	{why: "at its end", spends: "11-11:1 w110", also: clock(50, 90), most: 1},
	{why: "begun before its end", spends: "9-99:1 w110", also: clock(50, 90), most: 0},
	{why: "after a jump ahead of which its process may not know", spends: "6-6:1 w110", also: clock(5, 120), most: 1},
	{why: "the clock steps back in the call", spends: "12-16:1 w110", also: clock(15, 90), most: 1},
	{why: "given back, and spent again", spends: "0-1:3 w110 back 3 at 4, 4-5:3 w110", most: 3},
	{why: "spent again before it is given back", spends: "0-1:3 w110 back 3 at 8, 6-7:1 w110", most: 4, broken: "in a window"},
	{why: "a reset gives one limit more, by either name", spends: "0-1:3 w110, 5-6:3 w110, 9-9:3 w120", also: reset(3, 4), most: 9},
	{why: "and no more", spends: "0-1:3 w110, 5-6:4 w110", also: reset(3, 4), most: 7, broken: "in a window"},
	{why: "nor after it", spends: "20-20:3 w130, 25-25:1 w130", also: reset(3, 4), most: 4, broken: "in a window"},
	{why: "what was held at a reset is spent for a window, by either name", spends: "6-6:3 w110, 8-8:3 w110", also: reset(3, 4), most: 6},
	{why: "a larger limit", spends: "10-10:6 w110", also: raised(10, 30, 0), most: 6},
	{why: "in a window that was over", spends: "0-1:6 w110", also: raised(10, 30, 0), most: 6, broken: "in a window"},
	{why: "a clock that steps back: the window goes on", spends: "5-5:3 w110, 15-15:1 w110", also: clock(8, 93), most: 3, broken: "in a window"},
	{why: "a name that comes again, as the next window ends early", spends: "5-5:3 w110, 18-18:3 w110", also: clock(17, 88), most: 3},
	{why: "and has no more", spends: "5-5:3 w110, 18-18:4 w110", also: clock(17, 88), most: 4, broken: "in a window"},
	{why: "before the step", spends: "5-5:3 w110, 15-15:1 w110", also: clock(17, 88), most: 3, broken: "in a window, after its window"},
	{why: "it was not over", spends: "5-5:3 w110, 16-16:3 w110", also: clock(9, 92), most: 3, broken: "in a window"},
	{why: "a name that comes again, as its window ended early", spends: "5-5:3 w110, 16-16:3 w110", also: clock(8, 91), most: 3},
	{why: "and has no more", spends: "5-5:3 w110, 16-16:4 w110", also: clock(8, 91), most: 4, broken: "in a window"},
	{why: "three windows of whole seconds, one cut short by a step", spends: "9-9:3 w1110, 11-11:3 w2110, 30-30:3 w3000", also: both(seconds, clock(20, -500)), most: 9},
	{why: "three without it", spends: "9-9:3 w1110, 11-11:3 w2110, 30-30:1 w3000", also: seconds, most: 7, broken: "in an interval"},
}

func (r row) history(rolls bool) History {
	h := History{Window: 10 * time.Millisecond, Rolling: rolls, Limits: []Limit{{0, 3}}, Spends: spends(r.spends)}
	if r.also != nil {
		r.also(&h)
	}
	return h
}

func TestJudge(t *testing.T) {
	for kind, rows := range map[bool][]row{true: rolling, false: fixed} {
		for _, r := range rows {
			v := Judge(r.history(kind))
			var broken []string
			for _, f := range v.Over {
				broken = append(broken, f.Rule)
			}
			require.Equal(t, r.broken, strings.Join(broken, ", "), "rolling %v: %s: %v", kind, r.why, v.Over)
			if len(r.history(kind).Limits) == 1 {
				require.InDelta(t, float64(r.most)/3, v.Most, 1e-9, "rolling %v: %s", kind, r.why)
			}
		}
	}
}

// TestEveryInterval compares the judge with a look at every interval that begins with one call and ends with another,
// of random histories.
func TestEveryInterval(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	reached := 0
	for range 3000 {
		h := History{Window: 10 * time.Millisecond, Rolling: true, Limits: []Limit{{0, 1 << 40}}}
		for range 1 + rng.IntN(12) {
			begin := rng.Int64N(40)
			s := Spend{Begin: begin * ms, End: (begin + rng.Int64N(12)) * ms, Tokens: 1 + rng.Int64N(3)}
			if rng.IntN(3) == 0 {
				s.Back, s.BackAt = 1+rng.Int64N(s.Tokens), s.End+rng.Int64N(15)*ms
			}
			h.Spends = append(h.Spends, s)
		}
		most := int64(0)
		for _, first := range h.Spends {
			for _, last := range h.Spends {
				if n := within(h.Spends, first.Begin, last.End); last.End-first.Begin < int64(h.Window) {
					most = max(most, n)
				}
			}
		}
		require.EqualValues(t, most, Judge(h).Most*(1<<40), "%v", h.Spends)
		if most > 3 {
			reached++
		}
	}
	require.Greater(t, reached, 1000, "several calls were in one interval")
}

// within counts the tokens whose calls lie in an interval, less those that were given back in it.
func within(list []Spend, from, to int64) (n int64) {
	for _, s := range list {
		if s.Begin < from || s.End > to {
			continue
		}
		n += s.Tokens
		if s.Back > 0 && s.BackAt <= to {
			n -= s.Back
		}
	}
	return n
}
