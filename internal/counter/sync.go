package counter

import (
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/demand"
)

// unheard divides the grants to clients that get no messages: what is idle there does not come
// back. lua/sync.lua repeats the number; the differential test notices a difference.
const unheard = 1.25

// statement is a SyncRequest on its way through the steps of Sync. They work on a
// copy of the counter, which shares only the map of accounts.
type statement struct {
	backend.SyncRequest
	now    int64
	terms  terms
	c      Counter
	length int64 // of the window, as the request states it, ms
	acc    account
	known  bool  // acc is in the ledger
	fresh  bool  // the window opens now
	runs   bool  // the client's window is not over
	loss   bool  // a sign that the store has lost data
	back   int64 // tokens that it newly gives back
	out    backend.SyncReply
}

// Sync is the step of backend.Store.Sync. The messages are to be sent.
func (c *Counter) Sync(r backend.SyncRequest, now int64) (backend.SyncReply, []Message) {
	s := statement{SyncRequest: r, now: now, c: *c, terms: termsOf(r.Limit, r.OpenLength, r.End, r.Next)}
	s.enter(c)
	if !s.terms.accepts(s.length) {
		return backend.SyncReply{
			State: s.c.state(now, s.Limit, s.terms, s.length), Granted: r.Granted, Returned: r.Returned, Debt: r.Debt, Clients: s.c.others(),
		}, nil
	}
	s.book()
	s.reconcile()
	s.learn()
	s.count()
	s.grant()
	if s.fresh && !s.runs && s.c.used == 0 && s.acc.granted == 0 { // a window opens at its first charge
		return backend.SyncReply{State: backend.State{Remaining: s.Limit.Tokens}, Clients: 1}, nil
	}
	s.keep()
	messages := s.messages()
	*c = s.c
	s.out.Lasted = s.lasted()
	s.out.Over = max(s.c.used-s.Limit.Tokens, 0)
	s.out.State = s.c.state(now, s.Limit, s.terms, s.length)
	s.out.Granted, s.out.Returned, s.out.Debt, s.out.Total = s.acc.granted, s.acc.returned, s.acc.debt, s.c.total
	return s.out, messages
}

// others is how many clients share the window, for one that may not. If the window has no
// ledger, callers without one may share it.
func (c *Counter) others() int64 {
	if c.own == nil {
		return 1
	}
	return c.present
}

// enter finds the window. A store without a window adopts the client's.
func (s *statement) enter(c *Counter) {
	window, length := int64(s.Window), s.terms.length
	if s.terms.open > 0 {
		length = s.terms.open
	}
	if s.fresh = !c.Open(s.now); !s.fresh && c.stop != window {
		s.terms.open = 0 // the client knows that length of its own window only
	}
	s.runs = window*1000 >= s.now && window <= latest(s.now, length)+slack(length) && !(s.fresh && c.closed(window, length))
	s.length = s.c.enter(s.now, s.terms)
	if s.fresh && s.runs {
		s.c, s.length = Counter{stop: window, length: length}, length
	}
	s.acc, s.known = s.c.own[s.Client]
	if s.c.own == nil {
		s.c.unattributed = s.c.used
	}
}

// book enters the statement's figures into the account. If they are of another window
// that still runs, what the client holds there is carried over, its debt as a grant,
// unless that window is void because a Reset opened this one.
func (s *statement) book() {
	c, acc := &s.c, &s.acc
	granted, returned, debt, claims := s.Granted, s.Returned, s.Debt, c.unattributed
	if int64(s.Window) != c.stop {
		claims = 0 // what it holds there was not charged here
		var held int64
		if s.runs && !c.reset {
			held = granted - returned + debt
		}
		s.out.Carried = held > 0
		granted, returned, debt = min(held+acc.returned, backend.MaxTokens), acc.returned, acc.debt
		if held == 0 { // it may have returned debt, and so more than it was granted
			granted = min(granted, acc.granted)
		}
		s.Total, s.Run = 0, 0
	}
	forgotten := max(granted-acc.granted, 0)
	back := max(returned-acc.returned, 0)
	owed := max(debt-acc.debt, 0)
	out := max(forgotten-back, 0)
	claimed := min(claims, out) // charged already
	c.used = min(c.used+forgotten, backend.MaxTokens) - claimed
	c.used = max(min(c.used+owed, backend.MaxTokens)-back, 0) // what goes back may be debt
	c.unattributed -= claimed
	c.total = min(c.total+out-claimed+owed, backend.MaxTokens)
	acc.granted += forgotten
	acc.returned += back
	acc.debt += owed
	s.out.Reasserted = forgotten
	s.out.Recovered = acc.granted - granted // the reply that granted it was lost
	s.loss = forgotten > 0 && claimed == 0
	s.back = back
}

// reconcile compares the store's total with the last one that the client has received. A
// smaller total means that the store has lost grants to others, or returns that may have
// been granted to others since. Those tokens are charged as unattributed.
func (s *statement) reconcile() {
	c := &s.c
	if s.Total > c.total {
		s.loss = true
		if s.Used > c.used {
			c.unattributed = min(c.unattributed+(s.Used-c.used), s.Used)
			c.used = s.Used
		}
	}
	c.total = max(min(c.total+s.back, backend.MaxTokens), s.Total)
}

