package proof

import (
	"fmt"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// people is how many clients keep accounts with a key.
const people = 4

// account is a client's ledger entry.
type account struct {
	granted, returned, debt int64
	known                   bool // it has one
}

// state is what the rules of the store make of one key, and comparable. It is
// written from DESIGN.md, not from the scripts: where a script computes the size
// of a grant by a formula, any size between what is needed and what is wanted is
// right. A state together with a request thus has several right outcomes.
type state struct {
	stop  int64 // the end of the window, Unix ms; 0 = never opened
	used  int64
	learn int64 // until then only needed grants are made, Unix ms
	own   [people]account

	ledger       bool  // there is one for this window
	fresh        bool  // a reset opened it: what is said of any other window is void
	unattributed int64 // charged, and whoever can show a grant that is not in the ledger may claim it
}

// request is one operation on one key.
type request struct {
	op     string // sync, take, check, settle, reset, or lose
	key    string
	who    int   // the client of a sync
	now    int64 // by the store's clock, Unix us
	limit  backend.Limit
	tokens int64 // of a take or settlement
	window backend.Window
	sync   backend.SyncRequest
}

// reply is what came of it. An unknown one may have been anything.
type reply struct {
	unknown bool
	state   backend.State
	allowed bool
	settled backend.SettleReply
	sync    backend.SyncReply
}

// outcome is one that is right.
type outcome struct {
	next  state
	reply reply
}

func (s state) open(now int64) bool { return s.stop != 0 && s.stop*1000 >= now }

// enter is the window in which something happens now: the one that is open, or
// one that ends at stop. A clock that stepped back brings its end back.
func (s state) enter(now, stop int64, l backend.Limit) state {
	last, slack := ends(now, l), min(l.Window.Milliseconds()/10, 1000)
	switch {
	case !s.open(now):
		return state{stop: stop}
	case s.stop > last+slack:
		return state{stop: opening(now, l), used: s.used}
	}
	return s
}

func ends(now int64, l backend.Limit) int64 { return (now+999)/1000 + l.Window.Milliseconds() }

// opening is where a window ends that opens now: of whole seconds, at a whole second.
func opening(now int64, l backend.Limit) int64 {
	if ms := l.Window.Milliseconds(); ms%1000 == 0 {
		return now/1_000_000*1000 + ms
	}
	return ends(now, l)
}

// following is opening after the window of s, which has ended a moment ago: if a reset had named
// it, the next is not named like the one that was reset.
func (s state) following(now int64, l backend.Limit) int64 {
	stop := opening(now, l)
	if d := stop - s.stop; s.stop != 0 && d > 0 && d < 1000 {
		stop += l.Window.Milliseconds()
	}
	return stop
}

func (s state) reading(now int64, l backend.Limit) backend.State {
	return backend.State{
		Window: backend.Window(s.stop), Remaining: max(l.Tokens-s.used, 0),
		Left: time.Duration(s.stop*1000-now) * time.Microsecond,
	}
}

// after returns all right outcomes of q.
func (s state) after(q request) []outcome {
	switch q.op {
	case "sync":
		return s.afterSync(q)
	case "take":
		return s.afterTake(q)
	case "check":
		if !s.open(q.now) {
			return []outcome{{s, reply{state: backend.State{Remaining: q.limit.Tokens}}}}
		}
		return []outcome{{s, reply{state: s.reading(q.now, q.limit)}}}
	case "settle":
		if !s.open(q.now) || s.stop != int64(q.window) {
			return []outcome{{s, reply{}}}
		}
		s.used = max(s.used+q.tokens, 0)
		s.unattributed = max(s.unattributed+min(q.tokens, 0), 0)
		return []outcome{{s, reply{settled: backend.SettleReply{Open: true, Over: max(s.used-q.limit.Tokens, 0)}}}}
	case "reset":
		return s.afterReset(q)
	default: // all data is lost
		return []outcome{{state{}, reply{}}}
	}
}

// afterReset is a window of another name in place of the open one, of which nothing is charged.
func (s state) afterReset(q request) []outcome {
	if !s.open(q.now) {
		return []outcome{{s, reply{state: backend.State{Remaining: q.limit.Tokens}}}}
	}
	next := state{stop: opening(q.now, q.limit), ledger: true, fresh: true}
	if d := next.stop - s.stop; max(d, -d) < 1000 { // names that are close go down
		next.stop = min(next.stop, s.stop-1)
	}
	return []outcome{{next, reply{state: next.reading(q.now, q.limit)}}}
}

func (s state) afterTake(q request) []outcome {
	was := s
	s = s.enter(q.now, s.following(q.now, q.limit), q.limit)
	if s.used+q.tokens > q.limit.Tokens { // a refusal writes nothing
		return []outcome{{was, reply{state: s.reading(q.now, q.limit)}}}
	}
	s.used += q.tokens
	return []outcome{{s, reply{state: s.reading(q.now, q.limit), allowed: true}}}
}

// afterSync settles the account, and then grants.
func (s state) afterSync(q request) []outcome {
	r, was := q.sync, s
	runs := int64(r.Window)*1000 >= q.now && int64(r.Window) <= ends(q.now, q.limit)+min(q.limit.Window.Milliseconds()/10, 1000)
	if d := int64(r.Window) - s.stop; s.stop != 0 && !s.open(q.now) && d > 0 && d < 1000 { // it was reset
		runs = false
	}
	stop := s.following(q.now, q.limit)
	if runs {
		stop = int64(r.Window)
	}
	s = s.enter(q.now, stop, q.limit)
	out := backend.SyncReply{}
	mine := &s.own[q.who]
	if !s.ledger {
		s.unattributed = s.used
	}
	claims := s.unattributed
	granted, returned, debt := r.Granted, r.Returned, r.Debt
	if int64(r.Window) != s.stop { // what it holds in another window that runs is carried over
		held := int64(0)
		if runs && !s.fresh {
			held = granted - returned + debt
		}
		claims = 0
		out.Carried = held > 0
		granted, returned, debt = held+mine.returned, mine.returned, mine.debt
	}
	claimed := int64(0)
	if granted > mine.granted {
		out.Reasserted = granted - mine.granted
		claimed = min(claims, max(out.Reasserted-max(returned-mine.returned, 0), 0))
		s.used, mine.granted = s.used+out.Reasserted-claimed, granted
		s.unattributed -= claimed
	}
	if returned > mine.returned {
		s.used, mine.returned = max(s.used-returned+mine.returned, 0), returned
	}
	if debt > mine.debt { // above the limit too
		s.used, mine.debt = s.used+debt-mine.debt, debt
	}
	out.Recovered = mine.granted - granted
	out.Learning = q.now/1000 < s.learn
	adopted := runs && !was.open(q.now)
	if (out.Reasserted > 0 && claimed == 0 || adopted) && !out.Learning {
		s.learn, out.Learning = q.now/1000+q.limit.Window.Milliseconds()/20, true
	}
	return s.grants(q, out, was, adopted)
}

// grants are the outcomes for all sizes of a grant that are right.
func (s state) grants(q request, out backend.SyncReply, was state, adopted bool) (list []outcome) {
	out.Clients = s.clients(q.who)
	least, most := s.wishes(q.sync, q.limit, out)
	rest := max(q.limit.Tokens-s.used, 0)
	least, most = min(max(least-out.Recovered, 0), rest), min(max(most-out.Recovered, 0), rest)
	for n := least; n <= most; n++ {
		next, said := s, out
		next.used += n
		mine := &next.own[q.who]
		mine.granted += n
		if next.used == 0 && mine.granted == 0 && !was.open(q.now) && !adopted { // a window opens at its first charge
			list = append(list, outcome{was, reply{sync: backend.SyncReply{State: backend.State{Remaining: q.limit.Tokens}, Clients: 1}}})
			continue
		}
		if mine.granted > 0 || mine.debt > 0 || q.sync.Want > 0 || mine.known {
			mine.known, next.ledger = true, true
		} else if out.Learning {
			next.ledger = true
		}
		said.State, said.Over = next.reading(q.now, q.limit), max(next.used-q.limit.Tokens, 0)
		said.Grant, said.Granted, said.Returned, said.Debt = n+out.Recovered, mine.granted, mine.returned, mine.debt
		list = append(list, outcome{next, reply{sync: said}})
	}
	return list
}

// wishes are the bounds of what a client should hold more, what it has not heard
// of included.
func (s state) wishes(r backend.SyncRequest, l backend.Limit, out backend.SyncReply) (least, most int64) {
	switch {
	case r.Want == 0:
		return 0, 0
	case out.Learning:
		floor := max(l.Tokens/1000, 1)
		if r.Strand >= 0 {
			floor = r.Strand / max(out.Clients, r.Peers)
		}
		n := max(r.Need, min(r.Want, floor))
		return n, n
	case r.Strand < 0:
		return r.Want, r.Want
	}
	floor := r.Strand / max(out.Clients, r.Peers)
	return min(max(r.Want, floor), max(r.Need, floor)), max(r.Want, floor)
}

// clients is the number of accounts, that of who included.
func (s state) clients(who int) (n int64) {
	for i, a := range s.own {
		if a.known || i == who {
			n++
		}
	}
	return n
}

// step returns the states in which s may be after q was answered by r.
func (s state) step(q request, r reply) (list []any) {
	for _, o := range s.after(q) {
		r.sync.Lasted, r.sync.Total = 0, 0 // matters of hints
		if r.unknown || o.reply == r {
			list = append(list, o.next)
		}
	}
	return list
}

// expected says what would have been right, for a message.
func (s state) expected(q request) string {
	text := fmt.Sprintf("in %+v, %+v\nright:", s, q)
	for _, o := range s.after(q) {
		text += fmt.Sprintf("\n  %+v", o.reply)
	}
	return text
}
