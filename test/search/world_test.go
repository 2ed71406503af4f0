package search

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/naive"
	"github.com/go-reservoir/reservoir/internal/naive/hand"
)

// A scope says what may happen, and how often at most.
type scope struct {
	limit    backend.Limit
	clients  int
	instants []time.Duration // since the base, in turn
	wants    []int64
	sends    int // statements of each client

	most   budget
	losing []kind // how the store loses data; nil = in each way

	fault fault
	plain bool // all orders are looked at, also those of replies that commute

	seed  uint64          // of the order in which deep looks
	quiet map[uint64]bool // if not nil, hashes of the states in which nobody waits
	spare *state          // to use again
}

// A budget is how often something may still happen.
type budget struct {
	lost, repeats, kills, resets, returns, refunds, debts int8
	losses                                                int8 // of the store, of any kind

	leaves, directs, holds int8 // lives that end, and statements without a client
}

const (
	most   = 3    // clients
	nobody = most // who makes statements without a client
)

var names = [most]string{"a", "b", "c"}

// A state is one of the world: the store, the clients, what is under way, and what the model knows. A copy shares what it
// refers to, so do copies before it changes something.
type state struct {
	store   store
	clients [most]client
	log     naive.Log
	instant int64
	later   int64          // us by which it is later, because a Reset and a loss of the store take a millisecond
	granted int64          // by the store since it lost its data
	taken   backend.Window // of the last token that was taken without an account
	left    budget

	sums struct { // hashes of the parts
		store, log uint64
		accounts   [most]uint64 // in the store
		clients    [most]uint64
	}
}

type client struct {
	hand.Hand
	call  *call
	stale *call                // whose reply comes late: it was given up
	late  []*backend.Statement // which nobody waits for, and which may still arrive
	sends int64
	lost  int8 // after how many more replies the client knows again all that it was granted
	dead  bool
}

// A call is a statement whose client waits for the reply.
type call struct {
	q      *backend.Statement
	sent   int64 // us
	done   bool
	r      *backend.Reply
	resets int64 // before it was done
}

// kind is what happens.
type kind uint8

const (
	send kind = iota
	arrive
	arriveTwice
	loseRequest
	delay
	deliver
	loseReply
	delayReply
	hearLate
	arriveLate
	spend
	giveBack
	refund
	declare
	leave
	kill
	direct
	directLost
	overrun
	hold
	tick
	reset
	lose
	loseLedger
	loseCount
	loseEnd
	kinds
)

var kindNames = [kinds]string{
	"asks for", "statement arrives", "statement arrives, and will again", "statement is lost", "statement is late, and given up", "hears",
	"reply is lost", "reply is late, and given up", "hears a late reply", "late statement arrives", "spends", "gives back", "refunds",
	"overruns", "begins another life", "is killed", "somebody takes one without an account", "somebody's reply is lost",
	"somebody overruns", "somebody holds the limit", "time passes", "Reset", "the store loses all", "the store loses its ledger", "the store loses the count",
	"the store loses the end",
}

// An action is one step of the world.
type action struct {
	kind kind
	who  int8
	n    int8
}

func (c *scope) start() *state {
	s := &state{left: c.most, log: naive.Log{Limit: c.limit.Tokens}}
	if c.limit.Rolls {
		// A bucket is at most 10 later than its grant, and after a refund another token may be the one that counts in it.
		s.log.Rolls, s.log.Linger = c.us(), c.us()/backend.Buckets*22
	}
	c.hashStore(s)
	for i := range c.clients {
		c.hashClient(s, i)
	}
	return s
}

func (c *scope) now(s *state) int64 { return base + c.instants[s.instant].Microseconds() + s.later }

