package ledger

import "github.com/go-reservoir/reservoir/backend"

// void reports whether this statement, or a later one of the client, was here before. A network may
// repeat a statement; whoever gets the second reply states the account again.
func (s *step) void() bool {
	if s.Client == "" || s.c.head == nil {
		return false
	}
	a, ok := s.c.head.accounts[s.Client]
	return ok && (s.Life < a.life || s.Life == a.life && s.Seq <= a.seq)
}

// find looks up the account. The field of an earlier life counts among the clients, but its tokens
// are not this life's; the field of another window is void.
func (s *step) find() {
	a, ok := s.c.head.accounts[s.Client]
	if !ok || a.Window != s.c.head.Window {
		a = account{left: true}
	}
	s.was, s.of = a, a.life == s.Life
}

// state sets the account to what the statement says, and charges or gives back the difference. Of
// another window, what the client holds and has spent is carried into the open one if both still run;
// otherwise it is void. An account that the ledger lacks claims what is charged to nobody known,
// before anything goes back, because what went back first could be claimed by nobody.
func (s *step) state() {
	c, h := &s.c, s.c.head
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
	c := &s.c
	rest := max(s.Limit-c.count, 0)
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
	h := s.c.head
	a := account{Window: h.Window, life: s.Life, seq: s.Seq, mine: s.reply.Mine, idle: s.idle(), left: s.Leaving}
	h.idle += a.idle - s.was.idle
	if s.was.called {
		h.out--
	}
	h.accounts[s.Client] = a
}

// leave writes that the client has nothing, because no window is open: a late copy of an earlier
// statement must not open one.
func (s *step) leave() {
	s.c.head.accounts[s.Client] = account{Window: Window{Gen: s.c.head.Gen}, life: s.Life, seq: s.Seq, left: true}
}

// charge is the whole of a statement without an account.
func (s *step) charge() {
	c := &s.c
	switch {
	case s.Change > 0:
		if s.Window == (Window{c.end, c.gen()}) {
			c.count = min(c.count+s.Change, backend.MaxTokens)
		}
	case c.count+s.Need <= s.Limit:
		c.count += s.Need
		s.reply.Grant = s.Need
	case s.fresh:
		c.end, c.count = 0, 0 // a window opens at its first charge
	}
}

// exhaust records when the limit was first used up.
func (s *step) exhaust() {
	if h := s.c.head; h.exhausted == 0 && s.c.count >= s.Limit {
		h.exhausted = s.now / 1000
	}
}
