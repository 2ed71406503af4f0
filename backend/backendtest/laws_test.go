package backendtest

import (
	"context"
	"testing"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// The walks compare a store with the counter. TestLaws looks at the counter's own
// replies, as memstore gives them, with no arithmetic of the counter's: it adds them up.
func TestLaws(t *testing.T) {
	for range 10 {
		walkAll(t, newAuditor(t, memstore.New(), false), false)
		walkAll(t, newAuditor(t, memstore.New(), true), true)
	}
}

// auditor holds each reply of a store against what all replies have handed out before.
type auditor struct {
	backend.Store
	t     testing.TB
	lossy bool // of a loss, somebody may know more than replies have said
	keys  map[string]*books
}

// books are of one key's window.
type books struct {
	window backend.Window
	direct int64 // charged by Take, less what Settle gave back
	extra  int64 // charged by Settle, even above the limit
	ledger map[string]backend.SyncReply
	closed map[backend.Window]bool // by a reset
}

func newAuditor(t testing.TB, s backend.Store, lossy bool) auditor {
	return auditor{s, t, lossy, map[string]*books{}}
}

func (a auditor) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	got, err := a.Store.Sync(ctx, r)
	if err != nil {
		return got, err
	}
	if got.Window == 0 {
		a.must(got.Grant == 0, "no grant without a window", got)
		return got, nil
	}
	b := a.enter(ctx, r.Key, got.Window)
	before := b.ledger[r.Client]
	a.must(got.Granted == before.Granted+got.Reasserted+got.Grant-got.Recovered, "granted", got)
	a.must(got.Returned >= before.Returned && got.Debt >= before.Debt, "no total shrinks", got)
	a.must(a.lossy || got.Reasserted == 0 && !got.Carried && !got.Learning, "no sign of a loss, of which there was none", got)
	a.must(got.Grant == got.Recovered || got.Remaining+got.Grant >= r.Least, "all that is needed at least, or nothing", got)
	b.ledger[r.Client] = got
	a.must(got.Over == 0 || got.Remaining == 0, "nothing remains of a limit that is exceeded", got)
	a.must(a.lossy || got.Over == max(b.out()+b.debt()-r.Limit.Tokens, 0), "what is charged above the limit", got)
	a.balance(ctx, b, r.Limit, got.State)
	return got, nil
}

func (a auditor) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	got, err := a.Store.Take(ctx, r)
	if err == nil {
		b := a.enter(ctx, r.Key, got.Window)
		if got.Allowed {
			b.direct += r.Tokens
		}
		a.balance(ctx, b, r.Limit, got.State)
	}
	return got, err
}

func (a auditor) Settle(ctx context.Context, r backend.SettleRequest) (backend.SettleReply, error) {
	got, err := a.Store.Settle(ctx, r)
	if b := a.keys[r.Key]; err == nil && b != nil && b.window == r.Window && got.Open {
		b.direct += min(r.Tokens, 0)
		b.extra += max(r.Tokens, 0)
		a.must(a.lossy || got.Over == max(b.out()+b.debt()-r.Limit, 0), "what is charged above the limit", backend.SyncReply{Over: got.Over})
	}
	return got, err
}

func (a auditor) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	got, err := a.Store.Check(ctx, key, l)
	if b := a.keys[key]; err == nil && b != nil && !over(ctx, b.window) {
		a.balance(ctx, b, l, got)
	}
	return got, err
}

func (a auditor) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	got, err := a.Store.Reset(ctx, r)
	if err != nil || got.Window == 0 {
		return got, err
	}
	b := a.keys[r.Key]
	a.must(b != nil && !over(ctx, b.window), "a reset opens no window where none was open", got)
	b.closed[b.window] = true
	a.must(!b.closed[got.Window], "a fresh window has a name of its own", got)
	b = &books{window: got.Window, ledger: map[string]backend.SyncReply{}, closed: b.closed}
	a.keys[r.Key] = b
	a.balance(ctx, b, r.Limit, got)
	return got, nil
}

// enter returns the books of a window that a reply spoke of, which may be a new one.
func (a auditor) enter(ctx context.Context, key string, window backend.Window) *books {
	a.t.Helper()
	b := a.keys[key]
	if b == nil || b.window != window {
		a.must(b == nil || over(ctx, b.window), "one window at a time", window)
		b = &books{window: window, ledger: map[string]backend.SyncReply{}, closed: map[backend.Window]bool{}}
		a.keys[key] = b
	}
	a.must(!over(ctx, window), "no window goes on after its end", window)
	return b
}

func over(ctx context.Context, w backend.Window) bool { return w.Time().Before(Now(ctx)) }

func (a auditor) balance(ctx context.Context, b *books, l backend.Limit, got backend.State) {
	a.t.Helper()
	if a.lossy {
		return
	}
	a.must(b.out() <= l.Tokens, "never over", b.out())
	a.must(got.Remaining == max(l.Tokens-b.out()-b.debt(), 0), "what is not handed out remains", got)
	a.must(got.Window == b.window && got.Left == b.window.Time().Sub(Now(ctx)), "an end does not move", got)
}

// out is what was handed out and did not come back.
func (b *books) out() int64 {
	out := b.direct
	for _, c := range b.ledger {
		out += c.Granted - c.Returned
	}
	return out
}

func (b *books) debt() (debt int64) {
	for _, c := range b.ledger {
		debt += c.Debt
	}
	return debt + b.extra
}

func (a auditor) must(holds bool, law string, got any) {
	a.t.Helper()
	if !holds {
		a.t.Fatalf("law: %s: %+v", law, got)
	}
}
