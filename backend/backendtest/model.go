package backendtest

import (
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/counter"
)

// model is what a store must hold: the counter, which was told the same. Beside
// that it keeps what no arithmetic of the counter's may break: what replies have
// handed out, added up.
type model struct {
	counter counter.Counter
	window  backend.Window
	direct  int64 // charged by Take and not refunded
	taken   int64 // charged by Take in all
	ledger  map[string]account
}

// account is what replies said of a client in the window.
type account struct{ granted, returned, debt int64 }

func (m *model) reset() { *m = model{ledger: make(map[string]account)} }

func (m *model) open(w *walk) bool { return m.window != 0 && !w.over(m.window) }

// over reports whether the window lies before now.
func (w *walk) over(window backend.Window) bool {
	return window.Time().Before(w.base.Add(w.now))
}

// us is the store's clock, as a counter takes it.
func (w *walk) us() int64 { return w.base.Add(w.now).UnixMicro() }

// out is the sum of all that replies have handed out, and of all debt.
func (m *model) out() (tokens, debt int64) {
	for _, a := range m.ledger {
		tokens, debt = tokens+a.granted-a.returned, debt+a.debt
	}
	return tokens + m.direct, debt
}

// enter notes that a reply spoke of the window, which may be a new one.
func (m *model) enter(w *walk, window backend.Window) {
	w.t.Helper()
	if window == m.window {
		if w.over(window) {
			w.t.Fatal("a window goes on after its end")
		}
		return
	}
	if m.open(w) {
		w.t.Fatalf("window %d followed %d, which still runs", window, m.window)
	}
	if m.window != 0 {
		w.seen["roll"]++
	}
	m.window, m.direct, m.taken = window, 0, 0
	clear(m.ledger)
	w.given = 0
}

// compare holds a reading of the key against what was handed out.
func (m *model) compare(w *walk, got backend.State) {
	w.t.Helper()
	if w.lossy || !m.open(w) { // of a loss, somebody may know more than replies have said
		return
	}
	tokens, debt := m.out()
	equal(w.t, "remaining", got.Remaining, max(w.limit.Tokens-tokens-debt, 0))
	equal(w.t, "window", got.Window, m.window)
	equal(w.t, "left", got.Left, m.window.Time().Sub(w.base.Add(w.now)).Truncate(time.Microsecond))
	if tokens > w.limit.Tokens {
		w.t.Fatalf("%d tokens are handed out of %d", tokens, w.limit.Tokens)
	}
}

func (m *model) check(w *walk, got backend.State) {
	w.t.Helper()
	equal(w.t, "check", got, m.counter.Check(w.limit, w.us()))
	m.compare(w, got)
}

func (m *model) sync(w *walk, r backend.SyncRequest, got backend.SyncReply) {
	w.t.Helper()
	equal(w.t, "sync", got, m.counter.Sync(r, w.us()))
	w.note(r, got)
	if got.Window == 0 {
		return
	}
	m.enter(w, got.Window)
	before := m.ledger[r.Client]
	equal(w.t, "granted", got.Granted, before.granted+got.Reasserted+got.Grant-got.Recovered)
	if got.Returned < before.returned || got.Debt < before.debt {
		w.t.Fatalf("a total shrinks: %+v after %+v", got, before)
	}
	m.ledger[r.Client] = account{got.Granted, got.Returned, got.Debt}
	m.compare(w, got.State)
	if !w.lossy && (got.Reasserted != 0 || got.Carried || got.Learning) {
		w.t.Fatalf("a sign of loss, of which there was none: %+v", got)
	}
	if fresh := got.Grant - got.Recovered; fresh > 0 && got.Remaining+got.Grant < r.Least {
		w.t.Fatalf("%d tokens granted, where at least %d were needed", fresh, r.Least)
	}
}

// note counts what the walk has seen.
func (w *walk) note(r backend.SyncRequest, got backend.SyncReply) {
	for what, was := range map[string]bool{
		"recovered": got.Recovered > 0, "exhausted": got.Remaining == 0, "reasserted": got.Reasserted > 0,
		"carried": got.Carried, "learning": got.Learning, "debt": got.Debt > 0, "leaving": r.Leaving,
		"adopted": w.lossy && r.Window != 0 && got.Window == r.Window && w.model.window == 0,
	} {
		if was {
			w.seen[what]++
		}
	}
}

func (m *model) take(w *walk, r backend.TakeRequest, got backend.TakeReply) {
	w.t.Helper()
	equal(w.t, "take", got, m.counter.Take(r, w.us()))
	m.enter(w, got.Window)
	if got.Allowed {
		m.direct, m.taken = m.direct+r.Tokens, m.taken+r.Tokens
	}
	m.compare(w, got.State)
}

func (m *model) refund(w *walk, r backend.RefundRequest, known int64) {
	w.t.Helper()
	equal(w.t, "refund", known, m.counter.Refund(r, w.us()))
	if r.Window != m.window || !m.open(w) {
		equal(w.t, "refund to a closed window", known, 0)
		w.seen["late refund"]++
		return
	}
	w.seen["refund"]++
}
