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
	Window     backend.Window // 0 = none
	Deadline   int64          // until when tokens are spent
	Held       int64
	Generation int64 // of a rolling limit: how many Resets there had been when its account began
	Charges    []Charge
	Moved      account.Moved // by the last reply
}

// A Charge is a token that was spent, and may be refunded.
type Charge struct {
	Window backend.Window
	At     int64
}

// A Call is a statement that was answered.
type Call struct {
	Q      backend.SyncRequest
	R      backend.SyncReply
	Sent   int64
	Resets int64 // that the store had made when it answered
}

// Name is what the model calls a window.
func Name(limit backend.Limit, w backend.Window, generation int64) naive.Window {
	if limit.Rolls {
		return naive.Window{Generation: generation}
	}
	begin := int64(w)*1000 - limit.Window.Microseconds()
	if limit.Window%time.Second != 0 {
		begin -= 999 // its end was rounded up to a millisecond
	}
	return naive.Window{Begin: begin, End: int64(w) * 1000}
}

// Name is what the model calls the hand's window.
func (h *Hand) Name(limit backend.Limit) naive.Window { return Name(limit, h.Window, h.Generation) }

// Over reports whether the tokens count no more.
func (h *Hand) Over(now int64) bool { return h.Window != 0 && now > int64(h.Window)*1000 }

// Until is when tokens of the window may be spent at the latest.
func (h *Hand) Until(limit backend.Limit) int64 {
	if limit.Rolls {
		return int64(h.Window)*1000 - limit.Window.Microseconds()
	}
	return int64(h.Window) * 1000
}

// Ask makes a statement that asks for want tokens.
func (h *Hand) Ask(limit backend.Limit, key, name string, want int64) backend.SyncRequest {
	q := backend.SyncRequest{Key: key, Client: name, Limit: limit, Want: want, Exact: true, Idle: -1}
	if h.Window != 0 {
		h.Account.State(&q, h.Window, h.Held)
	}
	return q
}

// Apply applies the reply of the call of client who, and tells the model.
func (h *Hand) Apply(limit backend.Limit, l *naive.Log, who int, o Call, now int64) (err error) {
	q, r := o.Q, o.R
	same := account.Same(q, r)
	slides := h.Window != 0 && same && limit.Rolls
	moved := !slides && (h.Window == 0 && r.Window != 0 || h.Window != 0 && (h.Window != r.Window || !same))
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
	h.Moved = h.Account.Apply(q, r, held)
	if moved || slides && h.Window != r.Window {
		h.Window, h.Deadline = r.Window, 0
	}
	if r.Account != q.Account {
		h.Generation = o.Resets
	}
	if moved && same { // carried over
		h.Held = held
		err = cmp.Or(err, l.Return(who, was, held))
		l.Grant(who, h.Name(limit), held)
	} else {
		err = cmp.Or(err, l.Drop(until, who, was, held))
	}
	if h.Window == 0 {
		return err
	}
	left := r.Left.Microseconds()
	if limit.Rolls {
		left -= limit.Window.Microseconds()
	}
	h.Deadline = max(h.Deadline, o.Sent+left-r.Left.Microseconds()/2000)
	h.Held += r.Grant
	l.Grant(who, h.Name(limit), r.Grant)
	return err
}

// Spend admits a request for a token.
func (h *Hand) Spend(limit backend.Limit, l *naive.Log, who int, now int64, keep bool) error {
	h.Held--
	if keep {
		h.Charges = append(h.Charges, Charge{h.Window, now})
	}
	if limit.Rolls {
		h.Account.Note(backend.Slice(now, limit.Window), h.Held)
	}
	return l.Spend(now, who, h.Name(limit), 1)
}

// GiveBack returns n tokens.
func (h *Hand) GiveBack(limit backend.Limit, l *naive.Log, who int, n int64) error {
	h.Account.Return(n)
	h.Held -= n
	return l.Return(who, h.Name(limit), n)
}

// Refundable reports whether the last token spent can be refunded.
func (h *Hand) Refundable(limit backend.Limit, now int64) bool {
	if len(h.Charges) == 0 || h.Over(now) || h.Account.Unpaid() > 0 || h.Account.InUse(h.Held) == 0 {
		return false
	}
	w := h.Charges[len(h.Charges)-1].Window
	if limit.Rolls {
		return now <= int64(w)*1000-limit.Window.Microseconds()*backend.Refundable/backend.Slices
	}
	return w == h.Window
}

// Refund gives the last token back that was spent: into the stock or, if the limit is a rolling one, to the store.
func (h *Hand) Refund(limit backend.Limit, l *naive.Log, who int) error {
	last := h.Charges[len(h.Charges)-1]
	h.Charges = h.Charges[:len(h.Charges)-1]
	h.Account.Refund(1)
	if err := l.Refund(last.At, who, h.Name(limit), 1); err != nil {
		return err
	}
	if !limit.Rolls {
		h.Held++
		return nil
	}
	h.Account.GiveBack(1, last.Window)
	return l.Drop(last.At, who, h.Name(limit), 1) // it may still count where it was spent
}

// MayDeclare reports whether a request may overrun its charge. Without an account that is overdrawn at once.
func (h *Hand) MayDeclare(limit backend.Limit, now int64) bool {
	return h.Window != 0 && !h.Over(now) && (!limit.Rolls || h.Account.Named())
}

// Declare uses a token without a grant.
func (h *Hand) Declare(limit backend.Limit, l *naive.Log, who int, now int64) {
	h.Account.Declare(1)
	l.Declare(now, who, h.Name(limit), 1)
}

// Hurries reports whether the client states its account before long: the store of a rolling limit counts an overrun from
// when it hears of it, so a limiter says so within a slice.
func (h *Hand) Hurries(limit backend.Limit) bool { return limit.Rolls && h.Account.Unpaid() > 0 }

// Expire drops what is over.
func (h *Hand) Expire(limit backend.Limit, l *naive.Log, who int, now int64) error {
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
