package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/go-reservoir/reservoir/backend"
)

// both is the store of keys that are counted in both stores. This file makes statements of
// account; direct.go has the other calls. The invariant of both files is that a token is
// handed out only when each store has charged it to its open window, and is valid only
// until the first of these windows ends. So each store alone keeps the limit for its
// callers, whatever the other one does.
type both struct{ *Store }

// Sync makes the statement r to both stores. The old store comes first, and the
// client's account refers to its window. The new store is then asked for the tokens that
// the old one has granted. To a store, a grant that only it has made looks like a lost
// reply, so it hands the tokens over again with the client's next statement.
func (s both) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	if err := r.Validate(); err != nil {
		return backend.SyncReply{}, err
	}
	for {
		_, conflict, err := s.align(ctx, "sync", r.Key, r.Limit)
		if err != nil {
			return backend.SyncReply{}, err
		}
		if conflict.Length != 0 {
			return refused(r, conflict), nil
		}
		a, err := s.old.Sync(ctx, r)
		s.realign(r.Key, a.State)
		if err != nil || a.Window == 0 || a.Length != 0 {
			return a, named("sync", "old", err)
		}
		b, err := s.match(ctx, r, a)
		if err != nil {
			return backend.SyncReply{}, half("sync", "new", err)
		}
		if b.Length == 0 && !dropped(r, a, b) {
			return joint(r, a, b), nil
		}
		s.aligned.forget(r.Key)
		if b.Length != 0 { // its window opened after align, see TestConflictOnTheWay
			return refused(r, b.State), nil
		}
		if err := wait(ctx, "sync", a.Left); err != nil {
			return backend.SyncReply{}, err
		}
	}
}

// refused returns the reply to a statement if one of the stores has a window of another
// length: it grants nothing, and repeats the account that the client stated.
func refused(r backend.SyncRequest, conflict backend.State) backend.SyncReply {
	return backend.SyncReply{State: conflict, Granted: r.Granted, Returned: r.Returned, Debt: r.Debt, Clients: 1}
}

// match asks the new store for the tokens that the old one has granted in a, and declares
// the same debt. If a grants less than r.Least, callers cannot use it, so match asks for
// nothing.
func (s both) match(ctx context.Context, r backend.SyncRequest, a backend.SyncReply) (backend.SyncReply, error) {
	q := r
	q.Window, q.Granted, q.Returned, q.Debt = a.Window, acknowledged(r, a), a.Returned, a.Debt
	q.Want, q.Strand = usable(r, a), -1
	if q.Want < r.Least {
		q.Want = 0
	}
	q.Need, q.Least = min(r.Need, q.Want), min(r.Least, q.Want)
	q.Total, q.Used = 0, 0 // of the old store; the new one has seen fewer clients, but has lost nothing
	b, err := s.new.Sync(ctx, q)
	if err != nil || b.Window == r.Window || b.Recovered == 0 || usable(r, b) >= q.Want || b.Remaining == 0 {
		return b, err
	}
	// The tokens that the new store recovered may have been spent, but it counted them
	// towards Want and Need. Ask for as many more.
	charged := usable(r, b)
	q.Want, q.Need = q.Want+b.Recovered, q.Need+b.Recovered
	if q.Least > 0 {
		q.Least += b.Recovered
	}
	b, err = s.new.Sync(ctx, q)
	b.Recovered -= charged
	return b, err
}

// usable returns the part of a grant that may be handed out. Recovered tokens are surely
// unspent only if the client stated its account in the store's window, because an account
// in another window may leave out tokens that were spent in this one.
func usable(r backend.SyncRequest, x backend.SyncReply) int64 {
	return x.Grant - x.Recovered + recovered(r, x)
}

// recovered returns the part of x.Recovered that may be handed out.
func recovered(r backend.SyncRequest, x backend.SyncReply) int64 {
	if x.Window == r.Window {
		return x.Recovered
	}
	return 0
}

// acknowledged returns how much of its total in x's window the client has received,
// without x.Grant. Of returned tokens, those above x.Debt were granted before. It assumes
// that a client that comes from another window has received every earlier grant of this
// store.
func acknowledged(r backend.SyncRequest, x backend.SyncReply) int64 {
	if x.Window == r.Window {
		return max(r.Granted, x.Returned-x.Debt)
	}
	return x.Granted - usable(r, x)
}

// dropped reports whether the old store counts the tokens that the client holds and the
// new one does not, because only by the new store's clock the client's window is over. If
// so, the client may spend none of them. Debt makes no difference: it has been spent, in a
// window that the new store has closed. But returned tokens may be debt, so the client may
// hold more than Granted less Returned.
func dropped(r backend.SyncRequest, a, b backend.SyncReply) bool {
	kept := a.Window == r.Window || a.Carried
	return kept && r.Granted > max(r.Returned-r.Debt, 0) && b.Window != a.Window && !b.Carried
}

// joint combines two replies into one.
func joint(r backend.SyncRequest, a, b backend.SyncReply) backend.SyncReply {
	out, base := a, acknowledged(r, a)
	if b.Window == a.Window {
		base = max(base, acknowledged(r, b))
		out.Debt = min(a.Debt, b.Debt) // a debt is settled when both stores have charged it
	}
	out.Grant = min(usable(r, a), usable(r, b))
	if out.Grant < r.Least { // one of the stores grants nothing new
		out.Grant = min(out.Grant, recovered(r, a), recovered(r, b))
	}
	out.Recovered = min(a.Recovered, out.Grant)
	out.Granted = base + out.Grant
	a.Remaining += usable(r, a) - out.Grant
	b.Remaining += usable(r, b) - out.Grant
	out.Remaining = min(a.Remaining, b.Remaining)
	if b.Window != 0 {
		out.Left = min(a.Left, b.Left)
	}
	out.Over = max(a.Over, b.Over)
	out.Clients = max(a.Clients, b.Clients)
	out.Lasted = cmp.Or(a.Lasted, b.Lasted)
	out.Learning = a.Learning || b.Learning
	return out
}

// less returns the reading that limits the caller. A window of another length comes first,
// because with it no call changes anything. Otherwise it is the reading with fewer tokens
// left, of an open window if a store has one. For one window it takes the smaller values.
func less(a, b backend.State) backend.State {
	switch {
	case a.Length != 0:
		return a
	case b.Length != 0:
		return b
	case a.Window == b.Window:
		return backend.State{Window: a.Window, Left: min(a.Left, b.Left), Remaining: min(a.Remaining, b.Remaining)}
	case b.Window == 0, a.Window != 0 && a.Remaining <= b.Remaining:
		return a
	default:
		return b
	}
}

// named adds to a store's error the name of the store, and op, the operation that the
// store was called for. Other errors are faults of the request, and stay as they are.
func named(op, store string, err error) error {
	failure, ok := errors.AsType[*backend.Error](err)
	if !ok {
		return err
	}
	named := *failure
	named.Op, named.Err = op, fmt.Errorf("%s store: %w", store, failure.Err)
	return &named
}

// half is named for a call that the other store has carried out, so that the outcome of
// the whole call is unknown.
func half(op, store string, err error) error {
	err = named(op, store, err)
	if failure, ok := errors.AsType[*backend.Error](err); ok {
		failure.Class = backend.Unknown
	}
	return err
}
