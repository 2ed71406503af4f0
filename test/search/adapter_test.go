package search

import (
	"reflect"
	"slices"
	"time"
	"unsafe"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/ledger"
	"github.com/go-reservoir/reservoir/internal/naive"
	"github.com/go-reservoir/reservoir/internal/naive/hand"
	"github.com/go-reservoir/reservoir/internal/tokens"
)

// This file has all that the search knows of the protocol. The rest moves statements and replies about, and tells the
// naive model what comes of it.

// base is the time from which a search counts, us.
const base = int64(1_000_000_000_000)

// A store is one key of a store: the rules that are judged.
type store struct {
	counter ledger.Counter
	order   int64 // of statements that arrived; see noOrder
}

func (s *store) clone() store { return store{s.counter.Clone(), s.order} }

var accountShape = shapeOf(reflect.TypeFor[tokens.Account]())

// cloneHand returns a copy that shares nothing with h.
func cloneHand(h hand.Hand) hand.Hand {
	accountShape.part(unsafe.Pointer(&h.Account))
	h.Charges = slices.Clone(h.Charges)
	return h
}

// a fault is planted into what passes between the clients and the store, or into a client or the store.
type fault string

const (
	none          fault = ""
	lostCharged   fault = "a lost grant is charged again"
	returnedTwice fault = "a return is counted twice"
	early         fault = "a window is entered early"
	notReasserted fault = "no re-assertion"
	refundedTwice fault = "a refund is counted twice"
	wrongWindow   fault = "a give-back in the wrong window"
	secretLoss    fault = "a loss of the store that the model does not hear of"

	// Of numbered statements:
	noOrder      fault = "an older statement is obeyed"
	anyReply     fault = "a reply counts that is not the last statement's"
	sameLife     fault = "a life has the number of the last one"
	forgetful    fault = "a life ends before the store has confirmed it"
	noGeneration fault = "a Reset without a generation"
	lateClaim    fault = "an account claims what is left after its give-back"
	lateDeadline fault = "a deadline counts from the reply"
	noSum        fault = "a head without the sum of the accounts"
	noClaims     fault = "an account cannot claim what is charged to nobody known"
	ahead        fault = "a period that has not begun"
	unread       fault = "a hold that a statement without an account does not read"
	forgotten    fault = "a hold that a new window forgets"
	endless      fault = "a hold that a Reset does not end"
)

// us is the length of the limit's window.
func (c *scope) us() int64 { return c.limit.Window.Microseconds() }

// sync carries out a statement.
func (s *store) sync(c *scope, q *backend.Statement, now int64) *backend.Reply {
	if c.limit.Rolls {
		return s.syncRolling(c, *q, now)
	}
	was, sent := s.counter.Contents(now), *q
	at := slices.IndexFunc(was.Clients, func(a backend.Account) bool { return a.Client == sent.Client })
	claimable := s.claimable(was.Used)
	switch soon := now + 4000; {
	case c.fault == early && was.Window.End != 0 && was.Window.End*1000 <= soon:
		now = soon
	case c.fault == noOrder:
		s.order++
		sent.Life, sent.Seq = 1, s.order
	case c.fault == noSum:
		if sum := inside(reflect.ValueOf(&s.counter).Elem(), "head", "sum"); sum != nil {
			*sum = 0
		}
	case c.fault == ahead && sent.Begin*1000 <= now && now < sent.End*1000:
		sent.Begin, sent.End = now/1000, 2*sent.End-sent.Begin
	}
	r, _ := s.counter.Sync(sent, now)
	if hold := s.hold(); hold != nil && c.fault == forgotten && r.Window != was.Window {
		*hold = 0
	}
	same, mine := r.Window == sent.Window && !r.Void, sent.Mine
	switch back := -sent.Change; {
	case c.fault == lostCharged && at >= 0 && r.Window == was.Window && !r.Void:
		s.charge(max(was.Clients[at].Mine-mine, 0)) // what the last reply that was taken lacks
	case c.fault == notReasserted && same && was.Window.End == 0:
		s.charge(-mine)
	case c.fault == returnedTwice && same && back > 0:
		s.charge(-back)
	case c.fault == wrongWindow && r.Window.End != 0 && !same && back > 0:
		s.charge(-back)
	case c.fault == noClaims && same && at < 0:
		s.charge(min(claimable, mine))
	case c.fault == lateClaim && same && at < 0 && back > 0:
		s.charge(min(claimable, mine) - min(claimable, max(mine-back, 0)))
	}
	return &r
}

// syncRolling carries out a statement of a rolling limit.
func (s *store) syncRolling(c *scope, q backend.Statement, now int64) *backend.Reply {
	switch c.fault {
	case early: // by a bucket, of which the client is not told
		r, _ := s.counter.Sync(q, now+c.us()/backend.Buckets)
		r.Now = now
		return &r
	case noOrder:
		s.order++
		q.Life, q.Seq = 1, s.order
	case lostCharged: // what the last reply that was taken lacks is not undone
		q.Known = q.Seq
	case wrongWindow:
		for i := range q.Changes {
			q.Changes = slices.Clone(q.Changes)
			q.Changes[i].Bucket = backend.Bucket(now, c.limit.Window)
		}
	case returnedTwice:
		for _, d := range q.Changes {
			q.Changes = append(slices.Clip(q.Changes), backend.Change{Bucket: d.Bucket, Tokens: min(d.Tokens, 0)})
		}
	}
	r, _ := s.counter.Sync(q, now)
	return &r
}

