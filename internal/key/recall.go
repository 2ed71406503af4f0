package key

import (
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/lease"
)

// This file has recall: tokens that lie idle in other processes come back before this one
// refuses, and those that lie idle here go back when others want them.

// smallPart is how many visits each process' part of the limit must serve at least, so that
// batches are worth their calls. What callers need exactly costs about two calls a visit.
const smallPart = 5

// small reports whether the limit is so small that a batch would be most of a process' part.
// Then the store grants what callers wait for, and nothing is ordered ahead.
func (k *Key) small() bool {
	t := k.Limit()
	visit := k.use.demand().Visit()
	part := smallPart * visit
	if t.Rolls { // the store sizes its grants
		return false
	} else if float64(idleMost(t.Tokens, k.use.demand())) < visit {
		return k.env.guided()
	}
	return k.env.guided() && float64(t.Tokens) < part*float64(max(k.clients, 1))
}

// recall is what a key has heard, and waits for.
type recall struct {
	called  backend.Window // others want idle tokens of this window
	known   int64          // how many tokens the store believes idle here, at most; -1 = it could not call them
	unknown int64          // since when tokens may lie here that it cannot call; 0 = none do
	asked   int8           // statements for the line since the store called others, which did not serve it
	again   int64          // when to ask again, because called tokens may have come back
	until   int64          // how long callers in line wait for that

	refunded bool // tokens were settled that the store does not know to be idle
}

// free is how many of the tokens that the key holds nobody here waits for. That is what a
// statement says to be idle, and all of it goes back when others want it: a key that keeps
// what it will use soon makes refusals elsewhere untrue if its callers have moved on.
func (k *Key) free() int64 { return max(k.held()-k.queue.callers().Tokens(), 0) }

// believes records what the store believes idle here, after the reply r.
func (f *Fetch) believes(r *backend.Reply) {
	k := f.k
	known := f.Req.Idle + max(r.Grant-f.Req.Need, 0)
	switch {
	case f.Req.Deaf, !k.env.Caller.Hears(f.Req.Key): // also if messages have ceased meanwhile
		known = -1
	case f.Req.Leaving:
		known = 0
	}
	if k.use != nil || k.free() > max(known, 0) { // callers have left during the fetch
		k.usage().recall.known = known
	}
}

// Heard is the event that messages about the key have ceased or begun to come. What was called
// in vain goes back, unless there is enough for all.
func (k *Key) Heard() {
	k.event(func(now int64) effect {
		if k.phase == phaseRetired || k.use == nil {
			return unchanged
		}
		r := &k.use.recall
		switch {
		case !k.env.Caller.Hears(k.env.Stored(k.node.Key)):
			r.known = -1
		case r.known < 0:
			if r.known = 0; k.short {
				r.unknown = now - int64(k.Limit().Window) // for long
			}
			k.allow() // the same elsewhere may have brought some back
			return changed
		}
		return unchanged
	})
}

// toldTimes is how much more rarely a key probes that has been told that the limit is used up: it
// is told of tokens that come back, too, unless the message is lost or many wait for it.
const toldTimes = 4

// Hear is the event of a message about the key.
func (k *Key) Hear(m backend.Message) {
	k.event(func(now int64) effect {
		w, rolls := k.lease.Load(), k.Limit().Rolls
		current := w != nil && w.Window == m.Window
		switch {
		case k.phase == phaseRetired || m.Counter != k.Limit().Counter():
		case m.Kind == backend.Voided:
			return k.voided(m.Window, now)
		case m.Kind == backend.Recall && (current || k.queue.inFlight() || rolls && w != nil): // the reply may name that window
			if rolls { // whose counter has no window
				m.Window.End = 1
			}
			k.usage().recall.called = m.Window
			return changed
		case !current:
		case m.Kind == backend.Exhausted && k.Limit().Tokens <= m.Limit && !k.queue.inFlight():
			w.AddRemaining(-w.Remaining())
			k.deny(w, now)
			k.use.deniedUntil = min(now+toldTimes*(k.use.deniedUntil-now), w.LatestEnd())
			if k.free() > 0 {
				k.use.recall.called = m.Window
			}
			return changed
		case m.Kind == backend.Again:
			k.allow()
			return changed
		}
		return unchanged
	})
}

