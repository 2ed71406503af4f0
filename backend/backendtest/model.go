package backendtest

import (
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// model is what a store must hold, built from its replies by addition alone. It
// knows nothing of how large a grant is, only what makes one a lie.
type model struct {
	window backend.Window
	ledger map[string]backend.Account
	direct int64 // charged by Take and not refunded
	total  int64 // granted to all, and returned
	loose  int64 // charged for grants that a client knew to be out, and nobody has re-asserted
}

func (m *model) reset() { *m = model{ledger: make(map[string]backend.Account)} }

func (m *model) open(w *walk) bool { return m.window != 0 && !w.over(m.window) }

// over reports whether the window lies before now.
func (w *walk) over(window backend.Window) bool {
	return window.Time().Before(w.base.Add(w.now))
}

// used is the sum of all that is out.
func (m *model) used() int64 {
	sum := m.direct + m.loose
	for _, a := range m.ledger {
		sum += a.Granted - a.Returned
	}
	return sum
}

// enter notes that a reply spoke of the window, which may be a new one.
func (m *model) enter(w *walk, window, spoken backend.Window) {
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
	want := w.end((w.now + time.Millisecond - 1).Truncate(time.Millisecond) + w.limit.Window)
	if w.lossy && spoken != 0 && !w.over(spoken) && spoken <= want+1000 {
		want = spoken
		w.seen["adopted"]++
	}
	equal(w.t, "a new window", window, want)
	if m.window != 0 {
		w.seen["roll"]++
	}
	m.window, m.direct, m.total, m.loose = window, 0, 0, 0
	clear(m.ledger)
}

// compare holds a reading of the key against the model.
func (m *model) compare(w *walk, got backend.State) {
	w.t.Helper()
	want := backend.State{Remaining: w.limit.Tokens}
	if m.open(w) {
		want.Window = m.window
		want.Left = m.window.Time().Sub(w.base.Add(w.now))
		want.Remaining = max(w.limit.Tokens-m.used(), 0)
	}
	equal(w.t, "state", got, want)
	if m.used() > w.limit.Tokens*int64(1+w.losses) {
		w.t.Fatalf("%d tokens are charged of %d after %d losses", m.used(), w.limit.Tokens, w.losses)
	}
}

func (m *model) sync(w *walk, r backend.SyncRequest, got backend.SyncReply) {
	w.t.Helper()
	if got.Window == 0 {
		equal(w.t, "no window", got, backend.SyncReply{State: backend.State{Remaining: w.limit.Tokens}, Clients: 1})
		if m.open(w) {
			w.t.Fatal("the window that was open is gone")
		}
		return
	}
	m.enter(w, got.Window, r.Window)
	before, rest := m.ledger[r.Client], max(w.limit.Tokens-m.used(), 0)
	m.account(w, r, got, before)
	m.grant(w, r, got, before, rest)
	m.compare(w, got.State)
	equal(w.t, "clients", got.Clients, m.count(r.Client))
	if !w.lossy && (got.Reasserted != 0 || got.Carried || got.Learning) {
		w.t.Fatalf("a sign of loss, of which there was none: %+v", got)
	}
}

// count is the number of ledger entries, that of client included.
func (m *model) count(client string) int64 {
	n := int64(len(m.ledger))
	if _, ok := m.ledger[client]; !ok {
		n++
	}
	return n
}

// account checks the totals of a reply and takes them over.
func (m *model) account(w *walk, r backend.SyncRequest, got backend.SyncReply, before backend.Account) {
	w.t.Helper()
	g, b := r.Granted, r.Returned
	if r.Window != got.Window {
		g, b = before.Returned, before.Returned
		if w.lossy && !w.over(r.Window) {
			g += r.Granted - r.Returned
			equal(w.t, "carried", got.Carried, r.Granted > r.Returned)
		}
	}
	if b > g {
		w.t.Fatal("the test tells nonsense")
	}
	equal(w.t, "reasserted", got.Reasserted, max(g-before.Granted, 0))
	equal(w.t, "recovered", got.Recovered, max(before.Granted-g, 0))
	equal(w.t, "returned", got.Returned, max(before.Returned, b))
	charged := got.Grant - got.Recovered
	if charged < 0 {
		w.t.Fatalf("a grant of %d, of which %d are recovered", got.Grant, got.Recovered)
	}
	equal(w.t, "granted", got.Granted, before.Granted+got.Reasserted+charged)
	m.learn(w, r, got, before)
	m.total += charged
	equal(w.t, "total", got.Total, m.total)
	if got.Granted > 0 {
		m.ledger[r.Client] = backend.Account{Granted: got.Granted, Returned: got.Returned}
	}
	if charged > 0 && m.used() > w.limit.Tokens {
		w.t.Fatalf("%d tokens granted, though %d of %d are charged", charged, m.used(), w.limit.Tokens)
	}
	w.note(got)
}

// learn takes in what the statement says of grants to others, and its own.
func (m *model) learn(w *walk, r backend.SyncRequest, got backend.SyncReply, before backend.Account) {
	told := max(got.Reasserted-(got.Returned-before.Returned), 0)
	claimed := min(m.loose, told)
	back := got.Returned - before.Returned
	m.loose -= claimed
	m.total += told - claimed
	if r.Window == got.Window && r.Total > m.total {
		if !w.lossy {
			w.t.Fatalf("a total of %d, after a client has heard of %d", m.total, r.Total)
		}
		w.seen["learnt of others"]++
		m.loose += max(r.Used-(m.used()+got.Reasserted-back), 0)
		m.total = max(r.Total-back, m.total)
	}
	m.total += back
}

// grant checks that a grant is neither stingy nor lavish. rest is what remained
// before the statement.
func (m *model) grant(w *walk, r backend.SyncRequest, got backend.SyncReply, before backend.Account, rest int64) {
	w.t.Helper()
	rest = min(max(rest-got.Reasserted+got.Returned-before.Returned, 0), w.limit.Tokens)
	if w.lossy { // more may be out than the limit
		rest = got.Remaining + got.Grant - got.Recovered
	}
	need := r.Need
	if got.Learning {
		need = min(need, max(w.limit.Tokens/1000, 1))
	}
	switch most := max(r.Want, r.Strand, got.Recovered); {
	case got.Grant < min(need, got.Recovered+rest):
		w.t.Fatalf("%d tokens for a need of %d, with %d left", got.Grant, need, rest)
	case got.Grant > most:
		w.t.Fatalf("%d tokens for a wish of %d", got.Grant, r.Want)
	case got.Learning && got.Grant > max(need, got.Recovered):
		w.t.Fatalf("%d tokens while learning", got.Grant)
	case r.Strand < 0 && !got.Learning:
		equal(w.t, "grant, as it is", got.Grant, max(min(r.Want, got.Recovered+rest), got.Recovered))
	case r.Want == 0:
		equal(w.t, "grant, without a wish", got.Grant, got.Recovered)
	}
}

// note counts what the walk has seen.
func (w *walk) note(got backend.SyncReply) {
	for what, was := range map[string]bool{
		"recovered": got.Recovered > 0, "exhausted": got.Remaining == 0, "reasserted": got.Reasserted > 0,
		"carried": got.Carried, "learning": got.Learning,
	} {
		if was {
			w.seen[what]++
		}
	}
}

func (m *model) take(w *walk, n int64, got backend.TakeReply) {
	w.t.Helper()
	m.enter(w, got.Window, 0)
	equal(w.t, "allowed", got.Allowed, m.used()+n <= w.limit.Tokens)
	if got.Allowed {
		m.direct += n
	}
	m.compare(w, got.State)
}

func (m *model) refund(w *walk, r backend.RefundRequest, back int64) {
	w.t.Helper()
	if r.Window != m.window || !m.open(w) {
		equal(w.t, "refund to a closed window", back, 0)
		w.seen["late refund"]++
		return
	}
	equal(w.t, "refund", back, r.Tokens)
	m.direct -= r.Tokens
	w.seen["refund"]++
}