// actions appends what may happen in s. If a client that holds nothing waits for a reply that is on its way, nothing else
// happens first, because all else commutes with what the client does then.
func (c *scope) actions(s *state, to []action) []action {
	now := c.now(s)
	may := func(when bool, k kind, who int, n int64) {
		if when {
			to = append(to, action{k, int8(who), int8(n)})
		}
	}
	for i := range c.clients {
		p := &s.clients[i]
		mark := len(to)
		if p.dead {
			c.lateActions(s, i, may)
			continue
		}
		if p.call == nil {
			for _, n := range c.wants {
				may(p.sends < int64(c.sends) && (n > 0 || p.Window.End != 0 || p.lost > 0), send, i, n)
			}
		} else if late := s.left.repeats > 0; !p.call.done {
			may(true, arrive, i, 0)
			may(late, arriveTwice, i, 0)
			may(late, delay, i, 0)
			may(s.left.lost > 0, loseRequest, i, 0)
		} else {
			may(true, deliver, i, 0)
			may(s.left.lost > 0, loseReply, i, 0)
			may(s.left.repeats > 0 && p.stale == nil, delayReply, i, 0)
		}
		may(s.left.kills > 0 && p.sends > 0 && p.Unpaid() == 0, kill, i, 0)
		waits := len(to)
		may(p.Held > 0 && now < p.Deadline, spend, i, 0)
		may(p.Held > 0 && !p.Over(now) && s.left.returns > 0, giveBack, i, 1)
		may(p.Held > 1 && !p.Over(now) && s.left.returns > 0, giveBack, i, p.Held)
		may(s.left.refunds > 0 && p.Refundable(c.limit, now), refund, i, 0)
		may(s.left.debts > 0 && p.MayDeclare(now), declare, i, 0)
		if p.call != nil && p.call.done && waits == len(to) && p.Held == 0 && !c.plain {
			return append(to[:0], to[mark:]...)
		}
		may(p.stale != nil, hearLate, i, 0)
		settled := p.lost == 0 && p.Unpaid()+p.Unconfirmed() == 0 || c.fault == forgetful
		may(s.left.leaves > 0 && p.call == nil && p.Window.End != 0 && p.Held == 0 && settled, leave, i, 0)
		c.lateActions(s, i, may)
	}
	may(s.left.directs > 0, direct, nobody, 1)
	may(s.left.directs > 0 && s.left.lost > 0, directLost, nobody, 1)
	may(s.left.debts > 0 && s.taken.End != 0, overrun, nobody, 1)
	for i := range holds {
		may(s.left.holds > 0, hold, nobody, int64(i))
	}
	may(int(s.instant)+1 < len(c.instants), tick, 0, 0)
	may(s.left.resets > 0, reset, 0, 0)
	for k := lose; k <= loseEnd; k++ {
		may(s.left.losses > 0 && (c.losing == nil || slices.Contains(c.losing, k)) && (k == lose || !c.limit.Rolls), k, 0, 0)
	}
	return to
}

func (c *scope) lateActions(s *state, who int, may func(bool, kind, int, int64)) {
	for j, late := 0, s.clients[who].late; j < len(late); j++ {
		may(j == 0 || !reflect.DeepEqual(late[j], late[j-1]), arriveLate, who, int64(j))
	}
}

// after is s after a.
func (c *scope) after(s *state, a action) (*state, error) {
	next := c.spare
	if c.spare = nil; next == nil {
		next = new(state)
	}
	*next = *s
	return next, c.do(next, a)
}

