// Package interval judges whether a limit held. It is a pure function of when tokens were spent, and
// knows nothing else: no code of the library, no key of Redis, no protocol.
//
// # What is promised
//
// Of a rolling limit of L tokens, no interval of the window's length T sees more than L spent. Of a fixed limit,
// no window of the store has more than L, no token of a window is spent after it, and so no interval of T
// sees more than 2 L. That holds whatever happens, except that
//
//   - a Reset gives one limit more, and processes that have not heard of it may spend what they hold for up to T;
//   - if the limit changes, the largest counts of those that a process may still know or have charged by;
//   - a clock that jumps ahead by d lets d pass;
//   - a clock that steps back by more than the rest of a fixed window of whole seconds ends that early, because such a
//     window ends at a whole second; it may open one again that was forgotten; and another window may get the same end.
//
// What Settle declares above a charge, and what a failure policy admits, is promised elsewhere: leave it out.
//
// # How it is judged
//
// A token counts in an interval if its call began and ended in it, because it was spent at some moment of its
// call. So nothing that kept the promise is found wrong. A token that is given back counts until the call that gives
// it back begins. Hence a token counts from the end of its call, for a T since its beginning, and the most that
// count at one moment is the most of all intervals of T: that of (t − T, t] counts at t.
package interval

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Spend is a request that was admitted. Its times are nanoseconds of one clock, which all processes read and which
// never steps.
type Spend struct {
	Begin, End int64 // read just before and just after the call
	Tokens     int64
	Window     int64  // the end of its fixed window, as the result has it, Unix ms by the store's clock; 0 = unknown
	Back       int64  // tokens that Refund or Settle gave back
	BackAt     int64  // read just before that
	By         string // whose call it was, for a report; the judge does not look at it
}

// Span is when something happened, at some moment from Begin to End.
type Span struct{ Begin, End int64 }

// Limit is a number of tokens that counts from At on.
type Limit struct{ At, Tokens int64 }

// Setting is how far the store's clock, in Unix time, is ahead of the one clock since it was set.
type Setting struct {
	Span
	Ahead int64
}

// History is what happened to one key of one limit.
type History struct {
	Window  time.Duration // its length; whole milliseconds
	Rolling bool
	Limits  []Limit // at least one; ascending
	Spends  []Spend
	Resets  []Span
	Clock   []Setting // of the store; ascending; may be empty if no clock was set

	// Late is how much later a limit may be used than it was read.
	Late time.Duration
}

// Verdict is what was found.
type Verdict struct {
	Looked  int     // moments, and so intervals of T
	Windows int     // of a fixed limit
	Full    int     // windows of a fixed limit of which all was spent; moments at which all of a rolling one was
	Most    float64 // tokens in an interval, in limits
	Over    []Finding
}

// Finding is a promise that was broken.
type Finding struct {
	Rule     string
	From, To int64 // the interval, or the life of the window
	Window   int64 // its name; 0 in an interval
	Got, May int64 // tokens
}

func (f Finding) String() string {
	return fmt.Sprintf("%s: %d tokens, where %d are allowed, from %d to %d ns (window %d)", f.Rule, f.Got, f.May, f.From, f.To, f.Window)
}

// forgotten is how long after its end a window of the store stays known. If the clock then steps back behind that end,
// it may be opened once more.
const forgotten = int64(time.Second)

// Judge compares a history with the promises.
func Judge(h History) Verdict {
	v, most := Verdict{}, int64(1)
	if !h.Rolling {
		most = 2
		v.windows(h)
		v.ends(h)
	}
	length := int64(h.Window)
	events := tokens(h.Spends, length)
	for _, r := range h.Resets { // up to T is spent of what was held, and that counts for T
		events = append(events, event{at: r.Begin, limits: 1}, event{at: r.End + 2*length, limits: -1})
	}
	for i := 1; i < len(h.Clock); i++ {
		now, ahead := h.Clock[i], h.Clock[i].Ahead-h.Clock[i-1].Ahead
		more := (ahead + length - 1) / length
		if ahead < 0 {
			more = 0
			if !h.Rolling && (h.Window%time.Second == 0 || length > forgotten) {
				more = 1
			}
		}
		events = append(events, event{at: now.Begin, limits: more}, event{at: now.End + length, limits: -more})
	}
	sweep(events, func(at, got, limits int64) {
		limit := h.limit(at)
		may := limit * (most + limits)
		v.Looked++
		v.Most = max(v.Most, float64(got)/float64(limit))
		if h.Rolling && got >= limit {
			v.Full++
		}
		v.hold(Finding{Rule: "in an interval", From: at - length, To: at, Got: got, May: may})
	})
	return v
}

