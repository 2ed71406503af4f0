// Package hand is a client of a store for tests: it keeps the rules of docs/protocol.md with the real account, makes one
// statement at a time, and tells a naive.Log what comes of each. Times are us by the store's clock.
package hand

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/naive"
	"github.com/go-reservoir/reservoir/internal/tokens"
)

// A Hand is a client's side of a key: its account, and its lease. The limit of all its calls is the same. In what it tells the
// model, its client is the owner who.
type Hand struct {
	Account    tokens.Account
	Life       int64          // of the account; 0 = it has made no statement
	Seq        int64          // of the last statement in that life
	Window     backend.Window // of a rolling limit: its generation, and an End at which nothing that it was granted counts any more
	Deadline   int64          // until when tokens are spent
	Held       int64
	Of         int64 // of a rolling limit: the bucket of the lease; 0 = none
	Generation int64 // of a rolling limit: how many Resets there had been when its account began
	Charges    []Charge
	Moved      tokens.Moved // by the last reply
}

// A Charge is a token that was spent, and may be refunded. Of a rolling limit, Window has the lease's bucket as its End.
type Charge struct {
	Window backend.Window
	At     int64
}

// A Call is a statement that was answered.
type Call struct {
	Q      *backend.Statement
	R      *backend.Reply
	Sent   int64
	Resets int64 // that the store had made when it answered
}

// Name is what the model calls a window.
func Name(limit backend.Limit, w backend.Window, generation int64) naive.Window {
	if limit.Rolls {
		return naive.Window{Generation: generation}
	}
	begin := w.End*1000 - limit.Window.Microseconds()
	if limit.Window%time.Second != 0 {
		begin -= 999 // its end was rounded up to a millisecond
	}
	return naive.Window{Begin: begin, End: w.End * 1000, Generation: w.Gen}
}

// Period is the calendar's at the time now, as statements say it; 0 without a calendar.
func Period(limit backend.Limit, now int64) (begin, end int64) {
	if limit.Calendar.Period == 0 {
		return 0, 0
	}
	from, until := limit.Calendar.Around(time.UnixMicro(now))
	return from.UnixMilli(), until.UnixMilli()
}

// Name is what the model calls the hand's window.
func (h *Hand) Name(limit backend.Limit) naive.Window { return Name(limit, h.Window, h.Generation) }

// Over reports whether the tokens count no more.
func (h *Hand) Over(now int64) bool { return h.Window.End != 0 && now >= h.Window.End*1000 }

// Begin begins a life of the account. The life before must be settled, with nothing in hand.
func (h *Hand) Begin(limit backend.Limit, life int64) {
	*h = Hand{Life: life}
	h.Account.Begin(limit, life)
}

// Ask makes a statement at the time now that asks for want tokens.
func (h *Hand) Ask(limit backend.Limit, key, name string, want, now int64) *backend.Statement {
	if h.Life == 0 {
		h.Begin(limit, 1)
	}
	q := &backend.Statement{Key: key, Client: name, Limit: limit, Want: want}
	q.Exact, q.Deaf = true, true
	if !limit.Rolls {
		q.Runs = now < h.Deadline
		q.Begin, q.End = Period(limit, now)
	}
	h.Account.State(q, h.Window)
	h.Seq = q.Seq
	return q
}

// Keeps reports whether what is held and spent in q's window belongs to the window of the reply r: it is the same, or the store has
// carried it over.
func Keeps(q *backend.Statement, r *backend.Reply) bool {
	return r.Window == q.Window || r.Mine > r.Grant
}

