package search

import (
	"reflect"
	"slices"
	"time"
	"unsafe"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/account"
	"github.com/go-reservoir/reservoir/internal/counter"
	"github.com/go-reservoir/reservoir/internal/naive"
	"github.com/go-reservoir/reservoir/internal/naive/hand"
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

var accountShape = shapeOf(reflect.TypeFor[account.Account]())

// cloneHand returns a copy that shares nothing with h.
func cloneHand(h hand.Hand) hand.Hand {
	accountShape.part(unsafe.Pointer(&h.Account))
	h.Charges = slices.Clone(h.Charges)
	return h
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
	secretLoss      fault = "a loss of the store that the model does not hear of"
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
	return state.Remaining, hand.Name(c.limit, state.Window, 0)
}

// refund refunds the last token spent.
func (c *scope) refund(h *hand.Hand, l *naive.Log, who int) error {
	switch last := &h.Charges[len(h.Charges)-1]; {
	case c.fault == refundedTwice && c.limit.Rolls:
		h.Account.Refund(1)
		h.Account.GiveBack(1, last.Window)
	case c.fault == refundedTwice:
		h.Account.Refund(1)
		h.Held++
	case c.fault == wrongWindow:
		last.Window = h.Window + backend.Window(c.us()/1000)
	}
	return h.Refund(c.limit, l, who)
}

// lease is how long the tokens of a statement may be spent at most.
func (c *scope) lease() int64 {
	return time.Duration(c.limit.Window * backend.Refundable / backend.Slices).Microseconds()
}