// hold adds a finding if more was spent than may be. Of findings that overlap it keeps the worst.
func (v *Verdict) hold(f Finding) {
	if f.Got <= f.May {
		return
	}
	if n := len(v.Over) - 1; n >= 0 && v.Over[n].Rule == f.Rule && v.Over[n].Window == f.Window && v.Over[n].To >= f.From {
		if f.Got-f.May > v.Over[n].Got-v.Over[n].May {
			v.Over[n] = f
		}
		return
	}
	v.Over = append(v.Over, f)
}

// windows judges each window of a fixed limit.
func (v *Verdict) windows(h History) {
	list := slices.Clone(h.Spends)
	slices.SortFunc(list, func(a, b Spend) int { return cmp.Or(cmp.Compare(a.Window, b.Window), cmp.Compare(a.Begin, b.Begin)) })
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].Window == list[0].Window {
			n++
		}
		if list[0].Window != 0 {
			v.window(h, list[:n])
		}
		list = list[n:]
	}
}

// window judges one window, or several if they have one name.
func (v *Verdict) window(h History, spends []Spend) {
	life := Span{spends[0].Begin, math.MinInt64}
	for _, s := range spends {
		life.End = max(life.End, s.End)
	}
	events := tokens(spends, 0)
	again := func(at Span) { // another window may have got the name
		if at.End >= life.Begin && at.Begin <= life.End {
			events = append(events, event{at: at.Begin, limits: 1})
		}
	}
	for _, r := range h.Resets {
		again(Span{r.Begin, r.End + int64(h.Window)})
	}
	for i := 1; i < len(h.Clock); i++ {
		if h.renames(h.Clock[i], h.Clock[i-1].Ahead, spends[0].Window) {
			again(h.Clock[i].Span)
		}
	}
	full := 0
	sweep(events, func(at, got, limits int64) {
		if limit := h.limit(at); got >= limit {
			full = 1
			v.hold(Finding{Rule: "in a window", From: life.Begin, To: at, Window: spends[0].Window, Got: got, May: limit * (1 + limits)})
		}
	})
	v.Windows++
	v.Full += full
}

// renames reports whether another window may get the name after a step: that of a window which would last for more
// than a length, and so ends early, or of one that was over before and is not any more.
func (h *History) renames(now Setting, before, window int64) bool {
	end := window * int64(time.Millisecond)
	from, to := now.End+before, now.Begin+now.Ahead
	return to < end-int64(h.Window) || to < end && from >= end
}

// ends judges whether tokens were spent after their window. A result has its end in whole milliseconds.
func (v *Verdict) ends(h History) {
	if len(h.Clock) == 0 {
		return
	}
	for _, s := range h.Spends {
		ahead := int64(math.MaxInt64) // the least that the store has shown, or that a process may know
		for i, c := range h.Clock {
			until := int64(math.MaxInt64)
			if i+1 < len(h.Clock) {
				until = h.Clock[i+1].End
			}
			if c.Begin <= s.End && until >= s.Begin-int64(h.Window) {
				ahead = min(ahead, c.Ahead)
			}
		}
		if end := (s.Window+1)*int64(time.Millisecond) - ahead; s.Window != 0 && s.Begin > end {
			v.hold(Finding{Rule: "after its window", From: end, To: s.Begin, Window: s.Window, Got: s.Tokens})
		}
	}
}

// limit returns the largest limit by which what counts at a moment may have been charged: up to a T before the
// interval of T, or the window, that ends then.
func (h *History) limit(at int64) (most int64) {
	since := at - 2*int64(h.Window) - int64(h.Late)
	for i, l := range h.Limits {
		if l.At > at && i > 0 {
			break
		}
		if i+1 == len(h.Limits) || h.Limits[i+1].At >= since {
			most = max(most, l.Tokens)
		}
	}
	return most
}

// event is a change, at a moment, of the tokens that count or of the limits that are allowed.
type event struct{ at, tokens, limits int64 }

// tokens returns when the tokens begin to count, and when they end. A length of 0 has no end.
func tokens(spends []Spend, length int64) []event {
	events := make([]event, 0, 2*len(spends))
	count := func(from, until, n int64) {
		if n > 0 && until > from {
			events = append(events, event{at: from, tokens: n}, event{at: until, tokens: -n})
		}
	}
	for _, s := range spends {
		until := int64(math.MaxInt64)
		if length > 0 {
			until = s.Begin + length
		}
		count(s.End, until, s.Tokens-s.Back)
		count(s.End, min(until, s.BackAt), s.Back)
	}
	return events
}

// sweep calls look with the sums at each moment of an event, in order.
func sweep(events []event, look func(at, tokens, limits int64)) {
	slices.SortFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	var tokens, limits int64
	for i, e := range events {
		tokens, limits = tokens+e.tokens, limits+e.limits
		if i+1 == len(events) || events[i+1].at > e.at {
			look(e.at, tokens, limits)
		}
	}
}
