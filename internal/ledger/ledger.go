// Package ledger has the store's rules of one counter in Go. A Counter keeps as one value
// what the scripts of package lua keep in three Redis keys: the count, the end of its window, and
// the ledger; or in one, of a rolling limit. Its methods are pure steps: a request and the time, in Unix us, come in, a reply goes out. They
// follow the parts in lua line by line; a differential test gives both the same requests.
//
// A statement is numbered and absolute: it says what the account should have been charged. The
// store sets the account to that and then grants. So a grant whose reply was never read is undone
// by the next statement, what a lost statement gave back is said again, and what a loss of data took
// is charged again. Only the last statement of a client counts, and only its reply.
//
// The rule of the window is GitHub's ("How we scaled the GitHub API with a sharded, replicated
// rate limiter in Redis", 2021). A calendar's window, a generation, the accounts and their
// messages are added to it.
package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Counter is the count of one key, kind and length. The zero Counter was never charged. A copy
// shares the ledger, so Clone it to keep it. It is not safe for concurrent use.
type Counter struct {
	end   int64 // of the window, Unix ms; 0 = missing
	count int64 // tokens charged in it; 0 if missing
	gone  int64 // when the ledger is deleted, Unix ms
	head  *head // nil = there is no ledger
	ring  *ring // of a rolling limit; nil = it was never charged. Then count is the sum, and end is when nothing counts any more
}

// head is the ledger's own field, with the accounts beside it. A head of another window than the
// open one still tells the generation, and how many clients its window had.
type head struct {
	backend.Window
	sum       int64 // tokens charged to accounts
	claimable int64 // charged to nobody known; an account that the ledger lacks claims its part
	exhausted int64 // when the limit was first used up, Unix ms; 0 = not yet
	clients   int64 // accounts of the window that have not left
	before    int64 // clients of the window before
	hold      int64 // until when the limit is held, Unix ms of the counter's time; 0 = it was not
	idle      int64 // the sum of the accounts'
	recalls
	accounts map[string]*account
}

// account is the field of one client.
type account struct {
	backend.Window
	life, seq int64 // of the last statement
	mine      int64 // tokens charged to it
	idle      int64 // it holds at most so many tokens that nobody there waits for
	left      bool  // it does not count until it asks again
	called    bool  // to return what is idle, and has not stated since

	did   []backend.Change // of a rolling limit: what the last statement changed in the ring, grants included
	asked int64            // the bucket in which it last asked for tokens
}

