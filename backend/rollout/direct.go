package rollout

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/guard"
)

// This file takes from both stores, gives back to both, and resets both.

// Take charges both stores, or none.
func (s both) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	if err := r.Validate(); err != nil {
		return backend.TakeReply{}, err
	}
	for {
		w, conflict, err := s.align(ctx, "take", r.Key, r.Limit)
		if err != nil || conflict.Length != 0 {
			return backend.TakeReply{State: conflict}, err
		}
		began := time.Now()
		a, err := s.old.Take(ctx, r)
		if err != nil || !a.Allowed {
			s.realign(r.Key, a.State)
			return a, named("take", "old", err)
		}
		undone := w.undone(a.Window)
		b, err := s.follow(ctx, r, a.Window, w.id)
		if err != nil || !b.Allowed {
			s.realign(r.Key, b.State)
			if !untake(ctx, s.old, undone, r, a) && err != nil {
				return b, half("take", "new", err)
			}
			return b, named("take", "new", err)
		}
		left := min(a.Left-time.Since(began), b.Left) // the old store's window may have ended before the new store was called
		if a.Window == b.Window || left > patience {
			a.State = less(a.State, b.State)
			return a, nil
		}
		untake(ctx, s.old, undone, r, a) // one store is in the next window, so no window has both charges
		untake(ctx, s.new, new(undos), r, b)
		s.aligned.forget(r.Key)
		if err := wait(ctx, "take", left); err != nil {
			return backend.TakeReply{}, err
		}
	}
}

// follow takes from the new store. If the old store has just opened another window
// than the known one, the new store adopts it first.
func (s both) follow(ctx context.Context, r backend.TakeRequest, opened, known backend.Window) (backend.TakeReply, error) {
	if opened != known {
		if _, err := adopt(ctx, s.new, r.Key, r.Limit, opened); err != nil {
			return backend.TakeReply{}, err
		}
	}
	return s.new.Take(ctx, r)
}

// undos is the account of the takes that one process undoes in one window of one store,
// under a client's name of its own. Its total is cumulative, so the next undo makes up for
// a lost one. One account serves many undos, because each name is an entry of the store's
// ledger until the window ends. The zero value is an account under a fresh name.
type undos struct {
	mu     sync.Mutex
	client string
	total  int64
}

func (u *undos) add(tokens int64) (client string, total int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.client == "" || u.total > backend.MaxTokens-tokens {
		u.client, u.total = "undo:"+rand.Text(), 0
	}
	u.total += tokens
	return u.client, u.total
}

// grace is how long an undo may go on after its caller has left.
const grace = time.Second

// untake undoes a take whose request is not admitted: it gives back what the store
// has charged, and reports whether it did. If not, the tokens may be lost until the
// window ends. Often the caller's context has already ended, because one of the stores was
// slow. So untake returns when ctx ends, and the undo goes on for grace.
func untake(ctx context.Context, store backend.Store, undone *undos, r backend.TakeRequest, charged backend.TakeReply) bool {
	refund := backend.RefundRequest{Key: r.Key, Window: charged.Window}
	refund.Client, refund.Total = undone.add(r.Tokens)
	last, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() {
		defer cancel()
		guard.Call(func() error { return giveBack(last, store, refund) }, func(err error) { done <- err })
	}()
	select {
	case err := <-done:
		return guard.Raise(err) == nil
	case <-ctx.Done():
		time.AfterFunc(grace, cancel)
		return false
	}
}

// giveBack makes up to three attempts, because r is idempotent. It returns an error unless
// the store has all tokens.
func giveBack(ctx context.Context, store backend.Store, r backend.RefundRequest) error {
	for tries := 1; ; tries++ {
		total, err := store.Refund(ctx, r)
		if err == nil && total < r.Total {
			return errors.New("another window is open")
		}
		failure, ok := errors.AsType[*backend.Error](err)
		if !ok || failure.Class == backend.Rejected || tries == 3 {
			return err
		}
		if wait(ctx, "refund", time.Duration(tries)*patience) != nil {
			return err
		}
	}
}

// Check returns the reading that limits the caller.
func (s both) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	old, new, err := s.states(ctx, "check", key, l)
	return less(old, new), err
}

// Refund gives back to both stores, and returns the smaller of their totals. If a
// store has another window open, the tokens stay charged there.
func (s both) Refund(ctx context.Context, r backend.RefundRequest) (int64, error) {
	if err := r.Validate(); err != nil {
		return 0, err
	}
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

// Reset opens the same fresh window in both stores. Each store chooses an end, and
// the store with the later end is reset again, to the earlier one. If the clocks differ by
// more than an end may be late, that end may be the name of the store's old window, which
// then is not void.
func (s both) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	if err := r.Validate(); err != nil {
		return backend.State{}, err
	}
	defer s.aligned.forget(r.Key)
	for range 3 {
		if _, conflict, err := s.align(ctx, "reset", r.Key, r.Limit); err != nil || conflict.Length != 0 {
			return conflict, err
		}
		a, err := s.old.Reset(ctx, r)
		if err != nil || a.Length != 0 {
			return a, named("reset", "old", err)
		}
		b, err := s.new.Reset(ctx, r)
		if err != nil || b.Length != 0 {
			return b, half("reset", "new", err)
		}
		to := r
		if to.End = min(a.Window, b.Window); to.Next <= to.End {
			to.Next = 0
		}
		switch {
		case to.End == 0: // a store has no window open: align again
		case a.Window > b.Window:
			a, err = s.old.Reset(ctx, to)
			err = half("reset", "old", err)
		case b.Window > a.Window:
			b, err = s.new.Reset(ctx, to)
			err = half("reset", "new", err)
		}
		if err != nil || a.Window == b.Window {
			return less(a, b), err
		}
		s.aligned.forget(r.Key)
	}
	different := errors.New("the stores have opened different windows") // or ended them, during each attempt
	return backend.State{}, &backend.Error{Op: "reset", Class: backend.Unknown, Err: different}
}
