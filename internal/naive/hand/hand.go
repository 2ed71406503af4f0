// Package hand is a client of a store for tests: it keeps the rules of docs/protocol.md with the real account, makes one
// statement at a time, and tells a naive.Log what comes of each. Times are us by the store's clock.
package hand

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/account"
	"github.com/go-reservoir/reservoir/internal/naive"
)

// A Hand is a client's side of a key: its account, and its lease. The limit of all its calls is the same. In what it tells the
// model, its client is the owner who.
type Hand struct {
	Account    account.Account
	Life       int64 // of the account; 0 = it has made no statement
	Seq        int64 // of the last statement in that life
	Window     backend.Window
	Deadline   int64 // until when tokens are spent
	Held       int64
	Generation int64 // of a rolling limit: how many Resets there had been when its account began
	Charges    []Charge
	Moved      account.Moved // by the last reply

	InBuckets bool // the limit is a rolling one, and the account is Buckets
	Buckets   account.Buckets
	Of        int64 // the bucket of the lease; 0 = none
}

// A Charge is a token that was spent, and may be refunded.
type Charge struct {
	Window backend.Window
	At     int64
}

// A Statement is of a fixed limit or of a rolling one.
type Statement struct {
	Fixed   *backend.Statement
	Rolling *backend.SyncRequest
}

// A Reply answers the Statement of its kind.
type Reply struct {
	Fixed   *backend.Reply
	Rolling *backend.SyncReply
}

