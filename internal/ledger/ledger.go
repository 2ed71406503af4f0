// Package ledger has the store's rules of one counter in Go. A Counter keeps as one value
// what the scripts of package lua keep in three Redis keys: the count, the end of its window, and
// the ledger. Its methods are pure steps: a request and the time come in, a reply goes out. They
// follow the parts in lua line by line; a differential test gives both the same requests.
//
// A statement is numbered and absolute: it says what the account should have been charged. The
// store sets the account to that and then grants. So a grant whose reply was never read goes away
// with the next statement, what was given back in vain is said again, and what a loss of data took
// is charged. Only the last statement of a client counts, and only its reply.
//
// The rule of the window is GitHub's ("How we scaled the GitHub API with a sharded, replicated
// rate limiter in Redis", 2021). A calendar's window, a generation, the accounts and their
// messages are added to it.
package ledger

import "maps"

// Window is the name of a window: its end in Unix milliseconds, and its generation. A Reset begins
// a generation, so the windows before and after it differ in name even if they end at one
// instant. The zero Window is none.
type Window struct{ End, Gen int64 }

// Statement says what one client's account with a counter should be, and asks for tokens. A
// statement without a Client has no account: it charges Need, all or none, or else Plus, which was
// used above an earlier charge in Window.
type Statement struct {
	Client string // names the field of one limiter in one process
	Life   int64  // of the client's account; each new one has a higher number
	Seq    int64  // of the statement in that life, counting from 1

	Window Window // of Mine, Change and Used; zero if the client has none
	Mine   int64  // tokens charged to the account, as the last reply that the client took says
	Change int64  // tokens used without a grant since, less those given back since
	Used   int64  // tokens charged to everybody at that reply
	Runs   bool   // the client's deadline for Window has not passed

	Want  int64 // tokens asked for
	Need  int64 // the part of Want that callers wait for
	Least int64 // the part of Need for the first of them; with less, nothing is granted

	Limit      int64 // tokens per window
	Length     int64 // of a window, ms; a calendar's is End - Begin
	Begin, End int64 // of the present period by a calendar, Unix ms; 0 = the limit has none

	Hints
}

// Hints are what the size of a grant and the messages depend on. They never decide whether the
// counter is exact.
type Hints struct {
	Exact   bool  // grant Want as it is
	Leaving bool  // the client does not count until it asks again
	Deaf    bool  // the client gets no messages
	Waited  bool  // it has given those that were called time to answer
	Idle    int64 // tokens of Window that it holds and that nobody there waits for
	Pace    int64 // tokens that it would use in a whole window at its present rate
	Run     int64 // tokens of Window that it has got in a row, less what others got meanwhile
}

// Reply answers a statement. If Void is set, this statement or a later one of the client was here before; if
// Astray is set, the calendar's period is not the present one. In both cases nothing was done, and
// of the other fields only Now is set.
type Reply struct {
	Now          int64 // the store's clock, Unix us
	Void, Astray bool

	Window Window // the open one, or what is left of its name: an End of 0 means that none is open
	Mine   int64  // tokens charged to the account, with Grant
	Grant  int64  // tokens charged now, to be spent until Window ends
	Used   int64  // tokens charged to everybody

	Clients int64 // that share the window, this one included
	Lasted  int64 // ms from the window's beginning until the limit was used up; 0 = it is not
	Idle    int64 // tokens idle in others that may be called
	Called  int64 // clients that were called and may still answer
}

// Counter is the count of one key, kind and length. The zero Counter was never charged. A copy
// shares the accounts, so Clone it to keep it. It is not safe for concurrent use.
type Counter struct {
	end   int64 // of the window, Unix ms; 0 = missing
	count int64 // tokens charged in it; 0 if missing
	head  *head // nil = there is no ledger
}

