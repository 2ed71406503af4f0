package account

import "github.com/go-reservoir/reservoir/internal/ledger"

// Absolute is one limiter's account with one counter, for numbered statements: what the store
// should have charged is mine + change, and that is always what is held and spent. It is pure.
// The zero Absolute has no life; call Begin first. The owner's lock guards it.
type Absolute struct {
	life, seq int64
	window    ledger.Window
	mine      int64 // charged, as the last reply that was taken says
	change    int64 // used without a grant since, less what was given back since
	used      int64 // charged to everybody at that reply
	sent      int64 // the change that the last statement said
	inFlight  bool  // the last statement has no reply yet
}

// Begin begins a life, which must have a higher number than all lives of this limiter before it. A
// life ends when Settled reports true; until then callers go on in it.
func (a *Absolute) Begin(life int64) { *a = Absolute{life: life} }

// State writes the account into q, which is about to be sent. Replies to earlier statements count
// no more. runs says that the deadline for the window has not passed.
func (a *Absolute) State(q *ledger.Statement, runs bool) {
	a.seq++
	a.inFlight = true
	a.sent = a.change
	q.Life, q.Seq, q.Window, q.Mine, q.Change, q.Used, q.Runs = a.life, a.seq, a.window, a.mine, a.change, a.used, runs
}

// Take takes the reply to statement seq of this life, and reports whether it counts: only the last
// one's does, once, and only one that is neither void nor astray. kept says that what is held and spent belongs to the
// reply's window. If it does not, its window is over or void, and what was held there is lost. In both
// cases the reply's grant joins the stock.
func (a *Absolute) Take(seq int64, r ledger.Reply) (counts, kept bool) {
	if seq != a.seq || !a.inFlight || r.Void || r.Astray {
		return false, false
	}
	kept = r.Window == a.window || r.Mine > r.Grant
	if a.change -= a.sent; !kept {
		a.change = 0
	}
	a.window, a.mine, a.used, a.inFlight = r.Window, r.Mine, r.Used, false
	return true, kept
}

// GiveBack records that n tokens leave the stock. They must not be spent any more.
func (a *Absolute) GiveBack(n int64) { a.change -= n }

// Overdraw records that n tokens were used without a grant.
func (a *Absolute) Overdraw(n int64) { a.change += n }

// Settled reports whether the store has confirmed all that the account says, so that a life without
// stock may end. A give-back and an overdraft that cancel each other need no confirmation.
func (a *Absolute) Settled() bool { return a.change == 0 && !a.inFlight }

// Window is the window of the account, and Charged what the store should have charged to it there.
func (a *Absolute) Window() ledger.Window { return a.window }
func (a *Absolute) Charged() int64        { return a.mine + a.change }

// Unsaid is what was used without a grant, less what was given back, and no reply has confirmed.
func (a *Absolute) Unsaid() int64 { return a.change }
