package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// This file counts keys in both stores. What it keeps to: a token is handed out
// only when both have charged it, each to the window that it has open, and it is
// valid only until the first of these ends. So either store alone bounds what is
// spent by everybody who asks it, whatever the other one does.

// syncBoth has a statement heard by both stores. The client's account is with the
// old one; the new one is told the same, and asked for what the old one granted.
// What only one of them grants the other will be asked for again: to the one it is
// a grant whose reply was lost.
func (s *Store) syncBoth(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	for {
		if _, err := s.align(ctx, "sync", r.Key, r.Limit); err != nil {
			return backend.SyncReply{}, err
		}
		a, err := s.old.Sync(ctx, r)
		if err != nil || a.Window == 0 {
			return a, named("sync", "old", err)
		}
		b, err := s.match(ctx, r, a)
		if err != nil {
			return backend.SyncReply{}, half("sync", "new", err)
		}
		if !dropped(r, a, b) {
			return joint(r, a, b), nil
		}
		s.aligned.forget(r.Key)
		if err := wait(ctx, "sync", a.Left); err != nil {
			return backend.SyncReply{}, err
		}
	}
}

// match asks the new store for what the old one has granted.
func (s *Store) match(ctx context.Context, r backend.SyncRequest, a backend.SyncReply) (backend.SyncReply, error) {
	q := r
	q.Window, q.Granted, q.Returned = a.Window, heard(r, a), a.Returned
	q.Want, q.Strand = usable(r, a), -1
	q.Need = q.Want
	q.Total, q.Used = 0, 0 // what the old one said of all clients; the new one has heard of fewer, and has lost nothing
	b, err := s.new.Sync(ctx, q)
	if err != nil || b.Window == r.Window || b.Recovered == 0 || usable(r, b) >= q.Want || b.Remaining == 0 {
		return b, err
	}
	charged := usable(r, b) // it would hand over again what has been spent: ask for more than that
	q.Want += b.Recovered
	q.Need = q.Want
	b, err = s.new.Sync(ctx, q)
	b.Recovered -= charged
	return b, err
}

// usable is what may be handed out of a grant. Recovered tokens are those that the
// client has not heard of only if it speaks of the very window of the store; of
// another one it may just not say what it has spent.
func usable(r backend.SyncRequest, x backend.SyncReply) int64 {
	if x.Window == r.Window {
		return x.Grant
	}
	return x.Grant - x.Recovered
}

// heard is the client's total before the grant. A client that comes into a window
// counts as having heard of all that its account there says.
func heard(r backend.SyncRequest, x backend.SyncReply) int64 {
	if x.Window == r.Window {
		return max(r.Granted, x.Returned)
	}
	return x.Granted - usable(r, x)
}

// dropped reports whether the new store does not count what the client holds and
// the old one does: by the clock of the one the window is over, and by the other's
// it is not. Nothing that is held may be spent then.
func dropped(r backend.SyncRequest, a, b backend.SyncReply) bool {
	kept := a.Window == r.Window || a.Carried
	return kept && r.Granted > r.Returned && b.Window != a.Window && !b.Carried
}

// joint makes one reply of two.
func joint(r backend.SyncRequest, a, b backend.SyncReply) backend.SyncReply {
	out, base := a, heard(r, a)
	if b.Window == a.Window {
		base = max(base, heard(r, b))
	}
	out.Grant = min(usable(r, a), usable(r, b))
	out.Recovered = min(a.Recovered, out.Grant)
	out.Granted = base + out.Grant
	a.Remaining += usable(r, a) - out.Grant
	b.Remaining += usable(r, b) - out.Grant
	out.Remaining = min(a.Remaining, b.Remaining)
	if b.Window != 0 {
		out.Left = min(a.Left, b.Left)
	}
	out.Clients = max(a.Clients, b.Clients)
	out.Lasted = cmp.Or(a.Lasted, b.Lasted)
	out.Learning = a.Learning || b.Learning
	return out
}

