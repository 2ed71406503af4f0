package rolling

import (
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/demand"
	"github.com/go-reservoir/reservoir/internal/ledger"
)

// statement is a SyncRequest on its way through the steps of Sync. They work on a copy of the
// ring, which shares only the map of accounts.
type statement struct {
	backend.SyncRequest
	r       Ring
	at      int64 // the ring's time
	present int64 // slice
	acc     account
	ours    bool    // the statement's totals are about acc
	stale   bool    // they are about an account before acc: nobody waits for the reply
	was     account // before the statement
	gone    bool    // others' accounts were deleted
	fresh   bool    // acc begins now, and replaces none
	known   bool    // the client had an account, which may be over
	out     backend.SyncReply
}

// Sync is the step of backend.RollingStore.SyncRolling. The messages are to be sent.
func (r *Ring) Sync(q backend.SyncRequest, now int64) (backend.SyncReply, []ledger.Message) {
	s := statement{SyncRequest: q, r: *r}
	s.at, s.present = s.r.enter(now, q.Limit)
	if s.find(); s.stale { // it changes nothing
		s.out.State, s.out.Account = s.r.state(s.at, s.acc.slice, s.Limit, 1), s.acc.name
		return s.out, nil
	}
	if !s.known || s.r.low/sweeps != r.low/sweeps {
		s.sweep()
	}
	if s.ours {
		s.book()
	}
	s.carry()
	s.grant()
	a, none := &s.acc, s.fresh && s.acc.granted == 0 && s.Debt == 0 && (s.Want == 0 || s.Leaving)
	if none { // no account is needed
		a.name = 0
		delete(s.r.own, s.Client)
	} else {
		s.keep()
	}
	messages := s.messages()
	if was := r.sums; !none || r.Open(now) {
		was.last, was.low = s.r.last, s.r.low
		if was != s.r.sums || none && s.known || !none && s.acc != s.was || s.gone || s.out.Recovered+s.Debt > 0 { // else nothing but the time has changed
			*r = s.r
		}
	}
	s.out.State = s.r.state(s.at, a.slice, s.Limit, max(s.Need-s.out.Grant, 1))
	s.out.Account, s.out.Granted, s.out.Returned, s.out.Debt, s.out.Total = a.name, a.granted, a.returned, a.debt, s.r.total
	s.out.Over, s.out.Learning = max(s.r.sum-s.Limit.Tokens, 0), s.at < s.r.learn
	return s.out, messages
}

// sweeps is the number of slices after which a statement sweeps. That of a client without an account always does.
const sweeps = 5

// sweep deletes accounts that are over, of some that are drawn at random, because no window ends
// that would void them all.
func (s *statement) sweep() {
	looked := 0
	for name, a := range chance.Order(s.r.own) {
		if looked++; looked > ledger.AtOnce {
			return
		}
		if a.slice < s.r.low && name != s.Client {
			s.r.forget(a)
			delete(s.r.own, name)
			s.gone = true
		}
	}
}

// forget takes an account that is over out of the sums.
func (r *Ring) forget(a account) {
	r.idle = max(r.idle-a.idle, 0)
	if a.present {
		r.present--
	}
	if a.called {
		r.out--
	}
}

// find finds the account that the statement is about. What was granted to one that is over
// counts no more and must not be spent, so another one begins; its client may not know of
// that yet, and then has used nothing of it. An account that should be there was lost.
func (s *statement) find() {
	r := &s.r
	acc, known := r.own[s.Client]
	s.known, s.was = known, acc
	untouched := acc.returned+acc.spent+acc.refunded+acc.debt == 0
	current := known && acc.slice >= r.low
	live := s.Account > r.void && s.Window.End*1000 > s.at && backend.SliceOf(s.Window, r.length) < r.low+room
	if s.stale = current && s.Account < acc.name && s.Account != 0 && !untouched; s.stale {
		s.acc = acc
		return
	}
	if known {
		r.forget(acc)
		acc.idle, acc.called, acc.present = 0, false, false
	}
	switch {
	case current && (s.Account == acc.name || s.Account < acc.name && untouched):
		s.acc, s.ours = acc, s.Account == acc.name
	case live && s.Account > acc.name:
		s.lost()
	default:
		s.fresh = !current
		name := max(s.at, acc.name+1, r.void+1)
		if name == s.Account { // the clock has stepped back to that very instant
			name++
		}
		s.acc = account{name: min(name, backend.MaxTokens), slice: r.low}
	}
}

// lost begins the account anew, because the store has lost it, with what the client still holds.
// The rest of what the client knows to be charged is taken for spent as late as possible. For as
// long as a lease lasts grants are small, so that others can state their accounts first. No
// lease ends later than that, unless the clock of the store was ahead.
func (s *statement) lost() {
	r := &s.r
	spent := min(s.spent(), max(s.Granted-s.Returned, 0))
	s.acc = account{
		name: s.Account, slice: min(backend.SliceOf(s.Window, r.length), s.present+backend.Refundable),
		granted: s.Granted, returned: s.Returned, spent: spent, refunded: s.Refunded, debt: s.Debt,
	}
	held := max(s.acc.unspent(), 0)
	r.add(s.acc.slice, held)
	s.out.Reasserted = held
	s.ours = true
	s.unattributed()
}