// Clone returns a copy that shares nothing with c.
func (c *Counter) Clone() Counter {
	next := *c
	if c.head != nil {
		h := *c.head
		h.accounts = make(map[string]*account, len(h.accounts))
		for name, a := range c.head.accounts {
			own := *a
			own.did = slices.Clone(a.did)
			h.accounts[name] = &own
		}
		next.head = &h
	}
	next.ring = c.ring.clone()
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

// Kept reports whether the counter has anything that a store must keep at now: a count whose window is not over, or
// a ledger that is not deleted.
func (c *Counter) Kept(now int64) bool {
	return c.end*1000 > now || c.head != nil && c.gone*1000 > now
}

// step is a statement on its way through the counter.
type step struct {
	backend.Statement
	*Counter
	now   int64
	runs  bool     // the client's window is not over, nor older than the last Reset
	began bool     // a head begins now
	fresh bool     // the window opens now
	own   *account // the client's
	was   account  // what it was before, if it is of the open window; else one that has left
	of    bool     // was is of this life
	reply backend.Reply

	until  int64 // when the hold ends, Unix ms; 0 = the limit is not held
	longer bool  // the statement lengthens the hold

	// Of a rolling limit:
	did     []backend.Change // what is changed in the ring
	calling bool             // others are called to return what is idle, or told to come
	lacks   bool             // it got less than it could use
	gave    bool             // tokens have come back
}

// Sync takes a statement, which must be valid. The messages are to be sent; a store adds the key and the counter.
func (c *Counter) Sync(q backend.Statement, now int64) (backend.Reply, []Message) {
	if q.Limit.Rolls {
		return c.roll(q, now)
	}
	reply := backend.Reply{Now: now}
	if q.Begin != 0 && (now < q.Begin*1000 || now >= q.End*1000) {
		reply.Astray = true
		return reply, nil
	}
	s := step{Statement: q, Counter: c, now: now, reply: reply}
	if s.void() {
		reply.Void = true
		return reply, nil
	}
	end, count := c.end, c.count
	s.hold()
	s.enter()
	open := s.open()
	s.lengthen()
	switch {
	case q.Client == "":
		if open {
			s.charge()
		}
	case open:
		s.find()
		s.state()
		s.enlist()
		s.grant()
		s.exhaust()
		s.keep()
	case c.head != nil || q.Leaving && q.Window == backend.Window{}: // it has heard of no reply, though there were statements
		s.leave()
	}
	messages := s.messages()
	s.answer()
	if c.end == 0 { // what is over stays until a window opens
		c.end, c.count = end, count
	}
	return s.reply, s.tell(messages)
}

// answer completes the reply.
func (s *step) answer() {
	s.reply.State = s.reading(s.Limit, s.now)
	s.reply.Used = s.count
	if h := s.head; s.Client != "" && s.end != 0 && h.exhausted > 0 && s.until == 0 {
		s.reply.Lasted = time.Duration(max(h.exhausted-(s.end-s.length()), 1)) * time.Millisecond
	}
}

// reading is the state of a counter that was restored. It tells the generation even if no window is open.
func (c *Counter) reading(l backend.Limit, now int64) backend.State {
	state := backend.State{Window: backend.Window{End: c.end, Gen: c.gen()}, Remaining: max(l.Tokens-c.count, 0)}
	if c.end != 0 {
		state.Left = time.Duration(c.end*1000-now) * time.Microsecond
	}
	if c.ring != nil && state.Remaining == 0 {
		state.Frees = max(time.Duration(c.ring.leaves(1)-now)*time.Microsecond, 0)
	}
	if c.head != nil && c.head.hold*1000 > now {
		state.Held, state.Remaining = time.Duration(c.head.hold*1000-now)*time.Microsecond, 0
	}
	return state
}

// Reset ends the open window, if there is one, and voids its name in any case. The ledger remembers the
// generation for the length of l's window at least. The limit is not held any more. A message about void is to be sent to all.
func (c *Counter) Reset(l backend.Limit, now int64) (void, next backend.Window) {
	h, length, empty := &head{}, l.Window.Milliseconds(), (*ring)(nil)
	if void.Gen = c.gen(); c.head != nil {
		void.End, h.accounts = c.head.End, c.head.accounts
		h.clients = max(c.head.clients, c.head.before) // most may not have come to a window that has just opened
	} else {
		h.accounts = map[string]*account{}
	}
	if c.end != 0 {
		void.End = c.end
	}
	if void.End*1000 <= c.time(now) {
		void.End = 0
	}
	if l.Rolls { // no window opens that would count anew, and tokens may count for longer
		c.wind(l, now)
		h.clients, length = 0, 2*length
		empty = &ring{length: l.Window, low: c.ring.low, last: c.ring.last, off: c.ring.off} // its clock goes on
	}
	h.Gen = max(void.Gen+1, now/1000)
	*c = Counter{head: h, gone: now/1000 + length + 1000, ring: empty}
	return void, h.Window
}

// read returns a copy of the counter with its open window. A count without its end, or an end without its count,
// is read from the ledger, if that has it.
func (c *Counter) read(now int64) *Counter {
	open := *c
	if c.ring != nil {
		open.ring = c.ring.clone()
		open.turn(now)
	} else {
		open.restore(now)
	}
	return &open
}

// Check returns a reading for a limit, and changes nothing.
func (c *Counter) Check(l backend.Limit, now int64) backend.State {
	return c.read(now).reading(l, c.time(now))
}

// Contents returns what an operator reads, and changes nothing. It is zero if no window is open and the limit is not held.
func (c *Counter) Contents(now int64) backend.Contents {
	open := c.read(now)
	state := open.reading(backend.Limit{}, c.time(now))
	if open.end == 0 && state.Held == 0 {
		return backend.Contents{}
	}
	out := backend.Contents{Window: state.Window, Left: state.Left, Used: open.count, Held: state.Held}
	if h := c.head; h != nil && (h.Window == out.Window && open.end != 0 || c.ring != nil) {
		for name, a := range h.accounts {
			if a.Window == h.Window {
				out.Idle += a.idle
				out.Clients = append(out.Clients, backend.Account{Client: name, Mine: a.mine, Idle: a.idle, Left: a.left})
			}
		}
	}
	slices.SortFunc(out.Clients, func(a, b backend.Account) int { return cmp.Compare(a.Client, b.Client) })
	return out
}
