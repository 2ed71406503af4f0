package account

import (
	"github.com/go-reservoir/reservoir/backend"
)

// process is the owner of an account, and what has happened to it: the account must
// come to the same figures.
type process struct {
	*world
	Account
	name   string
	window backend.Window // of its lease; 0 = none
	left   backend.Window // the last one that it left by itself
	held   int64          // stock
	asked  *backend.SyncRequest
	reply  *backend.SyncReply  // to asked, on its way back
	last   backend.SyncRequest // the statement before

	moved               Moved          // in its life
	refunded            int64          // into the stock
	stock, direct, paid int64          // spent in its life: of the stock, by direct calls, and debt that was charged
	takenIn             backend.Window // of the last direct call
	taken               int64          // by direct calls in it, less what went back
	before              int64          // what the account said was spent
	here                int64          // of the stock, in this window
	inUse               int64          // the same, and what was carried into the window as spent
	unconfirmed         int64
	debt, confirmed     int64 // of this window
	debtBack            int64 // the part of debt that was given back
}

func (p *process) alive() bool { return p.now < int64(p.window)*1000 }

func (p *process) move(m Moved) {
	p.that(min(m.Taken, m.Returned, m.Expired) >= 0, "%+v moved back", m)
	p.moved.add(m)
}

// check compares the account with what has happened.
func (p *process) check() {
	a, spent := &p.Account, p.Spent(p.held)
	p.that(p.moved.Taken+p.refunded == spent+p.moved.Returned+p.moved.Expired+p.held+a.Unconfirmed(),
		"taken %d + refunded %d is not spent %d + returned %d + expired %d + held %d + %d",
		p.moved.Taken, p.refunded, spent, p.moved.Returned, p.moved.Expired, p.held, a.Unconfirmed())
	p.that(spent == p.stock+p.direct+p.paid, "spent %d, says the account; %d + %d + %d were", spent, p.stock, p.direct, p.paid)
	p.that(spent >= p.before, "spent goes back from %d to %d", p.before, spent)
	p.before = spent
	p.that(a.Unconfirmed() == p.unconfirmed, "unconfirmed %d, not %d", a.Unconfirmed(), p.unconfirmed)
	p.that(a.Unpaid() == p.debt-p.confirmed, "unpaid %d, not %d - %d", a.Unpaid(), p.debt, p.confirmed)
	p.that(a.InUse(p.held) == p.inUse, "in use %d, not %d: %+v", a.InUse(p.held), p.inUse, a)
	p.that(a.Granted() == (a.granted > 0), "granted")
	limit := a.granted
	if o := a.open; o != nil {
		limit += o.debtReturned
		p.that(0 <= o.paid && o.paid <= o.stated && o.stated <= o.debt && o.debtReturned <= o.stated, "%+v", o)
		p.that(0 <= o.unconfirmed && o.unconfirmed <= a.returned, "%+v", o)
	}
	p.that(0 <= a.returned && a.returned <= limit, "returned %d of %d", a.returned, limit)
}

// state makes a statement, if none is under way. Its figures never shrink.
func (p *process) state() {
	if p.asked != nil {
		return
	}
	q := backend.SyncRequest{Client: p.name, Limit: p.limit, Strand: p.upTo(10) - 1, Want: p.upTo(12)}
	q.Need = p.upTo(q.Want)
	q.Least = p.upTo(q.Need)
	p.State(&q, p.window)
	if l := p.last; q.Window == l.Window {
		p.that(q.Granted >= l.Granted && q.Returned >= l.Returned && q.Debt >= l.Debt, "after %+v the statement %+v", l, q)
	}
	p.asked, p.last = &q, q
}

// send sends it: it arrives, or it is late and nobody waits for the reply any more.
func (p *process) send() {
	if p.asked == nil || p.reply != nil {
		return
	}
	q := *p.asked
	again := func() { p.store.Sync(q, p.now) }
	if p.one(4) {
		p.asked = nil
		p.late = append(p.late, again)
		return
	}
	p.deliver()
	if p.one(4) {
		p.late = append(p.late, again)
	}
}

func (p *process) deliver() {
	r := p.store.Sync(*p.asked, p.now)
	p.reply = &r
	p.seen[recovered] += int(min(r.Recovered, 1))
	p.seen[reasserted] += int(min(r.Reasserted, 1))
}

func (p *process) hear() {
	switch {
	case p.reply == nil:
	case p.one(4):
		p.asked, p.reply = nil, nil
		p.seen[lostReply]++
	default:
		p.apply()
	}
}