// A Call is a statement that was answered.
type Call struct {
	Q      Statement
	R      Reply
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

// Until is when tokens of the window may be spent at the latest.
func (h *Hand) Until(limit backend.Limit) int64 {
	if limit.Rolls {
		return h.Window.End*1000 - limit.Window.Microseconds()
	}
	return h.Window.End * 1000
}

// Begin begins a life of the account. The life before must be Settled, with nothing in hand.
func (h *Hand) Begin(limit backend.Limit, life int64) {
	if h.InBuckets {
		h.Buckets.Begin(limit, life)
	} else {
		h.Account.Begin(life, limit.Rolls)
	}
	h.Life, h.Seq, h.Window, h.Deadline, h.Charges, h.Of = life, 0, backend.Window{}, 0, nil, 0
}

// Ask makes a statement at the time now that asks for want tokens.
func (h *Hand) Ask(limit backend.Limit, key, name string, want, now int64) Statement {
	if h.Life == 0 {
		h.Begin(limit, 1)
	}
	if h.InBuckets {
		return h.askBuckets(limit, key, name, want)
	}
	if limit.Rolls {
		q := &backend.SyncRequest{Key: key, Client: name, Limit: limit, Want: want, Exact: true, Idle: -1}
		if h.Window.End != 0 {
			h.Account.Rolls.State(q, h.Window, h.Held)
		}
		return Statement{Rolling: q}
	}
	q := &backend.Statement{Key: key, Client: name, Limit: limit, Want: want, Runs: now < h.Deadline}
	q.Exact, q.Deaf = true, true
	q.Begin, q.End = Period(limit, now)
	h.Account.State(q, h.Window)
	h.Seq = q.Seq
	return Statement{Fixed: q}
}

// Apply applies the reply of the call of client who, and tells the model. Of a fixed limit, only the reply to the last
// statement counts.
func (h *Hand) Apply(limit backend.Limit, l *naive.Log, who int, o Call, now int64) error {
	if h.InBuckets {
		return h.applyBuckets(limit, l, who, o, now)
	}
	if limit.Rolls {
		return h.applyRolling(limit, l, who, o, now)
	}
	q, r := o.Q.Fixed, o.R.Fixed
	if h.Moved = (account.Moved{}); q.Life != h.Life || q.Seq != h.Seq || r.Void || r.Astray {
		return nil
	}
	was, held, keeps := h.Name(limit), h.Held, account.Keeps(q, r)
	h.Moved = h.Account.Apply(q, r, held)
	var err error
	if r.Window != h.Window {
		if !keeps && held > 0 && !h.Over(now) && len(l.Losses)+len(l.Resets) == 0 {
			err = fmt.Errorf("client %d holds %d tokens that are void, though the store has kept its data", who, held)
		}
		until := h.Until(limit)
		h.Window, h.Deadline, h.Charges = r.Window, 0, nil
		if keeps { // carried over
			err = l.Return(who, was, held)
			l.Grant(who, h.Name(limit), held)
		} else {
			h.Held = 0
			err = cmp.Or(err, l.Drop(until, who, was, held))
		}
	}
	if h.Window.End == 0 {
		return err
	}
	h.Deadline = max(h.Deadline, o.Sent+(h.Window.End*1000-r.Now)*9995/10000)
	h.Held += r.Grant
	l.Grant(who, h.Name(limit), r.Grant)
	return err
}

func (h *Hand) applyRolling(limit backend.Limit, l *naive.Log, who int, o Call, now int64) (err error) {
	q, r := o.Q.Rolling, o.R.Rolling
	same := r.Account == q.Account
	slides := h.Window.End != 0 && same
	moved := !slides && (r.Window.End != 0 || h.Window.End != 0)
	held, was, until := int64(0), h.Name(limit), h.Until(limit)
	if !same {
		overdraw(l, who, h.Account.Unpaid(), now)
		if h.Held > 0 && !h.Over(now) && len(l.Losses)+len(l.Resets) == 0 {
			err = fmt.Errorf("client %d holds %d tokens that are void, though the store has kept its data", who, h.Held)
		}
	}
	if moved {
		held, h.Held, h.Charges = h.Held, 0, nil
	}
	h.Moved = h.Account.Rolls.Apply(*q, *r, held)
	if moved || slides && h.Window != r.Window {
		h.Window, h.Deadline = r.Window, 0
	}
	if r.Account != q.Account {
		h.Generation = o.Resets
	}
	err = cmp.Or(err, l.Drop(until, who, was, held))
	if h.Window.End == 0 {
		return err
	}
	left := r.Left.Microseconds() - limit.Window.Microseconds()
	h.Deadline = max(h.Deadline, o.Sent+left-r.Left.Microseconds()/2000)
	h.Held += r.Grant
	l.Grant(who, h.Name(limit), r.Grant)
	return err
}

// Spend admits a request for a token.
func (h *Hand) Spend(limit backend.Limit, l *naive.Log, who int, now int64, keep bool) error {
	h.Held--
	if keep && h.InBuckets {
		h.Charges = append(h.Charges, Charge{backend.Window{End: h.Of}, now})
	} else if keep {
		h.Charges = append(h.Charges, Charge{h.Window, now})
	}
	if limit.Rolls && !h.InBuckets {
		h.Account.Rolls.Note(backend.Bucket(now, limit.Window), h.Held)
	}
	return l.Spend(now, who, h.Name(limit), 1)
}

// GiveBack returns n tokens.
func (h *Hand) GiveBack(limit backend.Limit, l *naive.Log, who int, n int64) error {
	if h.InBuckets {
		h.Buckets.Return(n, h.Held)
	} else {
		h.Account.Return(n)
	}
	h.Held -= n
	return l.Return(who, h.Name(limit), n)
}

// Refundable reports whether the last token spent can be refunded.
func (h *Hand) Refundable(limit backend.Limit, now int64) bool {
	if h.InBuckets {
		n := len(h.Charges)
		return n > 0 && h.Buckets.Unpaid() == 0 && now < backend.BucketEnd(h.Charges[n-1].Window.End+backend.Buckets, limit.Window)
	}
	if len(h.Charges) == 0 || h.Over(now) || h.Account.Unpaid() > 0 || h.Account.InUse(h.Held) == 0 {
		return false
	}
	w := h.Charges[len(h.Charges)-1].Window
	if limit.Rolls {
		return now <= w.End*1000-limit.Window.Microseconds()*backend.Refundable/backend.Buckets
	}
	return w == h.Window
}

// Refund gives the last token back that was spent: into the stock or, if the limit is a rolling one, to the store.
func (h *Hand) Refund(limit backend.Limit, l *naive.Log, who int) error {
	last := h.Charges[len(h.Charges)-1]
	h.Charges = h.Charges[:len(h.Charges)-1]
	if h.InBuckets {
		return h.refundBuckets(limit, l, who, last)
	}
	h.Account.Refund(1)
	if err := l.Refund(last.At, who, h.Name(limit), 1); err != nil {
		return err
	}
	if !limit.Rolls {
		h.Held++
		return nil
	}
	h.Account.Rolls.GiveBack(1, last.Window)
	return l.Drop(last.At, who, h.Name(limit), 1) // it may still count where it was spent
}

// MayDeclare reports whether a request may overrun its charge. Without an account that is overdrawn at once.
func (h *Hand) MayDeclare(limit backend.Limit, now int64) bool {
	return h.Window.End != 0 && !h.Over(now) && (!limit.Rolls || h.InBuckets || h.Account.Rolls.Named())
}

// Declare uses a token without a grant.
func (h *Hand) Declare(limit backend.Limit, l *naive.Log, who int, now int64) {
	if h.InBuckets {
		h.Buckets.Declare(1, h.Buckets.Now(now*1000))
	} else {
		h.Account.Declare(1)
	}
	l.Declare(now, who, h.Name(limit), 1)
}

// Hurries reports whether the client states its account before long: the store of a rolling limit counts an overrun from
// when it hears of it, so a limiter says so within a slice.
func (h *Hand) Hurries(limit backend.Limit) bool { return limit.Rolls && h.Unpaid() > 0 }

// Expire drops what is over.
func (h *Hand) Expire(limit backend.Limit, l *naive.Log, who int, now int64) error {
	if h.InBuckets {
		return h.Lease(limit, l, who, now)
	}
	if !h.Over(now) {
		return nil
	}
	err := l.Drop(h.Until(limit), who, h.Name(limit), h.Held)
	h.Account.Expire(h.Held)
	overdraw(l, who, h.Account.ExpireDebt().Overdrawn, now)
	h.Held, h.Charges = 0, nil
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
