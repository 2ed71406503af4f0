package key

import (
	"context"
	"errors"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/denial"
)

// This file has how a key is held: until an instant its limit counts as used up. The store keeps that, and tells all processes to ask; its
// replies say how long it lasts. What the key holds is kept, but not spent.

// holding is what a key knows of its hold, besides its denial, which has how long it lasts.
type holding struct {
	since   int64          // a reading that was requested before does not know of it
	ends    int64          // by the store's clock, Unix ms, as a reply has said; 0 = none has
	sure    int64          // the store surely holds until then
	unsaid  int64          // until when somebody here holds the key, of which the store has not heard: each statement says it; 0 = it knows all
	told    int64          // the latest end that a message has named, which may be forged; if no reply has said it, nothing is spent before one
	holders []chan<- error // callers who wait until it has heard
}

// Hold is the event that somebody holds the key for d from now. It is held here at once. Hold returns when the store knows, or the error of the
// statement that should have told it; the next one tells it then. It reports whether the key was forgotten, so that nothing was done.
func (k *Key) Hold(ctx context.Context, d time.Duration) (forgotten bool, err error) {
	told := make(chan error, 1)
	k.event(func(now int64) effect {
		u, until := k.use, now+int64(max(d, time.Millisecond)) // to which stores round it up
		switch {
		case k.phase == retired || k.parted:
			forgotten = true
			return unchanged
		case u.denial.State == denial.Held && u.hold.sure >= until: // it lasts longer already
			told <- nil
			return unchanged
		}
		k.phase = active
		k.findShard()
		u.hold.since, u.hold.unsaid, u.hold.holders = now, max(u.hold.unsaid, until), append(u.hold.holders, told)
		// A hold is never shortened, whoever has begun it.
		if u.denial.State == denial.Held {
			until = max(until, u.denial.Until)
		}
		k.hold(now, until)
		return changed
	})
	if forgotten {
		return true, nil
	}
	select {
	case err := <-told:
		return false, err
	case <-ctx.Done(): // the statement goes on
		return false, ctx.Err()
	}
}

// hold refuses all until an instant. The store grants nothing before.
func (k *machine) hold(now, until int64) {
	u := k.inUse()
	if u.denial.State != denial.Held {
		k.env.Counts.Holds.Add(1)
	}
	u.denial.Hold(now, until, k.Limit.Load().Window)
	if k.phase >= leaving && k.lenient() { // its last statement has heard of the hold
		k.phase = active
	}
	if w := k.Lease.Load(); w != nil { // which is read without the lock, too: nothing remains until the end
		w.Remaining.Store(0)
		w.Reset.Store(until)
	}
}

// said ends a statement that may have said a hold: the store has heard it, or has not because of err. A hold that was made longer since is
// said again.
func (f *Fetch) said(u *use, err error) {
	if err == nil {
		if u.hold.sure = max(u.hold.sure, f.holds); u.hold.unsaid <= f.holds {
			u.hold.unsaid = 0
		}
	}
	u.hold.holders = append(f.holders, u.hold.holders...)
	if err != nil || u.hold.unsaid == 0 {
		u.hold.tell(err)
	}
}

// unheard is said of a statement that has done nothing: the next one says the hold, unless that is over by now.
func (f *Fetch) unheard(u *use) {
	u.hold.holders = append(f.holders, u.hold.holders...)
	if u.hold.unsaid == 0 {
		u.hold.tell(errHoldOver)
	}
}

// tell ends the wait of all who wait until the store has heard.
func (h *holding) tell(err error) {
	for _, told := range h.holders {
		told <- err
	}
	h.holders = nil
}

// forget ends a hold that is over, or that a Reset has ended. Who still waits until the store has heard gets err.
func (h *holding) forget(err error) {
	h.ends, h.sure, h.unsaid, h.told = 0, 0, 0, 0 // an old end would hide what is heard of the next hold
	h.tell(err)
}

// errHoldOver is for a caller of Hold whose hold was over before the store could be told.
var errHoldOver = &backend.Error{Op: "sync", Class: backend.Unavailable, Err: errors.New("the hold was over before the store could be told")}