// apply applies the reply. One to a statement about a window that the process has left
// since is as good as lost, and so is one about a window that it has left for good: the
// store would hand it all tokens of that once more.
func (p *process) apply() {
	q, r := *p.asked, *p.reply
	p.asked, p.reply = nil, nil
	if q.Window != p.window || r.Window != 0 && r.Window <= p.left {
		return
	}
	late := p.debt - q.Debt
	lateBack := p.returned - q.Returned
	if late > 0 {
		p.seen[lateDebt]++
	}
	if lateBack > 0 {
		p.seen[lateReturn]++
	}
	var held int64
	if r.Window != p.window {
		held, p.held = p.held, 0
	}
	m := p.Apply(q, r, held)
	p.move(m)
	same := r.Window == q.Window
	var charged, back int64
	if same || r.Carried {
		charged, back = max(q.Debt-p.confirmed, 0), p.unconfirmed-lateBack
	}
	p.that(m.Taken == r.Grant+charged, "taken %d of a grant of %d and a debt of %d", m.Taken, r.Grant, charged)
	p.that(m.Returned == back, "returned %d, not %d", m.Returned, back)
	p.paid += charged
	switch {
	case same:
		more := r.Debt - q.Debt // of an earlier stay in the window
		p.debt, p.confirmed = p.debt+more, p.confirmed+charged+more
	case r.Carried:
		p.held = held
		p.inUse += q.Debt - p.debtBack
		p.here, p.debt, p.confirmed = 0, late+r.Debt, r.Debt
		p.seen[carried]++
	default:
		p.that(m.Expired == held+p.unconfirmed, "expired %d, not %d", m.Expired, held+p.unconfirmed)
		p.inUse, p.here, p.debt, p.confirmed, lateBack = 0, 0, r.Debt, r.Debt, 0
		p.seen[movedOn]++
	}
	if !same {
		p.last, p.debtBack = backend.SyncRequest{}, 0
	}
	p.window, p.unconfirmed = r.Window, lateBack
	p.held += r.Grant
	p.seen[debtPaid] += int(min(charged, 1))
}

func (p *process) spend() {
	if n := p.upTo(p.held); n > 0 && p.alive() {
		p.held -= n
		p.stock, p.here, p.inUse = p.stock+n, p.here+n, p.inUse+n
		p.world.spend(p.window, n)
	}
}

func (p *process) refund() {
	n := p.upTo(p.here)
	p.Refund(n)
	p.held += n
	p.refunded += n
	p.here, p.inUse = p.here-n, p.inUse-n
	p.world.spent[p.window] -= n
}

func (p *process) giveBack(n int64) {
	p.Return(n)
	p.held -= n
	p.unconfirmed += n
}

// returnDebt gives back what a failure policy has admitted, or a part of it.
func (p *process) returnDebt() {
	if !p.alive() {
		return
	}
	n := p.ReturnDebt(p.upTo(3), p.held)
	p.refunded += n
	p.unconfirmed += n
	granted := p.inUse - p.InUse(p.held) // the part of n that was carried over as a grant
	p.inUse -= granted
	p.debtBack += n - granted
	p.here = min(p.here, p.inUse)
	p.world.spent[p.window] -= granted
	p.seen[debtReturned] += int(min(n, 1))
}

// enter makes another window the process' own, about which the store has said nothing.
func (p *process) enter(window backend.Window) {
	p.move(p.Leave(p.held))
	p.last, p.left = backend.SyncRequest{}, p.window
	p.window, p.held, p.unconfirmed, p.inUse, p.here, p.debt, p.confirmed, p.debtBack = window, 0, 0, 0, 0, 0, 0, 0
}

func (p *process) takeDirect() {
	n := 1 + p.upTo(2)
	r := p.store.Take(backend.TakeRequest{Limit: p.limit, Tokens: n}, p.now)
	if !r.Allowed {
		return
	}
	p.charged(r.Window, n)
	p.world.spend(r.Window, n)
	if p.takenIn != r.Window {
		p.takenIn, p.taken = r.Window, 0
	}
	p.taken += n
	if r.Window > p.window && !p.alive() {
		p.enter(r.Window)
	}
	if p.window == r.Window {
		p.move(p.Direct(n))
		p.direct += n
	}
}

// settleDirect gives back what direct calls have charged. It is sent once, and may be late.
func (p *process) settleDirect() {
	back := min(1+p.upTo(3), p.taken)
	if back == 0 {
		return
	}
	p.taken -= back
	p.world.spent[p.takenIn] -= back
	q := backend.SettleRequest{Window: p.takenIn, Tokens: -back, Limit: p.limit.Tokens}
	send := func() {
		before := p.store.Contents(p.now).Used
		p.store.Settle(q, p.now)
		p.charged(q.Window, p.store.Contents(p.now).Used-before)
	}
	p.seen[settledDirect]++
	if p.one(2) {
		send()
	} else {
		p.late = append(p.late, send)
	}
}

// withoutStore is what a failure policy admits: in the open window, or in one of the
// process' own.
func (p *process) withoutStore() {
	if !p.alive() {
		p.enter(backend.Window(p.now/1_000_000*1000 + p.limit.Window.Milliseconds()))
		p.seen[adopted]++
	}
	n := p.upTo(4)
	p.Declare(n)
	p.debt += n
}

func (m *Moved) add(n Moved) {
	m.Taken += n.Taken
	m.Returned += n.Returned
	m.Expired += n.Expired
}