// do lets a happen in s, a copy, and judges.
func (c *scope) do(s *state, a action) (err error) {
	now, who := c.now(s), int(a.who)
	p, l := &s.clients[who%most], &s.log
	resets := int64(len(l.Resets))
	if a.kind < direct {
		defer c.hashClient(s, who)
	}
	switch a.kind {
	case direct, directLost, overrun, hold:
		l.List = slices.Clone(l.List)
		fallthrough
	case arrive, arriveTwice, arriveLate, reset, lose, loseLedger, loseCount, loseEnd:
		s.store = s.store.clone()
		defer c.hashStore(s)
	case deliver, hearLate, spend, giveBack, refund, declare, leave, kill:
		l.List = slices.Clone(l.List)
		fallthrough
	case send:
		p.Hand = cloneHand(p.Hand)
	case tick:
		l.List = slices.Clone(l.List)
		for i := range c.clients {
			s.clients[i].Hand = cloneHand(s.clients[i].Hand)
			defer c.hashClient(s, i)
		}
	}
	switch a.kind {
	case send:
		p.sends++
		p.call = &call{q: p.Ask(c.limit, "k", names[who], int64(a.n), now), sent: now}
	case arrive, arriveTwice:
		o := *p.call
		if p.call = &o; a.kind == arriveTwice {
			s.left.repeats--
			p.late = append(slices.Clip(p.late), o.q)
		}
		o.r, err = s.sync(c, o.q, now)
		o.done, o.resets = true, resets
	case delay:
		s.left.repeats--
		p.late, p.call, p.lost = append(slices.Clip(p.late), p.call.q), nil, 1
	case loseRequest, loseReply:
		s.left.lost--
		p.call, p.lost = nil, 1
	case delayReply:
		s.left.repeats--
		p.stale, p.call, p.lost = p.call, nil, 1
	case deliver:
		o := p.call
		p.call = nil
		return c.hear(s, who, o, now)
	case hearLate:
		o := p.stale
		if p.stale = nil; c.last(&p.Hand, o.q) {
			return c.hear(s, who, o, now)
		}
	case arriveLate:
		q := p.late[a.n]
		p.late = slices.Concat(p.late[:a.n], p.late[a.n+1:])
		if _, err = s.sync(c, q, now); err != nil {
			return err
		}
		if p.lost = 1; p.dead {
			l.List = slices.Clone(l.List)
			return c.gone(s, who, now, c.limit.Tokens)
		}
	case spend:
		return p.Spend(c.limit, l, who, now, s.left.refunds > 0)
	case giveBack:
		s.left.returns--
		return p.GiveBack(c.limit, l, who, int64(a.n))
	case refund:
		s.left.refunds--
		return c.refund(&p.Hand, l, who, now)
	case declare:
		s.left.debts--
		p.Declare(c.limit, l, who, now)
	case leave:
		s.left.leaves--
		c.begin(&p.Hand)
	case kill:
		s.left.kills--
		return c.kill(s, who, now)
	case direct, directLost:
		s.left.directs--
		r := s.store.direct(c, int64(a.n), 0, now)
		if err = answer(l, &r); err != nil || r.Grant == 0 {
			return err
		}
		w := r.Window
		s.granted += int64(a.n)
		s.taken = w
		name := hand.Name(c.limit, w, resets)
		l.Grant(who, name, int64(a.n))
		if a.kind == direct {
			return l.Spend(now, who, name, int64(a.n))
		}
		s.left.lost--
		return l.Drop(now, who, name, int64(a.n))
	case overrun:
		s.left.debts--
		s.store.overrun(c, s.taken, int64(a.n), now)
		l.Declare(now, who, hand.Name(c.limit, s.taken, resets), int64(a.n))
	case hold:
		s.left.holds--
		r := s.store.direct(c, 0, holds[a.n], now)
		l.Hold((now+999)/1000*1000 + holds[a.n].Microseconds())
		return answer(l, &r)
	case tick:
		s.instant++
		return c.pass(s)
	case reset:
		s.left.resets--
		l.Resets, l.Held = append(slices.Clip(l.Resets), now), 0
		s.store.reset(c, now)
		s.later += 1000
		if c.limit.Rolls { // the model knows what was taken by how many Resets came before
			s.taken = backend.Window{}
		}
	case lose, loseLedger, loseCount, loseEnd:
		s.left.losses--
		if c.fault != secretLoss && c.costs(s, a.kind) {
			l.Losses = append(slices.Clip(l.Losses), now)
		}
		if s.store.lose(a.kind); a.kind == lose || a.kind == loseLedger { // a hold is in the ledger
			l.Held = 0
		}
		s.later += 1000
	}
	return err
}

