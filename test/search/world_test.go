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

	most budget

	fault fault
	known bool // what is known to be wrong may happen, too
	plain bool // all orders are looked at, also those of replies that commute

	seed  uint64          // of the order in which deep looks
	quiet map[uint64]bool // if not nil, hashes of the states in which nobody waits
	spare *state          // to use again
}

// A budget is how often something may still happen.
type budget struct{ lost, repeats, kills, resets, losses, ledgers, returns, refunds, debts int8 }

const most = 3 // clients

var names = [most]string{"a", "b", "c"}

// A state is one of the world: the store, the clients, what is under way, and what the model knows. A copy shares what it
// refers to, so do copies before it changes something.
type state struct {
	store   store
	clients [most]client
	log     naive.Log
	instant int64
	later   int64 // us by which it is later, because a Reset and a loss of the store take a millisecond
	granted int64 // by the store since it lost its data
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
	late  []statement // which nobody waits for, and which may still arrive
	sends int64
	lost  int8 // after how many more replies the client knows again all that it was granted
	dead  bool
}

// A call is a statement whose client waits for the reply.
type call struct {
	q      statement
	sent   int64 // us
	done   bool
	r      reply
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
	arriveLate
	spend
	giveBack
	refund
	declare
	kill
	tick
	reset
	lose
	loseLedger
	kinds
)

