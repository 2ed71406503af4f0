// Package naive judges a limit by its laws alone. It is a list of tokens: who was admitted them, in which window, and when
// they were spent. It keeps no totals, and knows nothing of statements, ledgers, accounts or buckets, so it can judge any
// protocol that moves tokens. It is slow, and for tests.
package naive

import (
	"cmp"
	"fmt"
	"slices"
)

// A Window says what tokens were granted for: a fixed one from Begin until before End, of a rolling limit neither. Generation
// tells apart what a Reset divides, where times do not.
type Window struct{ Begin, End, Generation int64 }

// A State is where a token is.
type State int8

const (
	Held     State = iota // in its owner's hands: it may be spent
	Spent                 // admitted a request, at Tokens.At
	Declared              // spent without a grant, and said so
	Gone                  // its owner was killed, or its time was over, before it was spent
)

// Tokens are Count tokens with one history. At is when they were spent, declared or gone.
type Tokens struct {
	Owner  int
	Window Window
	State  State
	At     int64
	Count  int64
}

// A Log is all that happened to one limit. Times are in one unit, by the store's clock.
type Log struct {
	Limit  int64    // the largest in force while what the list has still counts
	Rolls  int64    // the length of a rolling limit, 0 for a fixed one
	Linger int64    // how much longer a token of a rolling limit may count
	List   []Tokens // in order of its fields
	Losses []int64  // when the store lost data
	Resets []int64
	Held   int64 // until when the limit is held
}

// Grant says that count tokens came into owner's hands.
func (l *Log) Grant(owner int, w Window, count int64) { _ = l.add(Tokens{owner, w, Held, 0, count}) }

// Spend says that owner admitted requests for count of its tokens at the time now, and judges that.
func (l *Log) Spend(now int64, owner int, w Window, count int64) error {
	if l.Rolls == 0 && (now < w.Begin || now >= w.End) {
		return fmt.Errorf("client %d spends a token of %v at %d", owner, w, now)
	}
	if err := l.move(Tokens{owner, w, Held, 0, count}, Spent, now); err != nil {
		return err
	}
	return l.over(now, w)
}

// Refund says that count tokens which owner spent at the time spent are in its hands again.
func (l *Log) Refund(spent int64, owner int, w Window, count int64) error {
	return l.move(Tokens{owner, w, Spent, spent, count}, Held, 0)
}

// Return says that count tokens left owner's hands for good, for the store to grant again.
func (l *Log) Return(owner int, w Window, count int64) error {
	return l.add(Tokens{owner, w, Held, 0, -count})
}

// Declare says that owner admitted requests for count tokens without a grant, as Settle may, and tells the store.
func (l *Log) Declare(now int64, owner int, w Window, count int64) {
	_ = l.add(Tokens{owner, w, Declared, now, count})
}

// Drop says that count tokens in owner's hands will never be spent, and that the store is not told.
func (l *Log) Drop(now int64, owner int, w Window, count int64) error {
	return l.move(Tokens{owner, w, Held, 0, count}, Gone, now)
}

// Hold says that from now on nothing is granted before the time until. It never shortens a hold, which a Reset ends.
func (l *Log) Hold(until int64) { l.Held = max(l.Held, until) }

// Answer judges what the store answers at the time now: it grants nothing while the limit is held, and says for how long that is.
func (l *Log) Answer(now, granted, held int64) error {
	want := max(l.Held-now, 0)
	if held != want || held > 0 && granted > 0 {
		return fmt.Errorf("%d tokens are granted at %d, by a limit that says it is held for %d, and is for %d", granted, now, held, want)
	}
	return nil
}

// over judges the first law after a token of w was spent: w, and the time around, saw at most the limit spent, and one
// more for each loss of the store. A Reset lets others spend what they still hold, so it adds one to the time, but none to w.
func (l *Log) over(now int64, w Window) error {
	from, until, own, all := w.Begin, w.End, int64(0), int64(0)
	if l.Rolls > 0 {
		from, until = now-l.Rolls+1, now+1
	}
	for _, t := range l.List {
		if t.State == Spent && t.At >= from && t.At < until {
			all += t.Count
			if t.Window == w {
				own += t.Count
			}
		}
	}
	limits := 1 + since(l.Losses, 2*from-until)
	if own > limits*l.Limit {
		return fmt.Errorf("%d tokens of %v are spent from %d to %d, for %d limits of %d", own, w, from, until, limits, l.Limit)
	}
	if limits += since(l.Resets, 2*from-until); all > limits*l.Limit {
		return fmt.Errorf("%d tokens are spent from %d to %d, for %d limits of %d", all, from, until, limits, l.Limit)
	}
	return nil
}

// Free judges the second law at rest, when each client has told the store all: how many tokens of w it must be able to
// grant at the time now, and how many at most. It means nothing after a loss.
func (l *Log) Free(now int64, w Window) (least, most int64) {
	least, most = l.Limit, l.Limit
	for _, t := range l.List {
		always := l.Rolls == 0 || t.State == Held
		if t.Window == w && (always || t.At+l.Rolls+l.Linger > now) {
			least -= t.Count
		}
		if t.Window == w && (always || t.At+l.Rolls > now) && t.State != Gone {
			most -= t.Count
		}
	}
	return max(least, 0), max(most, 0)
}

// since counts the times from the time from on.
func since(times []int64, from int64) int64 {
	i, _ := slices.BinarySearch(times, from)
	return int64(len(times) - i)
}

// move gives t another state.
func (l *Log) move(t Tokens, to State, at int64) error {
	if err := l.add(Tokens{t.Owner, t.Window, t.State, t.At, -t.Count}); err != nil {
		return err
	}
	return l.add(Tokens{t.Owner, t.Window, to, at, t.Count})
}

// add adds t to the list, or takes as many from it if t.Count is negative.
func (l *Log) add(t Tokens) error {
	i, found := slices.BinarySearchFunc(l.List, t, func(a, b Tokens) int {
		return cmp.Or(a.Owner-b.Owner, cmp.Compare(a.Window.End, b.Window.End), cmp.Compare(a.Window.Generation, b.Window.Generation),
			cmp.Compare(a.Window.Begin, b.Window.Begin), int(a.State-b.State), cmp.Compare(a.At, b.At))
	})
	if !found {
		l.List = slices.Insert(l.List, i, Tokens{t.Owner, t.Window, t.State, t.At, 0})
	}
	if l.List[i].Count+t.Count < 0 {
		return fmt.Errorf("client %d uses %d tokens of %v, and has %d", t.Owner, -t.Count, t.Window, l.List[i].Count)
	}
	if l.List[i].Count += t.Count; l.List[i].Count == 0 {
		l.List = slices.Delete(l.List, i, i+1)
	}
	return nil
}
