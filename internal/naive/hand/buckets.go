package hand

import (
	"cmp"
	"fmt"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/naive"
)

// lease makes the lease of a rolling limit anew: of the first bucket that has tokens. Those of buckets that are over go back.
func (h *Hand) lease(limit backend.Limit, l *naive.Log, who int, now int64) error {
	if h.Account.Ring == nil { // no statement was made
		return nil
	}
	_, left := h.Account.Expire(h.Held, now*1000)
	back := h.Held - left
	h.Held = left
	if h.Of = h.Account.Ring.First(); h.Of > 0 {
		h.Deadline = h.Account.Ring.Deadline(h.Of) / 1000
	}
	return l.Return(who, h.Name(limit), back)
}

func (h *Hand) applyBuckets(limit backend.Limit, l *naive.Log, who int, o Call, now int64) error {
	q, r := o.Q, o.R
	err := h.lease(limit, l, who, now)
	if r.Window.Gen != h.Window.Gen {
		if h.Held > 0 && len(l.Losses)+len(l.Resets) == 0 {
			err = fmt.Errorf("client %d holds %d tokens that are void, though the store has kept its data", who, h.Held)
		}
		overdraw(l, who, h.Unpaid(), now)
		err = cmp.Or(err, l.Drop(now, who, h.Name(limit), h.Held))
		h.Charges = nil
	}
	h.Moved, h.Held = h.Account.Apply(q, r, h.Held, o.Sent*1000, now*1000)
	if r.Window.Gen != h.Window.Gen || h.Window.End == 0 {
		h.Generation = o.Resets
	}
	h.Window = backend.Window{End: (r.Now + 2*limit.Window.Microseconds()) / 1000, Gen: r.Window.Gen}
	l.Grant(who, h.Name(limit), r.Grant)
	return cmp.Or(err, h.lease(limit, l, who, now))
}
