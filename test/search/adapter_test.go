package search

import (
	"fmt"
	"reflect"
	"slices"
	"time"
	"unsafe"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/account"
	"github.com/go-reservoir/reservoir/internal/counter"
	"github.com/go-reservoir/reservoir/internal/naive"
	"github.com/go-reservoir/reservoir/internal/rolling"
)

// This file has all that the search knows of the protocol. The rest moves statements and replies about, and tells the
// naive model what comes of it.

type (
	statement = backend.SyncRequest
	reply     = backend.SyncReply
)

// base is the time from which a search counts, us.
const base = int64(1_000_000_000_000)

// A store is one key of a store: the rules that are judged.
type store struct {
	fixed counter.Counter
	ring  rolling.Ring
}

func (s *store) clone() store { return store{s.fixed.Clone(), s.ring.Clone()} }

// A hand is a client's side of a key: the account that is judged, and its lease.
type hand struct {
	account    account.Account
	window     backend.Window // 0 = none
	deadline   int64          // until when tokens are spent, us
	held       int64
	generation int64 // of a rolling limit: how many Resets there had been when its account began
	charges    []charge
}

// A charge is a token that was spent, and may be refunded.
type charge struct {
	window backend.Window
	at     int64
}

var accountShape = shapeOf(reflect.TypeFor[account.Account]())

func (h *hand) clone() hand {
	next := *h
	accountShape.part(unsafe.Pointer(&next.account))
	next.charges = slices.Clone(h.charges)
	return next
}

// a fault is planted into what passes between the clients and the store.
type fault string

const (
	none            fault = ""
	doubledRecovery fault = "a doubled recovery"
	lostCharged     fault = "a lost grant is charged again"
	returnedTwice   fault = "a return is counted twice"
	early           fault = "a window is entered early"
	notReasserted   fault = "no re-assertion"
	refundedTwice   fault = "a refund is counted twice"
	wrongWindow     fault = "a give-back in the wrong window"
)

// us is the length of the limit's window.
func (c *scope) us() int64 { return c.limit.Window.Microseconds() }

// sync carries out a statement.
func (s *store) sync(c *scope, q statement, now int64) (r reply) {
	var before backend.Account
	if c.fault != none {
		before = s.accountOf(c, q.Client, now)
	}
	switch soon := now + 4000; {
	case c.fault != early:
	case c.limit.Rolls: // a slice
		now += c.us() / backend.Slices
	case s.fixed.Open(now) && !s.fixed.Open(soon):
		now = soon
	}
	if c.limit.Rolls {
		r, _ = s.ring.Sync(q, now)
	} else {
		r, _ = s.fixed.Sync(q, now)
	}
	switch back := r.Returned - before.Returned; {
	case c.fault == doubledRecovery:
		r.Grant += r.Recovered
	case c.fault == lostCharged && r.Recovered > 0:
		s.settle(c, r.Window, r.Recovered, now)
	case c.fault == notReasserted && r.Reasserted > 0:
		s.settle(c, r.Window, -r.Reasserted, now)
	case c.fault == returnedTwice && q.Window == r.Window && back > 0:
		s.settle(c, r.Window, -back, now)
	case c.fault == wrongWindow && q.Window != r.Window && q.Returned > 0:
		s.settle(c, r.Window, -q.Returned, now)
	}
	return r
}

// wrong reports whether a late copy of q is known to do harm; see TestKnown.
func (c *scope) wrong(q statement) bool { return c.limit.Rolls && q.Account == 0 }

func (s *store) accountOf(c *scope, client string, now int64) backend.Account {
	contents := s.fixed.Contents(now)
	if c.limit.Rolls {
		contents = s.ring.Contents(now)
	}
	for _, a := range contents.Clients {
		if a.Client == client {
			return a
		}
	}
	return backend.Account{}
}

// settle charges n more tokens, or fewer, for faults.
func (s *store) settle(c *scope, w backend.Window, n, now int64) {
	q := backend.SettleRequest{Key: "k", Window: w, Tokens: n, Limit: c.limit.Tokens}
	if q.Rolling = c.limit.Window; c.limit.Rolls {
		s.ring.Settle(q, now)
		return
	}
	s.fixed.Settle(q, now)
}

func (s *store) reset(c *scope, now int64) {
	q := backend.ResetRequest{Key: "k", Limit: c.limit}
	if c.limit.Rolls {
		s.ring.Reset(q, now)
		return
	}
	s.fixed.Reset(q, now)
}

// lose loses all, or the ledger alone.
func (s *store) lose(ledger bool) {
	if ledger {
		s.fixed.LoseLedger()
		return
	}
	*s = store{}
}

// free is how many tokens the store could grant, and of which window.
func (s *store) free(c *scope, now, resets int64) (int64, naive.Window) {
	if c.limit.Rolls {
		return s.ring.Check(c.limit, now).Remaining, naive.Window{Generation: resets}
	}
	state := s.fixed.Check(c.limit, now)
	return state.Remaining, c.name(state.Window, 0)
}

// name is what the model calls a window.
func (c *scope) name(w backend.Window, generation int64) naive.Window {
	if c.limit.Rolls {
		return naive.Window{Generation: generation}
	}
	return naive.Window{Begin: int64(w)*1000 - c.us(), End: int64(w) * 1000}
}

func (h *hand) name(c *scope) naive.Window { return c.name(h.window, h.generation) }

// over reports whether the tokens count no more.
func (h *hand) over(now int64) bool { return h.window != 0 && now > int64(h.window)*1000 }

// until is when tokens of the window may be spent at the latest.
func (h *hand) until(c *scope) int64 {
	if c.limit.Rolls {
		return int64(h.window)*1000 - c.us()
	}
	return int64(h.window) * 1000
}

