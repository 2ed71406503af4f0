package ledger

import "github.com/go-reservoir/reservoir/backend"

// void reports whether this statement, or a later one of the client, was here before. A network may
// repeat a statement; whoever gets the second reply states the account again.
func (s *step) void() bool {
	if s.Client == "" || s.head == nil {
		return false
	}
	a := s.head.accounts[s.Client]
	return a != nil && (s.Life < a.life || s.Life == a.life && s.Seq <= a.seq)
}

// find looks up the account. The field of an earlier life counts among the clients, but its tokens
// are not this life's; the field of another window is void.
func (s *step) find() {
	s.own, s.was = s.account(), account{left: true}
	if s.own.Window == s.head.Window && s.own.life > 0 {
		s.was, s.of = *s.own, s.own.life == s.Life
	}
}

// account is that of the client, or a new one.
func (s *step) account() *account {
	a := s.head.accounts[s.Client]
	if a == nil {
		a = new(account)
		s.head.accounts[s.Client] = a
	}
	return a
}

// state sets the account to what the statement says, and charges or gives back the difference. Of
// another window, what the client holds and has spent is carried into the open one if both still run;
// otherwise it is void. An account that the ledger lacks claims what is charged to nobody known,
// before anything goes back, because what went back first could be claimed by nobody.
func (s *step) state() {
	c, h := s.Counter, s.head
	mine, claim := min(s.Mine+s.Change, backend.MaxTokens), s.Mine
	if mine < 0 || s.Window != h.Window && !s.runs {
		mine, claim = 0, 0
	}
	change := mine
	if s.of {
		change -= s.was.mine
	} else if s.Window.End == c.end {
		claim = min(claim, h.claimable)
		h.claimable -= claim
		c.count -= claim
	}
	c.count = min(max(c.count+change, 0), backend.MaxTokens)
	h.sum = min(max(h.sum+change, 0), backend.MaxTokens)
	s.reply.Mine = mine
}

// enlist counts the client, unless it leaves.
func (s *step) enlist() {
	h := s.head
	if !s.was.left {
		h.clients--
	}
	if !s.Leaving {
		h.clients++
	}
	s.reply.Clients = h.clients
}

// grant charges what the client gets. If less than Least is left, it gets nothing.
func (s *step) grant() {
	c := s.Counter
	rest := max(s.Limit.Tokens-c.count, 0)
	take := int64(0)
	if rest >= s.Least {
		take = min(s.target(), rest, backend.MaxTokens-s.reply.Mine)
	}
	c.count += take
	c.head.sum = min(c.head.sum+take, backend.MaxTokens)
	s.reply.Grant = take
	s.reply.Mine += take
}

// keep writes the account.
func (s *step) keep() {
	h := s.head
	*s.own = account{Window: h.Window, life: s.Life, seq: s.Seq, mine: s.reply.Mine, idle: s.idle(), left: s.Leaving, did: s.did, asked: s.own.asked}
	h.idle += s.own.idle - s.was.idle
	h.hold = s.until
	if s.was.called { // unless it was given up
		h.out, h.at = max(h.out-1, 0), s.now/1000
	}
	if s.began && len(h.accounts) > many { // the others are of old windows, and void
		h.accounts = map[string]*account{s.Client: s.own}
	}
}

// many is how many accounts a window may begin with: to delete those of old ones only tidies.
const many = 63

// leave writes that the client has nothing, because no window is open: a late copy of an earlier
// statement must not open one.
func (s *step) leave() {
	if s.head == nil {
		s.head, s.gone = &head{accounts: map[string]*account{}}, max(s.gone, s.now/1000+s.length()+1000)
	}
	*s.account() = account{Window: backend.Window{Gen: s.head.Gen}, life: s.Life, seq: s.Seq, left: true}
}

// charge is the whole of a statement without an account.
func (s *step) charge() {
	c := s.Counter
	switch {
	case s.Change > 0:
		if s.Window == (backend.Window{End: c.end, Gen: c.gen()}) {
			c.count = min(c.count+s.Change, backend.MaxTokens)
		}
	case c.count+s.Need <= s.Limit.Tokens:
		c.count += s.Need
		s.reply.Grant = s.Need
	case s.fresh:
		c.end, c.count = 0, 0 // a window opens at its first charge
	}
}

// exhaust records when the limit was first used up.
func (s *step) exhaust() {
	if h := s.head; h.exhausted == 0 && s.count >= s.Limit.Tokens {
		h.exhausted = s.now / 1000
	}
}