// voided is the event that a Reset has voided a window, and with it all of its generation and before. A reply that is on its way
// may still name it. A message that comes again says nothing new: it would void the reply that the first one has caused.
func (k *Key) voided(of backend.Window, now int64) effect {
	w := k.lease.Load()
	u := k.usage()
	if u.voided == of || w != nil && w.Window.Gen > of.Gen {
		return unchanged
	}
	if u.voided = of; k.queue.inFlight() {
		k.queue.fetch.void = of.Gen + 1
	}
	if w == nil {
		return unchanged
	}
	return k.void(w, now)
}

// void ends what is known of w, which a Reset has voided: nothing of it is spent, refused or
// waited for any more, and the next caller asks the store. The account stays until a reply names another
// window, so that a false message does no harm.
func (k *Key) void(w *lease.Lease, now int64) effect {
	w.Doubt(now)
	k.usage().recall = recall{}
	k.allow()
	return changed
}

// awaits reports whether the callers in line that r does not serve may get tokens that the
// store calls back from others, and sets the time to ask for them.
func (f *Fetch) awaits(c Trip, r *backend.Reply, now int64) bool {
	k := f.k
	if r.Called == 0 && (r.Idle == 0 || f.Req.Limit.Rolls) || r.Grant >= f.Req.Need && r.Remaining > 0 && f.serves(r) {
		if k.use != nil {
			u := &k.use.recall
			u.asked, u.again, u.until = 0, 0, 0
		}
		return false
	}
	u := &k.usage().recall
	longest, wait := int64(k.longest()), int64(k.patience(c))
	if r.Window != f.Req.Window || r.Grant > 0 || now > u.until+longest { // with what has come, there may be more
		u.asked = 0
	}
	if !f.inVain(r) {
		if u.again = now + wait; r.Called == 0 {
			u.again = 0 // the next statement calls them
		}
		return true
	}
	if u.asked == 0 {
		u.until = now + longest
	}
	u.asked = min(u.asked+1, mostAsks+5)
	switch {
	case f.Req.GaveUp || u.asked > mostAsks: // probes of a key that refuses come ever more rarely
		u.again = now + wait<<max(u.asked-mostAsks, 0)
		return false
	case u.asked == mostAsks:
		wait = u.until - now
	case u.asked > 2:
		wait *= 3
	case u.asked == 2: // as the reply was sent, those who did not answer were called again
		trip := c.End - c.Sent
		wait = max(trip/4, int64(LeastPatience)-trip)
	}
	u.again = min(now+wait, max(u.until, now+1))
	return true
}

// mostAsks is how many statements at most ask for tokens that the store has called from others, until the last one.
const mostAsks = 4

// longest is how long callers in line wait at most for those that the store has called: those who have died must not keep
// the others from being refused.
func (k *Key) longest() time.Duration { return min(k.Limit().Window/askTimes, k.env.Timeout) }

// serves reports whether the store has enough for the first caller in line that the tokens at
// hand and those of r do not serve.
func (f *Fetch) serves(r *backend.Reply) bool {
	hand := r.Grant
	if r.Window == f.Req.Window || f.Req.Limit.Rolls {
		hand += f.k.held()
	}
	return f.k.queue.line.Lacks(hand) <= r.Remaining
}

// inVain reports whether r brings less than callers need. Those who came during a prefetch that
// gets nothing have asked by it.
func (f *Fetch) inVain(r *backend.Reply) bool {
	joined := f.Req.Want > 0 && r.Called > 0 && f.k.queue.line.Active() > 0
	return r.Grant < f.Req.Need || r.Grant == 0 && joined
}

// LeastPatience is what a process on a busy machine needs to hear a call and to answer it,
// however near the store is.
const LeastPatience = 2 * time.Millisecond

// patience is how long to wait for called tokens: half of a round trip of ours and up to a
// quarter more, at random, so that not all who want them ask at one instant. The next statement
// takes half of one to the store, as the reply did from there, so a holder has one and a half.
func (k *Key) patience(c Trip) time.Duration {
	wait := max(time.Duration(c.End-c.Sent), LeastPatience)
	return min(wait*3/4-chance.Part(wait/4), k.longest())
}