// ask makes a statement that asks for want tokens.
func (h *hand) ask(c *scope, name string, want int64) statement {
	q := statement{Key: "k", Client: name, Limit: c.limit, Want: want, Exact: true, Idle: -1}
	if h.window != 0 {
		h.account.State(&q, h.window, h.held)
	}
	return q
}

// apply applies the reply of the call of client who, and tells the model.
func (h *hand) apply(c *scope, l *naive.Log, who int, o *call, now int64) error {
	q, r := o.q, o.r
	same := account.Same(q, r)
	slides := h.window != 0 && same && c.limit.Rolls
	moved := !slides && (h.window == 0 && r.Window != 0 || h.window != 0 && (h.window != r.Window || !same))
	held, was, until, account := int64(0), h.name(c), h.until(c), q.Account
	if !same {
		overdraw(l, who, h.account.Unpaid(), now)
		if h.held > 0 && !h.over(now) && len(l.Losses)+len(l.Resets) == 0 {
			return fmt.Errorf("client %d holds %d tokens that are void, though the store has kept its data", who, h.held)
		}
	}
	if moved {
		held, h.held, h.charges = h.held, 0, nil
	}
	h.account.Apply(q, r, held)
	if moved || slides && h.window != r.Window {
		h.window, h.deadline = r.Window, 0
	}
	if r.Account != account {
		h.generation = o.resets
	}
	if moved && same {
		h.held = held
		if err := l.Return(who, was, held); err != nil {
			return err
		}
		l.Grant(who, h.name(c), held)
	} else if err := l.Drop(until, who, was, held); err != nil {
		return err
	}
	if h.window == 0 {
		return nil
	}
	left := r.Left.Microseconds()
	if c.limit.Rolls {
		left -= c.us()
	}
	h.deadline = max(h.deadline, o.sent+left-r.Left.Microseconds()/2000)
	h.held += r.Grant
	l.Grant(who, h.name(c), r.Grant)
	return nil
}

// spend admits a request for a token.
func (h *hand) spend(c *scope, l *naive.Log, who int, now int64, keep bool) error {
	h.held--
	if keep {
		h.charges = append(h.charges, charge{h.window, now})
	}
	if c.limit.Rolls {
		h.account.Note(backend.Slice(now, c.limit.Window), h.held)
	}
	return l.Spend(now, who, h.name(c), 1)
}

// giveBack returns n tokens.
func (h *hand) giveBack(c *scope, l *naive.Log, who int, n int64) error {
	h.account.Return(n)
	h.held -= n
	return l.Return(who, h.name(c), n)
}

// refundable reports whether the last token spent can be refunded.
func (h *hand) refundable(c *scope, now int64) bool {
	if len(h.charges) == 0 || h.over(now) || h.account.Unpaid() > 0 || h.account.InUse(h.held) == 0 {
		return false
	}
	w := h.charges[len(h.charges)-1].window
	if c.limit.Rolls {
		return now <= int64(w)*1000-c.us()*backend.Refundable/backend.Slices
	}
	return w == h.window
}

// refund gives the last token back that was spent: into the stock or, if the limit is a rolling one, to the store.
func (h *hand) refund(c *scope, l *naive.Log, who int) error {
	last := h.charges[len(h.charges)-1]
	h.charges = h.charges[:len(h.charges)-1]
	n := int64(1)
	if c.fault == refundedTwice {
		n = 2
	}
	h.account.Refund(n)
	if err := l.Refund(last.at, who, h.name(c), 1); err != nil {
		return err
	}
	if !c.limit.Rolls {
		h.held += n
		return nil
	}
	if c.fault == wrongWindow {
		last.window = h.window + backend.Window(c.us()/1000)
	}
	h.account.GiveBack(n, last.window)
	return l.Drop(last.at, who, h.name(c), 1) // it may still count where it was spent
}

// mayDeclare reports whether a request may overrun its charge. Without an account that is overdrawn at once.
func (h *hand) mayDeclare(c *scope, now int64) bool {
	return h.window != 0 && !h.over(now) && (!c.limit.Rolls || h.account.Named())
}

// declare uses a token without a grant.
func (h *hand) declare(c *scope, l *naive.Log, who int, now int64) {
	h.account.Declare(1)
	l.Declare(now, who, h.name(c), 1)
}

// hurries reports whether the client states its account before long: the store of a rolling limit counts an overrun from
// when it hears of it, so a limiter says so within a slice.
func (h *hand) hurries(c *scope) bool { return c.limit.Rolls && h.account.Unpaid() > 0 }

// expire drops what is over.
func (h *hand) expire(c *scope, l *naive.Log, who int, now int64) error {
	if !h.over(now) {
		return nil
	}
	err := l.Drop(h.until(c), who, h.name(c), h.held)
	h.account.Expire(h.held)
	overdraw(l, who, h.account.ExpireDebt().Overdrawn, now)
	h.held, h.charges = 0, nil
	return err
}

// overdraw says of the last n tokens that client who has declared that the store may be told of them or not.
func overdraw(l *naive.Log, who int, n, now int64) {
	for i := len(l.List) - 1; i >= 0 && n > 0; i-- {
		if t := l.List[i]; t.Owner == who && t.State == naive.Declared {
			some := min(n, t.Count)
			n -= some
			if l.List[i].Count -= some; some == t.Count {
				l.List = slices.Delete(l.List, i, i+1)
			}
			l.Grant(who, t.Window, some)
			_ = l.Drop(now, who, t.Window, some)
		}
	}
}

// lease is how long the tokens of a statement may be spent at most.
func (c *scope) lease() int64 {
	return time.Duration(c.limit.Window * backend.Refundable / backend.Slices).Microseconds()
}