// learn begins a learning time at a sign of loss, so that other holders can state their
// accounts first.
func (s *statement) learn() {
	ms := s.now / 1000
	s.out.Learning = ms < s.c.learn
	if (s.loss || s.fresh && s.runs) && !s.out.Learning {
		s.c.learn, s.out.Learning = ms+s.length/20, true
	}
}

// count counts the client, unless it leaves.
func (s *statement) count() {
	if s.acc.present {
		s.c.present--
	}
	s.out.Clients = s.c.present
	if !s.Leaving {
		s.out.Clients++
	}
}

// grant charges what the client gets. If less than Least is left, it gets nothing new.
func (s *statement) grant() {
	c, acc := &s.c, &s.acc
	rest := max(s.Limit.Tokens-c.used, 0)
	var take int64
	if rest+s.out.Recovered >= s.Least {
		take = min(max(s.target()-s.out.Recovered, 0), rest, backend.MaxTokens-acc.granted)
	}
	c.used += take
	c.total = min(c.total+take, backend.MaxTokens)
	acc.granted += take
	s.out.Grant = take + s.out.Recovered
}

// keep writes the account, except for an unknown client that has no figures, and wants
// nothing or leaves.
func (s *statement) keep() {
	c, acc := &s.c, &s.acc
	if !s.known && acc.granted == 0 && acc.debt == 0 && (s.Want == 0 || s.Leaving) {
		if s.out.Learning {
			c.open()
		}
		return
	}
	c.open()
	s.idles()
	acc.present = !s.Leaving
	if acc.present {
		c.present++
	}
	c.own[s.Client] = *acc
	if c.exhausted == 0 && c.used >= s.Limit.Tokens {
		c.exhausted = s.now / 1000
	}
}

// open makes room for accounts.
func (l *ledger) open() {
	if l.own == nil {
		l.own = make(map[string]account)
	}
}

// target is how many tokens the client should get: guided self-scheduling
// (Polychronopoulos and Kuck, 1987) over what remains, weighted by the client's share of
// what is charged. What is idle comes back, so a part of it counts as if it had, and a client
// gets no less than an equal part of what remains, nor than a floor, nor than as much again as
// it has got in a row. If its idle tokens cannot be called, it gets less. Recovered tokens count
// as not granted yet, so that a repeated statement gets the same answer.
func (s *statement) target() int64 {
	if s.Want == 0 {
		return 0
	}
	tokens := s.Limit.Tokens
	n0 := max(tokens/1000, 1)
	peers := max(s.out.Clients, s.Peers, 1) // after a reset the others are still to come
	rest, out := max(tokens-s.c.used, 0), max(s.c.used-s.out.Recovered, 0)
	floor := min(demand.Floor(tokens, peers), 3*rest/max(peers, 6))
	floor = max(floor, min(s.Run-max(out-s.Used, 0), rest-rest/8)) // others got what is charged since
	least, divisor := 1/float64(peers), 1.0
	switch {
	case s.out.Learning: // enough for each client, so that a crowd need not call again
		return max(s.Need, min(s.Want, n0))
	case s.Exact && s.Need > 0 && s.c.calls > 0: // others may wait for what came back, too
		return s.Need
	case s.Exact:
		return s.Want
	case s.Idle < 0 && s.Pace > 0: // all who get no messages may leave a hundredth idle
		floor, least, divisor = tokens/(100*peers), 0, unheard
	case s.Idle < 0: // newcomers among them a thousandth
		floor, least, divisor = tokens/(1000*peers), 0, unheard
	}
	free := float64(max(tokens-out, 0) + (s.c.idle-s.acc.idle)/6) // some of what is idle elsewhere may come back
	left := free / float64(tokens)
	prior := max(float64(n0)*left*left, float64(floor), 1) // the weight of a client that has nothing yet
	part := max(float64(s.acc.granted-s.acc.returned-s.out.Recovered), float64(s.Pace)*s.passed())
	all := float64(out) + float64(prior*float64(peers)) // rounded as Lua does: no fused multiply-add
	share := max(min((part+prior)/all, 1), least)
	most := max(int64(min(free*share/divisor, backend.MaxTokens)), floor)
	want := s.Want
	if s.Pace == 0 { // a newcomer does not know its peers
		want = max(want, floor)
	}
	return min(want, max(most, s.Need))
}

// passed is the part of the window that is over.
func (s *statement) passed() float64 {
	length := float64(s.length)
	return max(length-float64(s.c.stop*1000-s.now)/1000, 0) / length
}

// lasted is the time from the window's beginning until the limit was used up; 0 = not yet.
func (s *statement) lasted() time.Duration {
	if s.c.exhausted == 0 {
		return 0
	}
	return time.Duration(max(s.c.exhausted-s.c.stop+s.length, 1)) * time.Millisecond
}
