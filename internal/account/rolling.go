package account

import "github.com/go-reservoir/reservoir/backend"

// ring is what the account of a rolling limit has besides. It goes on over many windows. A nil
// ring is that of another limit, or of an account that the store has not named yet.
type ring struct {
	name     int64           // SyncReply.Account
	spent    []backend.Spent // the sums that the next statement carries
	refunded int64           // the part of returned that requests had spent, cumulative
	since    backend.Window  // the earliest in which a part of it was charged that is not confirmed
	late     backend.Window  // the same of what no statement has carried
}

// everSpent is how many of the tokens granted were spent, if the process holds held.
func (a *Account) everSpent(held int64) int64 {
	return max(a.granted-a.returned+a.ring.refunded-held, 0)
}

// Note records that what is spent by now was spent by the end of that slice. It keeps the sums of the
// last slices.
func (a *Account) Note(slice, held int64) {
	r := a.ring
	if r == nil {
		return
	}
	sum := backend.Spent{Slice: slice, Tokens: a.everSpent(held)}
	switch last := len(r.spent) - 1; {
	case last < 0 && sum.Tokens == 0:
	case last >= 0 && r.spent[last].Slice >= slice:
		r.spent[last].Tokens = sum.Tokens
	case last >= 0 && r.spent[last].Tokens == sum.Tokens:
	case len(r.spent) == backend.MaxSpent:
		r.spent = append(r.spent[:0], r.spent[1:]...) // the oldest counts with the next
		fallthrough
	default:
		r.spent = append(r.spent, sum)
	}
}

// state writes what statements about a rolling limit have besides. Refunds are apart from what is
// returned unspent.
func (r *ring) state(q *backend.SyncRequest, a *Account, held int64) {
	if r == nil {
		return
	}
	a.Note(backend.MaxTokens, held)
	q.Account, q.Spent, r.spent = r.name, r.spent, nil
	q.Returned -= r.refunded
	q.Refunded, q.RefundedIn, r.late = r.refunded, r.since, 0
}

// Same reports whether the reply r to q is about the account that q states.
func Same(q backend.SyncRequest, r backend.SyncReply) bool {
	if q.Limit.Rolls {
		return r.Account == q.Account
	}
	return r.Window == q.Window || r.Carried
}

// answered applies a reply about a rolling limit.
func (a *Account) answered(q backend.SyncRequest, r backend.SyncReply) {
	switch {
	case r.Account == 0:
		a.ring = nil
	case a.ring == nil || a.ring.name != r.Account:
		a.ring = &ring{name: r.Account}
	default:
		a.ring.since = a.ring.late
		a.returned += q.Refunded
	}
}

// GiveBack returns to the store n tokens that requests had spent, and that were charged in w. They
// may not be spent here again, because the store may count them where they were spent. It keeps
// them apart from tokens that were not spent.
func (a *Account) GiveBack(n int64, w backend.Window) {
	a.Return(n)
	r := a.ring
	r.refunded += n
	if r.since == 0 || w < r.since {
		r.since = w
	}
	if r.late == 0 || w < r.late {
		r.late = w
	}
}

// Named reports whether the store keeps an account of a rolling limit under a name.
func (a *Account) Named() bool { return a.ring != nil }

// Refunding reports whether all returned tokens that the store has not confirmed are refunds of a
// rolling limit, which can wait for another statement.
func (a *Account) Refunding() bool { return a.ring != nil && a.ring.since != 0 }