// head is the ledger's own field, with the accounts beside it. A head of another window than the
// open one still tells the generation, and how many clients its window had.
type head struct {
	Window
	sum       int64 // tokens charged to accounts
	claimable int64 // charged to nobody known; an account that the ledger lacks claims its part
	exhausted int64 // when the limit was first used up, Unix ms; 0 = not yet
	clients   int64 // accounts of the window that have not left
	before    int64 // clients of the window before
	idle      int64 // the sum of the accounts'
	recalls
	accounts map[string]account
}

// account is the field of one client.
type account struct {
	Window
	life, seq int64 // of the last statement
	mine      int64 // tokens charged to it
	idle      int64 // it holds at most so many tokens that nobody there waits for
	left      bool  // it does not count until it asks again
	called    bool  // to return what is idle, and has not stated since
}

// Clone returns a copy that shares nothing with c.
func (c *Counter) Clone() Counter {
	next := *c
	if c.head != nil {
		h := *c.head
		h.accounts = maps.Clone(h.accounts)
		next.head = &h
	}
	return next
}

// gen is the generation of a window that is open or opens now.
func (c *Counter) gen() int64 {
	if c.head == nil {
		return 0
	}
	return c.head.Gen
}

// LoseCount, LoseEnd and LoseLedger forget one of the three keys, as a server does that evicts it.
func (c *Counter) LoseCount()  { c.count = 0 }
func (c *Counter) LoseEnd()    { c.end = 0 }
func (c *Counter) LoseLedger() { c.head = nil }

// step is a statement on its way through a copy of the counter.
type step struct {
	Statement
	now   int64
	c     Counter
	runs  bool    // the client's window is not over, nor older than the last Reset
	fresh bool    // the window opens now
	was   account // the client's, if it is of the open window; else one that has left
	of    bool    // was is of this life
	reply Reply
}

// Sync takes a statement. The messages are to be sent.
func (c *Counter) Sync(q Statement, now int64) (Reply, []Message) {
	if q.Begin != 0 && (now < q.Begin*1000 || now >= q.End*1000) {
		return Reply{Now: now, Astray: true}, nil
	}
	s := step{Statement: q, now: now, c: c.Clone(), reply: Reply{Now: now}}
	s.enter()
	if s.void() {
		return Reply{Now: now, Void: true}, nil
	}
	open := s.open()
	switch {
	case q.Client == "":
		if open {
			s.charge()
		}
	case open:
		s.find()
		s.state()
		s.grant()
		s.exhaust()
		s.keep()
	case s.c.head != nil:
		s.leave()
	}
	messages := s.messages()
	if s.c.end == 0 { // what is over stays until a window opens
		s.reply.Used, s.c.end, s.c.count = 0, c.end, c.count
		s.reply.Window.Gen = s.c.gen()
		*c = s.c
		return s.reply, nil
	}
	*c = s.c
	return s.answer(), messages
}

// answer completes the reply.
func (s *step) answer() Reply {
	r, c := s.reply, &s.c
	r.Used, r.Window = c.count, Window{c.end, c.gen()}
	if h := c.head; s.Client != "" && h.exhausted > 0 {
		r.Lasted = max(h.exhausted-(c.end-s.length()), 1)
	}
	return r
}

// Reset ends the open window, if there is one, and voids its name in any case. The messages are to
// be sent to all.
func (c *Counter) Reset(now int64) (void, next Window) {
	h := &head{accounts: map[string]account{}}
	if void.Gen = c.gen(); c.head != nil {
		void.End, h.accounts, h.clients = c.head.End, c.head.accounts, c.head.clients
	}
	if c.end != 0 {
		void.End = c.end
	}
	if void.End*1000 <= now {
		void.End = 0
	}
	h.Gen = max(void.Gen+1, now/1000)
	*c = Counter{head: h}
	return void, h.Window
}

// Read returns the open window and the tokens charged in it, and changes nothing. A count without
// its end, or an end without its count, is read from the ledger, if that has it.
func (c *Counter) Read(now int64) (w Window, used int64) {
	s := step{now: now, c: *c}
	s.restore()
	if s.c.end == 0 {
		return Window{}, 0
	}
	return Window{s.c.end, c.gen()}, s.c.count
}