// takeBoth charges both stores, or none.
func (s *Store) takeBoth(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	for {
		window, err := s.align(ctx, "take", r.Key, r.Limit)
		if err != nil {
			return backend.TakeReply{}, err
		}
		a, err := s.old.Take(ctx, r)
		if err != nil || !a.Allowed {
			return a, named("take", "old", err)
		}
		b, err := s.follow(ctx, r, a.Window, window)
		if err != nil || !b.Allowed {
			if !untake(ctx, s.old, r, a) && err != nil {
				return b, half("take", "new", err)
			}
			return b, named("take", "new", err)
		}
		left := sooner(a.State, b.State)
		if a.Window == b.Window || left > patience {
			a.State = less(a.State, b.State)
			return a, nil
		}
		untake(ctx, s.old, r, a) // one store is in the next window: no window would have all of its tokens
		untake(ctx, s.new, r, b)
		s.aligned.forget(r.Key)
		if err := wait(ctx, "take", left); err != nil {
			return backend.TakeReply{}, err
		}
	}
}

// grace is how long a give-back may go on when its caller has left.
const grace = time.Second

// untake gives back what a store has charged for a request that is not admitted,
// and reports whether it did. If not, the tokens are lost until the window ends.
// Often the caller's context is over by then, since one of the stores has used it
// up. So untake returns when ctx ends, and the give-back has a moment more.
func untake(ctx context.Context, store backend.Store, r backend.TakeRequest, charged backend.TakeReply) bool {
	last, cancel := context.WithCancel(context.WithoutCancel(ctx))
	given := make(chan bool, 1)
	go func() {
		defer cancel()
		back, err := store.Refund(last, backend.RefundRequest{Key: r.Key, Window: charged.Window, Tokens: r.Tokens})
		given <- err == nil && back == r.Tokens
	}()
	select {
	case all := <-given:
		return all
	case <-ctx.Done():
		time.AfterFunc(grace, cancel)
		return false
	}
}

// follow takes from the new store, in the window that the old one has just opened
// if it is another one than both were known to have.
func (s *Store) follow(ctx context.Context, r backend.TakeRequest, opened, known backend.Window) (backend.TakeReply, error) {
	if opened != known {
		if _, err := adopt(ctx, s.new, r.Key, r.Limit, opened); err != nil {
			return backend.TakeReply{}, err
		}
	}
	return s.new.Take(ctx, r)
}

// refundBoth gives back to both stores. Where one has another window open, the
// tokens stay charged there.
func (s *Store) refundBoth(ctx context.Context, r backend.RefundRequest) (int64, error) {
	a, err := s.old.Refund(ctx, r)
	if err != nil {
		return 0, named("refund", "old", err)
	}
	b, err := s.new.Refund(ctx, r)
	if err != nil {
		return 0, half("refund", "new", err)
	}
	return min(a, b), nil
}

// less is the reading with less left, of a window that is open if there is one, and
// ends when the sooner one ends if they are the same.
func less(a, b backend.State) backend.State {
	switch {
	case a.Window == b.Window:
		return backend.State{Window: a.Window, Left: min(a.Left, b.Left), Remaining: min(a.Remaining, b.Remaining)}
	case b.Window == 0, a.Window != 0 && a.Remaining <= b.Remaining:
		return a
	default:
		return b
	}
}

// named says which store has failed, whatever it was asked on behalf of op. Other
// errors are about the request.
func named(op, store string, err error) error {
	failure, ok := errors.AsType[*backend.Error](err)
	if !ok {
		return err
	}
	return &backend.Error{Op: op, Class: failure.Class, Err: fmt.Errorf("%s store: %w", store, failure.Err)}
}

// half is named for a call that the other store has carried out.
func half(op, store string, err error) error {
	err = named(op, store, err)
	if failure, ok := errors.AsType[*backend.Error](err); ok {
		failure.Class = backend.Unknown
	}
	return err
}
