package reservoir

import (
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
)

// This file is what a key does ahead of its callers: it fetches before the stock
// runs out and when the window has been reset, learns the window's end better
// when that is near, and gives back what it will not use. All of it is for
// batches that the store guides, and is under entry.mu but for restock.

// cause is why a store call was made, as hooks are told.
type cause string

const (
	forWaiters   cause = "wait"      // callers wait for it
	forStock     cause = "prefetch"  // the stock has fallen to the re-order point
	forReset     cause = "reset"     // the window is over and the key was in use
	forProbe     cause = "probe"     // has anything come back to an exhausted key?
	forReturn    cause = "give back" // of what will not be used
	forEnd       cause = "refresh"   // of the deadline, the window's end being near
	forReopening cause = "reopen"    // is a shard that was away back?
	forLimit     cause = "limit"     // it has changed
	forCharge    cause = "charge"    // what was admitted while the store was away
)

// restock orders a batch ahead of need. Of all callers that see the stock at the
// re-order point one gets to do it.
func (e *entry) restock(w *window) {
	if w.reorder.Swap(none) == none {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.l.clock.now()
	if e.idleFor(w) && w.alive(now) && !e.shard.open.Load() {
		e.l.count.prefetches.Add(1)
		e.launch(now, 0, forStock)
	}
}

// idleFor reports whether w is current and no fetch is under way.
func (e *entry) idleFor(w *window) bool {
	return w != nil && e.win.Load() == w && e.flight == nil && !e.dead && !e.l.closed.Load()
}

// aim sets the re-order point for the stock as it now is.
func (e *entry) aim(w *window) {
	if e.l.guided() && w.remaining.Load() > 0 && !e.small {
		w.reorder.Store(e.pace.reorder(e.shard.time()))
	} else {
		w.reorder.Store(none)
	}
}

// habit is what is known of how a key is used, from its second fetch on.
type habit struct {
	batch        int64 // the last one asked for
	spent        int64 // total at that time
	pace         pace
	watched      int64         // clock time up to which pace knows
	watchedSpent int64         // total at that time
	foreseen     time.Duration // from the beginning of win until the limit runs out
	guessed      time.Duration // the same at the pace of all so far
	lasted       time.Duration // the same of the window before
	hushed       int64         // clock time since which the store has no more; 0 = it has
	unheard      int64         // tokens given back in win, of which the store has not heard for sure
	total        int64         // of what all processes were granted and gave back in win, as last heard
	openedSpent  int64         // totals when win opened
	openedDenied int64
	timer        *time.Timer
	due          int64 // clock time at which it fires
}

// unknown is the habit of keys that were fetched for once at most. It is never
// written.
var unknown habit

func (e *entry) learned() bool { return e.habit != &unknown }

// learn gives the key a habit of its own, to write to.
func (e *entry) learn() {
	if e.learned() {
		return
	}
	e.habit = &habit{batch: max(e.granted, 1), watched: e.since}
	if w := e.win.Load(); w != nil { // it was heard of once, at since
		e.foreseen = e.limit().Window
		passed := float64(int64(e.limit().Window) - (w.ends.Load() - e.since))
		e.guessed = e.guess(passed, e.limit().Tokens-w.remaining.Load())
	}
}

// watch brings the key's pace up to date. While requests are refused there is
// nothing to learn from what is spent.
func (e *entry) watch(now int64) {
	if !e.learned() {
		e.since = now
		return
	}
	spent, until := e.spentBy(now), now
	if e.hushed != 0 {
		until = e.hushed
	}
	if e.watched != 0 && until > e.watched {
		e.pace = e.pace.observe(e.limit().Window, time.Duration(until-e.watched), spent-e.watchedSpent)
	}
	e.watched, e.watchedSpent = now, spent
}

// begun marks the beginning of a window, to know later whether it was used.
func (e *entry) begun(now int64) {
	e.watch(now)
	e.small, e.short, e.clients = false, false, e.counted
	if !e.learned() {
		return
	}
	e.lasted, e.foreseen, e.hushed = e.foreseen, e.limit().Window, 0
	e.openedSpent, e.openedDenied = e.spentBy(now), e.denied.Load()
}

// foresee takes from a reply whether the limit will run out at the pace of all
// clients since the window opened, and, when it has, how long it lasted.
func (e *entry) foresee(s backend.SyncReply) {
	used := e.limit().Tokens - s.Remaining
	if s.Lasted > 0 {
		e.learn()
		e.foreseen = s.Lasted
	}
	passed := float64(e.limit().Window - s.Left)
	e.short = float64(s.Remaining)*passed < float64(used)*float64(s.Left)
	if e.learned() {
		e.guessed = e.guess(passed, used)
	}
}

// guess is how long the limit lasts, from the beginning of the window, if it goes
// on being used as fast as until now.
func (e *entry) guess(passed float64, used int64) time.Duration {
	if !e.short {
		return e.limit().Window
	}
	return time.Duration(passed * float64(e.limit().Tokens) / float64(used))
}

// lastsFrom is how long the limit will last from now on: as long as in this window
// or the one before, if it ran out. In the first window, where grants look like use,
// it is a guess from the pace of all so far, within bounds.
func (e *entry) lastsFrom(w *window, now int64) time.Duration {
	if !w.alive(now) {
		return e.foreseen // of the window that is over, for the next
	}
	passed := e.limit().Window - time.Duration(w.ends.Load()-now)
	switch {
	case e.lasted != 0:
		return min(e.foreseen, e.lasted) - passed
	case e.foreseen < e.limit().Window:
		return e.foreseen - passed
	}
	return min(max(e.guessed-passed, e.limit().Window/coldLeast), e.limit().Window/coldPart)
}

func (e *entry) usedInWindow(now int64) bool {
	return e.spentBy(now) != e.openedSpent || e.denied.Load() != e.openedDenied
}

// strandable is this process' part of the tokens that may be stranded.
func (e *entry) strandable() int64 {
	return int64(e.l.stranding*float64(e.limit().Tokens)) / int64(max(e.clients, 1))
}

// The waits that a tick schedules, as parts of the window.
const (
	trimPart    = 60  // between looks for an idle excess
	refreshPart = 50  // before the end, to learn the end better
	spreadPart  = 200 // over which processes spread their calls at the reset
	spreadMax   = 5 * time.Millisecond
	worthOne    = 0.1 // callers that would wait, for a refresh to be worth a call
)

// schedule sets the timer for what is due next, if anything is.
func (e *entry) schedule(now int64) {
	w := e.win.Load()
	if w == nil || e.dead || e.l.closed.Load() {
		return
	}
	due := int64(1<<63 - 1)
	ends := w.ends.Load()
	if !e.queue.empty() && e.flight == nil { // waiters for the reset, or for what comes back
		due = min(e.quiet, ends)
		if e.ending(w, now) {
			due = ends + int64(time.Millisecond) // to the store, which counts in these, it may not be over before
		}
		if e.queue.once == 0 { // who does not wait for the reset has but the fetch timeout
			due += int64(chance.Part(e.limit().Window / 1000))
		}
	}
	if e.l.guided() && e.pace.rate*e.limit().Window.Seconds() >= 2 && now < ends {
		due = min(due, ends+int64(chance.Part(min(e.limit().Window/spreadPart, spreadMax))))
		if at := ends - int64(e.limit().Window)/refreshPart; now < at && e.wantsRefresh(w) {
			due = min(due, at)
		}
		if e.short && w.stock.Load() > 2*e.strandable() {
			due = min(due, now+int64(e.limit().Window)/trimPart)
		}
	}
	if e.l.limits != nil && e.quiet != 0 && w.alive(now) { // who is refused does not fetch, and would not hear of a new limit
		due = min(due, now+int64(e.limit().Window)/probes)
	}
	if due == 1<<63-1 || e.due > now && e.due <= due {
		return
	}
	e.learn()
	e.due = due
	if e.timer == nil {
		e.timer = time.AfterFunc(time.Duration(due-now), e.tick)
	} else {
		e.timer.Reset(time.Duration(due - now))
	}
}

// wantsRefresh reports whether callers are likely to find the stock past its
// deadline when the window is not over yet: the two bounds of its end lie apart.
func (e *entry) wantsRefresh(w *window) bool {
	gap := time.Duration(w.ends.Load() - w.deadline.Load())
	return e.pace.rate*gap.Seconds() > worthOne
}

// tick does what has become due.
func (e *entry) tick() {
	_, changed, _ := e.newLimit()
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.l.clock.now()
	e.due = 0
	e.order(now)
	if w := e.win.Load(); changed && e.idleFor(w) {
		e.state(forLimit)
	} else if e.idleFor(w) && e.l.guided() && !e.shard.open.Load() {
		switch ends := w.ends.Load(); {
		case now >= ends:
			if e.usedInWindow(now) {
				e.launch(now, 0, forReset)
			}
		case now >= ends-int64(e.limit().Window)/refreshPart && e.wantsRefresh(w):
			e.state(forEnd)
		default:
			e.trim(w, now)
		}
	}
	e.schedule(now)
}

// trim gives back an excess that will not be used, if others will want it. It is
// taken from the stock first, and told to the store then.
func (e *entry) trim(w *window, now int64) {
	e.watch(now)
	if !e.short || !w.alive(now) {
		return
	}
	left := time.Duration(w.deadline.Load() - now)
	s := w.stock.Load()
	n := e.pace.excess(e.limit().Window, left, e.lastsFrom(w, now), s, e.strandable())
	if n == 0 || !w.stock.CompareAndSwap(s, s-n) {
		return
	}
	e.returned += n
	e.unheard += n
	e.yield(n)
	e.l.count.giveBacks.Add(1)
	e.state(forReturn)
}