// unattributed charges what others were granted, and spent, that the store has lost. It may be spent
// until the learning time ends, which begins with the first sign: later ones are of the same loss,
// and nobody waits longer because of them.
func (s *statement) unattributed() {
	r := &s.r
	if s.at >= r.learn+r.length.Microseconds() {
		r.learn = s.at + (backend.Ahead+1)*r.length.Microseconds()/backend.Slices
	}
	if s.Total > r.total {
		if lack := s.Used - r.sum; lack > 0 {
			r.add(backend.Slice(r.learn, r.length), lack)
		}
		r.total = s.Total
	}
}

// spent is what the client has spent in all.
func (s *statement) spent() int64 {
	if n := len(s.Spent); n > 0 {
		return s.Spent[n-1].Tokens
	}
	return 0
}

// book enters the statement's totals into the account. What is spent moves to the slice in which
// it was, or to the present one if that is earlier than the statement knows.
func (s *statement) book() {
	r, a := &s.r, &s.acc
	if n := s.Granted - a.granted; n > 0 { // a reply that the store has lost
		r.add(a.slice, n)
		a.granted += n
		s.out.Reasserted += n
		s.unattributed()
	} else if s.Total > r.total {
		s.unattributed()
	}
	if n := min(s.Returned-a.returned, a.unspent()); n > 0 {
		r.add(a.slice, -n)
		a.returned += n
		r.moved(n)
	}
	last := max(a.slice, backend.SliceOf(s.Window, r.length)) // later, if the store has lost a statement
	for _, p := range s.Spent {
		if n := min(p.Tokens-a.spent, a.unspent()); n > 0 {
			r.add(a.slice, -n)
			r.add(min(p.Slice, last, s.present), n)
			a.spent += n
		}
	}
	if n := s.Debt - a.debt; n > 0 {
		r.add(s.present, n)
		a.debt += n
		r.moved(n)
	}
	if n := min(s.Refunded, a.spent+a.debt) - a.refunded; n > 0 {
		from := min(backend.SliceOf(s.RefundedIn, r.length)-backend.Refundable, s.present)
		if from >= r.low {
			r.add(from, -n)
			r.moved(n)
		}
		a.refunded += n
	}
}

// carry lets what is unspent be spent later.
func (s *statement) carry() {
	a := &s.acc
	slice := max(a.slice, s.present+backend.Ahead)
	if n := a.unspent(); n > 0 && slice != a.slice {
		s.r.add(a.slice, -n)
		s.r.add(slice, n)
	}
	s.out.Carried = s.ours && s.Window != backend.SliceEnd(slice, s.r.length)
	a.slice = slice
}

// grant charges what the client gets. If less than Least is left, it gets nothing new.
func (s *statement) grant() {
	r, a := &s.r, &s.acc
	s.out.Clients = r.present
	if !s.Leaving {
		s.out.Clients++
	}
	s.out.Recovered = a.granted
	if s.ours {
		s.out.Recovered -= s.Granted
	}
	rest := max(s.Limit.Tokens-r.sum, 0)
	var take int64
	if rest+s.out.Recovered >= s.Least {
		take = min(max(s.target(rest)-s.out.Recovered, 0), rest, backend.MaxTokens-a.granted)
	}
	r.add(a.slice, take)
	r.moved(take)
	a.granted += take
	s.out.Grant = take + s.out.Recovered
}

// target is how many tokens the client should get: its share of what is free, by its part of the
// demand, an equal part at least, and a floor. Some of what lies idle elsewhere counts as free, because it
// comes back.
func (s *statement) target(rest int64) int64 {
	tokens := s.Limit.Tokens
	peers := max(s.out.Clients, s.Peers, 1)
	part := tokens / peers
	floor := max(demand.Floor(tokens, peers), part/12) // its part of more than a slice, whose tail would go out in ever smaller ones
	switch {
	case s.Want == 0:
		return 0
	case s.at < s.r.learn:
		return max(s.Need, min(s.Want, max(tokens/1000, 1)))
	case s.Exact && s.Need > 0 && s.r.calls > 0:
		return s.Need
	case s.Exact:
		return s.Want
	}
	free := float64(rest + s.r.idle/6)
	if s.Pace > part { // it runs short again and again, and a small part is soon used up
		floor = max(floor, min(part/6, 100))
	} else { // what the present slice surely leaves need not be shared out so carefully
		free += float64(6 * max(rest-tokens/16, 0))
	}
	most := max(int64(free*min(float64(max(s.Pace, part))/float64(tokens), 1)), min(floor, rest))
	return min(s.Want, max(most, s.Need))
}

// keep writes the account.
func (s *statement) keep() {
	r, a := &s.r, &s.acc
	if !s.Leaving && s.Idle >= 0 {
		a.idle = max(s.out.Grant-s.Need, 0)
		if s.ours {
			a.idle += s.Idle
		}
		soon := min(s.Pace, 1e15) * backend.Ahead / backend.Slices // what it will use before its lease ends
		a.idle = max(min(a.idle, a.unspent())-soon, 0)
	}
	a.present = !s.Leaving
	if r.own == nil {
		r.own = make(map[string]account)
	}
	if a.present {
		r.present++
	}
	r.idle = min(r.idle+a.idle, backend.MaxTokens)
	r.own[s.Client] = *a
}