// inside returns an int64 field of a struct of another package, for faults; nil = a pointer on the way is nil.
func inside(v reflect.Value, names ...string) *int64 {
	for _, name := range names {
		if v.Kind() == reflect.Pointer {
			if v = v.Elem(); !v.IsValid() {
				return nil
			}
		}
		v = v.FieldByName(name)
	}
	return (*int64)(unsafe.Pointer(v.UnsafeAddr()))
}

// charge charges n more tokens in the open window, or fewer.
func (s *store) charge(n int64) {
	v := reflect.ValueOf(&s.counter).Elem()
	*inside(v, "count") += n
	if sum := inside(v, "head", "sum"); sum != nil {
		*sum += min(n, 0)
	}
}

// claimable is how many tokens an account that the ledger lacks may claim, if used are charged.
func (s *store) claimable(used int64) int64 {
	if n := inside(reflect.ValueOf(&s.counter).Elem(), "head", "claimable"); n != nil {
		return *n
	}
	return used
}

// hold is until when the head says that the limit is held, Unix ms.
func (s *store) hold() *int64 { return inside(reflect.ValueOf(&s.counter).Elem(), "head", "hold") }

// direct makes a statement without a client, which charges n tokens and holds the limit for d.
func (s *store) direct(c *scope, n int64, d time.Duration, now int64) backend.Reply {
	q := backend.Statement{Key: "k", Limit: c.limit, Need: n, Hold: d}
	q.Begin, q.End = hand.Period(c.limit, now)
	if hold := s.hold(); hold != nil && c.fault == unread {
		was := *hold
		*hold = 0
		defer func() { *hold = was }()
	}
	r, _ := s.counter.Sync(q, now)
	return r
}

// overrun charges n tokens more in w, without a client.
func (s *store) overrun(c *scope, w backend.Window, n, now int64) {
	q := backend.Statement{Key: "k", Limit: c.limit, Window: w, Change: n}
	if c.limit.Rolls {
		q.Window.End, q.Change, q.Changes = 0, 0, []backend.Change{{Tokens: n}}
	}
	q.Begin, q.End = hand.Period(c.limit, now)
	s.counter.Sync(q, now)
}

func (s *store) reset(c *scope, now int64) {
	held := s.counter.Check(c.limit, now).Held
	gen, _ := s.counter.Reset(c.limit, now)
	if c.fault == endless {
		*s.hold() = now/1000 + held.Milliseconds()
	}
	if c.fault == noGeneration {
		*inside(reflect.ValueOf(&s.counter).Elem(), "head", "Gen") = gen.Gen
	}
}

// lose loses all, or a part of a fixed limit.
func (s *store) lose(what kind) {
	switch what {
	case loseLedger:
		s.counter.LoseLedger()
	case loseCount:
		s.counter.LoseCount()
	case loseEnd:
		s.counter.LoseEnd()
	default:
		*s = store{order: s.order}
	}
}

// costs reports whether a loss may cost anything. What the ledger knows of a count or an end is restored, and that is all
// but what was charged without an account. A lost ledger is written anew by clients, if each has read the last reply
// to it and a late copy cannot come first, and the generation was never increased.
func (c *scope) costs(s *state, what kind) bool {
	switch {
	case s.left.directs < c.most.directs:
		return true
	case what == loseLedger:
		return c.most.lost+c.most.repeats > 0 || s.left.resets < c.most.resets
	}
	return what == lose
}

// free is how many tokens the store could grant, and of which window.
func (s *store) free(c *scope, now, resets int64) (int64, naive.Window) {
	state := s.counter.Check(c.limit, now)
	if state.Held > 0 { // what could be granted after that
		state.Remaining = max(c.limit.Tokens-s.counter.Contents(now).Used, 0)
	}
	return state.Remaining, hand.Name(c.limit, state.Window, resets)
}

// refund refunds the last token spent.
func (c *scope) refund(h *hand.Hand, l *naive.Log, who int, now int64) error {
	if c.fault == refundedTwice && c.limit.Rolls {
		h.Held += h.Account.Refund(1, h.Charges[len(h.Charges)-1].Window.End, h.Held, true, now*1000).Stock
	}
	err := h.Refund(c.limit, l, who, now)
	if c.fault == refundedTwice && !c.limit.Rolls {
		h.Held++
	}
	return err
}

// begin begins a client's next life.
func (c *scope) begin(h *hand.Hand) {
	life := h.Life + 1
	if c.fault == sameLife {
		life--
	}
	h.Begin(c.limit, life)
}

// last reports whether q is the hand's last statement.
func (c *scope) last(h *hand.Hand, q *backend.Statement) bool {
	if c.fault == anyReply {
		h.Life, h.Seq = q.Life, q.Seq
	}
	return h.Life == q.Life && h.Seq == q.Seq
}

// lease is how long the tokens of a statement of a rolling limit may be spent at most.
func (c *scope) lease() int64 { return c.us() / backend.Buckets * (backend.Ahead + 1) }