// Apply applies the reply of the call of client who, and tells the model. Only the reply to the last statement counts.
func (h *Hand) Apply(limit backend.Limit, l *naive.Log, who int, o Call, now int64) error {
	q, r := o.Q, o.R
	if h.Moved = (tokens.Moved{}); q.Life != h.Life || q.Seq != h.Seq || r.Void || r.Astray {
		return nil
	}
	if limit.Rolls {
		return h.applyBuckets(limit, l, who, o, now)
	}
	was, held, keeps := h.Name(limit), h.Held, Keeps(q, r)
	h.Moved, h.Held = h.Account.Apply(q, r, held, o.Sent*1000, now*1000)
	var err error
	if r.Window != h.Window {
		if !keeps && held > 0 && !h.Over(now) && len(l.Losses)+len(l.Resets) == 0 {
			err = fmt.Errorf("client %d holds %d tokens that are void, though the store has kept its data", who, held)
		}
		until := h.Window.End * 1000
		h.Window, h.Deadline, h.Charges = r.Window, 0, nil
		if keeps { // carried over
			err = l.Return(who, was, held)
			l.Grant(who, h.Name(limit), held)
		} else {
			err = cmp.Or(err, l.Drop(until, who, was, held))
		}
	}
	if h.Window.End == 0 {
		return err
	}
	h.Deadline = max(h.Deadline, o.Sent+(h.Window.End*1000-r.Now)*9995/10000)
	l.Grant(who, h.Name(limit), r.Grant)
	return err
}

// Spend admits a request for a token.
func (h *Hand) Spend(limit backend.Limit, l *naive.Log, who int, now int64, keep bool) error {
	h.Held--
	w := h.Window
	if limit.Rolls {
		w = backend.Window{End: h.Of}
	}
	if keep {
		h.Charges = append(h.Charges, Charge{w, now})
	}
	return l.Spend(now, who, h.Name(limit), 1)
}

// GiveBack returns n tokens.
func (h *Hand) GiveBack(limit backend.Limit, l *naive.Log, who int, n int64) error {
	h.Account.Return(n, h.Held)
	h.Held -= n
	return l.Return(who, h.Name(limit), n)
}

// Refundable reports whether the last token spent can be refunded.
func (h *Hand) Refundable(limit backend.Limit, now int64) bool {
	if len(h.Charges) == 0 || h.Unpaid() > 0 {
		return false
	}
	w := h.Charges[len(h.Charges)-1].Window
	if limit.Rolls {
		return now < backend.BucketEnd(w.End+backend.Buckets, limit.Window)
	}
	return w == h.Window && !h.Over(now) && h.Account.InUse(h.Held) > 0
}

// Refund gives the last token back that was spent: into the stock or, if the limit is a rolling one, maybe to the store.
func (h *Hand) Refund(limit backend.Limit, l *naive.Log, who int, now int64) error {
	last := h.Charges[len(h.Charges)-1]
	h.Charges = h.Charges[:len(h.Charges)-1]
	r := h.Account.Refund(1, last.Window.End, h.Held, true, now*1000)
	if r.Stock+r.Back == 0 {
		return nil
	}
	h.Held += r.Stock
	err := cmp.Or(l.Refund(last.At, who, h.Name(limit), 1), l.Return(who, h.Name(limit), r.Back))
	if limit.Rolls {
		err = cmp.Or(err, h.lease(limit, l, who, now))
	}
	return err
}

// Declare uses a token without a grant.
func (h *Hand) Declare(limit backend.Limit, l *naive.Log, who int, now int64) {
	h.Account.Declare(1, now*1000)
	l.Declare(now, who, h.Name(limit), 1)
}

// MayDeclare reports whether a request may overrun its charge.
func (h *Hand) MayDeclare(now int64) bool { return h.Window.End != 0 && !h.Over(now) }

// Unpaid is the debt that the store has not confirmed.
func (h *Hand) Unpaid() int64 { debt, _ := h.Account.Unconfirmed(); return debt }

// Unconfirmed is how many tokens that went back the store has not confirmed.
func (h *Hand) Unconfirmed() int64 { _, back := h.Account.Unconfirmed(); return back }

// Expire drops what is over.
func (h *Hand) Expire(limit backend.Limit, l *naive.Log, who int, now int64) error {
	if limit.Rolls {
		return h.lease(limit, l, who, now)
	}
	if !h.Over(now) {
		return nil
	}
	err := l.Drop(h.Window.End*1000, who, h.Name(limit), h.Held)
	m, left := h.Account.Expire(h.Held, now*1000)
	overdraw(l, who, m.Overdrawn, now)
	h.Held, h.Charges = left, nil
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