var kindNames = [kinds]string{
	"asks for", "statement arrives", "statement arrives, and will again", "statement is lost", "statement is late, and given up", "hears",
	"reply is lost", "late statement arrives", "spends", "gives back", "refunds", "overruns", "is killed",
	"time passes", "Reset", "the store loses all", "the store loses its ledger",
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
		s.log.Rolls, s.log.Linger = c.us(), c.us()/backend.Slices
		if c.most.lost+c.most.repeats > 0 && !c.known { // the next statement no longer knows when tokens were spent; see TestKnown
			s.log.Linger += c.lease()
		}
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
	now, hurry := c.now(s), false
	may := func(when bool, k kind, who int, n int64) {
		if when {
			to = append(to, action{k, int8(who), int8(n)})
		}
	}
	for i := range c.clients {
		p := &s.clients[i]
		mark := len(to)
		hurry = hurry || p.Hurries(c.limit)
		if p.dead {
			c.lateActions(s, i, may)
			continue
		}
		if p.call == nil {
			for _, n := range c.wants {
				may(p.sends < int64(c.sends) && (n > 0 || p.Window != 0 || p.lost > 0), send, i, n)
			}
		} else if late := s.left.repeats > 0 && (c.known || !c.wrong(p.call.q)); !p.call.done {
			may(true, arrive, i, 0)
			may(late, arriveTwice, i, 0)
			may(late, delay, i, 0)
			may(s.left.lost > 0, loseRequest, i, 0)
		} else {
			may(true, deliver, i, 0)
			may(s.left.lost > 0, loseReply, i, 0)
		}
		may(s.left.kills > 0 && p.sends > 0 && p.Account.Unpaid() == 0, kill, i, 0)
		waits := len(to)
		may(p.Held > 0 && now < p.Deadline, spend, i, 0)
		may(p.Held > 0 && !p.Over(now) && s.left.returns > 0, giveBack, i, 1)
		may(p.Held > 1 && !p.Over(now) && s.left.returns > 0, giveBack, i, p.Held)
		may(s.left.refunds > 0 && p.Refundable(c.limit, now), refund, i, 0)
		may(s.left.debts > 0 && p.MayDeclare(c.limit, now), declare, i, 0)
		if p.call != nil && p.call.done && waits == len(to) && p.Held == 0 && !c.plain {
			return append(to[:0], to[mark:]...)
		}
		c.lateActions(s, i, may)
	}
	may(int(s.instant)+1 < len(c.instants) && !hurry, tick, 0, 0)
	may(s.left.resets > 0, reset, 0, 0)
	may(s.left.losses > 0, lose, 0, 0)
	may(s.left.ledgers > 0, loseLedger, 0, 0)
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
	p, l := &s.clients[who], &s.log
	resets := int64(len(l.Resets))
	if a.kind < tick {
		defer c.hashClient(s, who)
	}
	switch a.kind {
	case arrive, arriveTwice, arriveLate, reset, lose, loseLedger:
		s.store = s.store.clone()
		defer c.hashStore(s)
	case deliver, spend, giveBack, refund, declare, kill:
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
		p.call = &call{q: p.Ask(c.limit, "k", names[who], int64(a.n)), sent: now}
	case arrive, arriveTwice:
		o := *p.call
		if p.call = &o; a.kind == arriveTwice {
			s.left.repeats--
			p.late = append(slices.Clip(p.late), o.q)
		}
		o.r, o.done, o.resets = s.sync(c, o.q, now), true, resets
	case delay:
		s.left.repeats--
		p.late, p.call, p.lost = append(slices.Clip(p.late), p.call.q), nil, 1
	case loseRequest, loseReply:
		s.left.lost--
		p.call, p.lost = nil, 1
	case deliver:
		o := p.call
		p.call, p.lost = nil, max(p.lost-1, 0)
		if err := p.Apply(c.limit, l, who, hand.Call{Q: o.q, R: o.r, Sent: o.sent, Resets: o.resets}, now); err != nil {
			return err
		}
		err := p.Expire(c.limit, l, who, now)
		c.forget(l, now)
		return err
	case arriveLate:
		q := p.late[a.n]
		p.late = slices.Concat(p.late[:a.n], p.late[a.n+1:])
		s.sync(c, q, now)
		if p.lost = 1; p.call != nil {
			p.lost = 2
		}
		if p.dead {
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
		return c.refund(&p.Hand, l, who)
	case declare:
		s.left.debts--
		p.Declare(c.limit, l, who, now)
	case kill:
		s.left.kills--
		return c.kill(s, who, now)
	case tick:
		s.instant++
		return c.pass(s)
	case reset:
		s.left.resets--
		l.Resets = append(slices.Clip(l.Resets), now)
		s.store.reset(c, now)
		s.later += 1000
	case lose, loseLedger:
		if a.kind == lose {
			s.left.losses--
		} else {
			s.left.ledgers--
		}
		if c.fault != secretLoss {
			l.Losses = append(slices.Clip(l.Losses), now)
		}
		s.store.lose(a.kind == loseLedger)
		s.later += 1000
	}
	return nil
}

// sync lets a statement arrive.
func (s *state) sync(c *scope, q statement, now int64) reply {
	r := s.store.sync(c, q, now)
	if len(s.log.Losses) > 0 {
		s.granted += r.Grant
	}
	return r
}

// kill ends a client. What it holds is gone, and what a reply that it does not hear has granted.
func (c *scope) kill(s *state, who int, now int64) error {
	p, l := &s.clients[who], &s.log
	if err := l.Drop(now+c.lease(), who, p.Name(c.limit), p.Held); err != nil {
		return err
	}
	stake, late := p.Account.Unconfirmed(), p.late
	if o := p.call; o != nil && o.done {
		stake += o.r.Grant
	} else if o != nil {
		stake, late = c.limit.Tokens, append(slices.Clip(late), o.q)
	}
	if p.lost > 0 {
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
	if a.kind >= tick {
		return fmt.Sprintf("%v %s", at, kindNames[a.kind])
	}
	text := fmt.Sprintf("%v %s %s", at, names[a.who], kindNames[a.kind])
	switch p := &s.clients[a.who]; a.kind {
	case send, giveBack:
		text += fmt.Sprint(" ", a.n)
	case deliver:
		text += fmt.Sprintf(": %d granted, window %v", p.call.r.Grant, p.call.r.Window)
	}
	return text
}