// holds are how long the limit may be held: until before the end of a window, and after it.
var holds = [...]time.Duration{1050 * time.Millisecond, 2150 * time.Millisecond}

// sync lets a statement arrive.
func (s *state) sync(c *scope, q *backend.Statement, now int64) (*backend.Reply, error) {
	r := s.store.sync(c, q, now)
	if len(s.log.Losses) > 0 {
		s.granted += r.Grant
	}
	return r, answer(&s.log, r)
}

// answer judges a reply.
func answer(l *naive.Log, r *backend.Reply) error {
	if r.Void || r.Astray {
		return nil
	}
	return l.Answer(r.Now, r.Grant, r.Held.Microseconds())
}

// hear gives a client the reply to its last statement.
func (c *scope) hear(s *state, who int, o *call, now int64) error {
	p, l := &s.clients[who], &s.log
	if p.lost = max(p.lost-1, 0); o.r.Void || o.r.Astray {
		p.lost = 1
	}
	sent := o.sent
	if c.fault == lateDeadline {
		sent = now
	}
	if err := p.Apply(c.limit, l, who, hand.Call{Q: o.q, R: o.r, Sent: sent, Resets: o.resets}, now); err != nil {
		return err
	}
	err := p.Expire(c.limit, l, who, now)
	c.forget(l, now)
	return err
}

// kill ends a client. What it holds is gone, and what a reply that it does not hear has granted.
func (c *scope) kill(s *state, who int, now int64) error {
	p, l := &s.clients[who], &s.log
	if err := l.Drop(now+c.lease(), who, p.Name(c.limit), p.Held); err != nil {
		return err
	}
	stake, late := p.Unconfirmed(), p.late
	if o := p.call; o != nil && o.done {
		stake += o.r.Grant
	} else if o != nil {
		stake, late = c.limit.Tokens, append(slices.Clip(late), o.q)
	}
	if p.lost > 0 || s.left.debts < c.most.debts { // nobody knows what its last statement has done
		stake = c.limit.Tokens
	}
	*p = client{dead: true, late: late}
	return c.gone(s, who, now, stake)
}

// gone says that stake tokens of the store's window may be charged to a dead client.
func (c *scope) gone(s *state, who int, now, stake int64) error {
	_, w := s.store.free(c, now, int64(len(s.log.Resets)))
	s.log.Grant(who, w, stake)
	return s.log.Drop(now+c.lease(), who, w, stake)
}

// pass lets time pass: what is over expires.
func (c *scope) pass(s *state) error {
	now, l := c.now(s), &s.log
	for i := range c.clients {
		if p := &s.clients[i]; !p.dead && p.call == nil {
			if err := p.Expire(c.limit, l, i, now); err != nil {
				return err
			}
		}
	}
	c.forget(l, now)
	return nil
}

// forget takes from the list what matters no more.
func (c *scope) forget(l *naive.Log, now int64) {
	if l.Held <= now {
		l.Held = 0
	}
	l.List = slices.DeleteFunc(l.List, func(t naive.Tokens) bool {
		if l.Rolls > 0 {
			return t.State != naive.Held && t.At+l.Rolls+l.Linger <= now
		}
		return t.State != naive.Held && t.Window.End < now
	})
}

// text says what a is.
func (c *scope) text(s *state, a action) string {
	at := c.instants[s.instant]
	if a.kind >= direct {
		return fmt.Sprintf("%v %s", at, kindNames[a.kind])
	}
	text := fmt.Sprintf("%v %s %s", at, names[a.who], kindNames[a.kind])
	switch p := &s.clients[a.who]; a.kind {
	case send, giveBack:
		text += fmt.Sprint(" ", a.n)
	case deliver, hearLate:
		o := p.call
		if a.kind == hearLate {
			o = p.stale
		}
		text += fmt.Sprintf(": %d granted, window %v", o.r.Grant, o.r.Window)
	}
	return text
}
