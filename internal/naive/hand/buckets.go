package hand

import (
	"cmp"
	"fmt"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/account"
	"github.com/go-reservoir/reservoir/internal/naive"
)

// This file has a hand of a rolling limit whose account is by buckets. Its Window has the generation, and an End at which
// nothing that it was granted counts any more. The Deadline is that of the lease, and a Charge's window has the lease's bucket.

// Lease makes the lease anew: of the first bucket that has tokens. Those of buckets that are over go back.
func (h *Hand) Lease(limit backend.Limit, l *naive.Log, who int, now int64) error {
	n := h.Buckets.Expire(h.Held, now*1000)
	h.Held -= n
	if h.Of = h.Buckets.First(); h.Of > 0 {
		h.Deadline = h.Buckets.Deadline(h.Of) / 1000
	}
	return l.Return(who, h.Name(limit), n)
}

func (h *Hand) askBuckets(limit backend.Limit, key, name string, want int64) Statement {
	q := &backend.Statement{Key: key, Client: name, Limit: limit, Want: want}
	q.Exact, q.Deaf = true, true
	h.Buckets.State(q)
	h.Seq = q.Seq
	return Statement{Fixed: q}
}

func (h *Hand) applyBuckets(limit backend.Limit, l *naive.Log, who int, o Call, now int64) error {
	q, r := o.Q.Fixed, o.R.Fixed
	if h.Moved = (account.Moved{}); q.Life != h.Life || q.Seq != h.Seq || r.Void {
		return nil
	}
	err := h.Lease(limit, l, who, now)
	if r.Window.Gen != h.Window.Gen {
		if h.Held > 0 && len(l.Losses)+len(l.Resets) == 0 {
			err = fmt.Errorf("client %d holds %d tokens that are void, though the store has kept its data", who, h.Held)
		}
		overdraw(l, who, h.Buckets.Unpaid(), now)
		err = cmp.Or(err, l.Drop(now, who, h.Name(limit), h.Held))
		h.Charges = nil
	}
	h.Moved = h.Buckets.Apply(q, r, h.Held, o.Sent*1000, now*1000)
	if r.Window.Gen != h.Window.Gen {
		h.Held = 0
	}
	if r.Window.Gen != h.Window.Gen || h.Window.End == 0 {
		h.Generation = o.Resets
	}
	h.Window = backend.Window{End: (r.Now + 2*limit.Window.Microseconds()) / 1000, Gen: r.Window.Gen}
	h.Held += r.Grant
	l.Grant(who, h.Name(limit), r.Grant)
	return cmp.Or(err, h.Lease(limit, l, who, now))
}

func (h *Hand) refundBuckets(limit backend.Limit, l *naive.Log, who int, last Charge) error {
	stock, back := h.Buckets.Refund(1, last.Window.End, h.Of, h.Held)
	h.Held += stock
	if stock+back == 0 {
		return nil
	}
	err := l.Refund(last.At, who, h.Name(limit), 1)
	return cmp.Or(err, l.Return(who, h.Name(limit), back))
}

// Unpaid is the debt that the store has not confirmed.
func (h *Hand) Unpaid() int64 {
	if h.InBuckets {
		return h.Buckets.Unpaid()
	}
	return h.Account.Unpaid()
}

// Unconfirmed is how many tokens that went back the store has not confirmed.
func (h *Hand) Unconfirmed() int64 {
	if h.InBuckets {
		return h.Buckets.Unconfirmed()
	}
	return h.Account.Unconfirmed()
}
