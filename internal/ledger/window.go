package ledger

import "github.com/go-reservoir/reservoir/backend"

// slack is how much later than expected a window may end, because the clocks of two servers
// differ. A later end is a sign that the clock has stepped back.
func slack(length int64) int64 { return min(length/10, 1000) }

// length is that of the window, ms.
func (s *step) length() int64 {
	if s.Begin != 0 {
		return s.End - s.Begin
	}
	return s.Limit.Window.Milliseconds()
}

// ends is when a window ends that opens now, Unix ms. The calendar says it; otherwise a window of
// whole seconds ends at a whole second, rounded down as GitHub's integer clock does.
func (s *step) ends() int64 {
	switch {
	case s.Begin != 0:
		return s.End
	case s.length()%1000 == 0:
		return s.now/1_000_000*1000 + s.length()
	}
	return (s.now+999)/1000 + s.length()
}

// latest is when an open window ends at the latest.
func (s *step) latest() int64 {
	length := s.length()
	return (s.now+999)/1000 + length + slack(length)
}

// restore reads the count and the end. If one of them is lost, the ledger tells it: the count is not less
// than what accounts were charged. A window that is over is none.
func (c *Counter) restore(now int64) {
	if h := c.head; h != nil && h.End*1000 > now && (c.end == 0 || c.end == h.End) {
		c.end, c.count = h.End, max(c.count, h.sum)
	}
	if c.end*1000 <= now {
		c.end, c.count = 0, 0
	}
}

// enter finds the open window. If it ends impossibly late, the clock has stepped back: then it ends
// as one that opens now and gets a new name, and its count stays, so that nobody starves for longer
// than a window, or gets more than a limit.
func (s *step) enter() {
	c := s.Counter
	c.restore(s.now)
	gen := c.gen()
	if c.end > s.latest() {
		gen = max(gen+1, s.now/1000)
		c.end = s.ends()
		c.head = s.next(gen)
	}
	w := s.Window
	s.runs = s.Runs && w.End*1000 > s.now && w.End <= s.latest() && w.Gen >= gen
}

// next is the head of a window that opens now. The old accounts stay, and are void by the name of
// their window.
func (s *step) next(gen int64) *head {
	h := &head{Window: backend.Window{End: s.end, Gen: gen}, hold: s.until}
	if old := s.head; old != nil {
		h.accounts, h.before = old.accounts, old.clients
	} else {
		h.accounts = map[string]*account{}
	}
	s.began, s.gone = true, max(s.end+min(s.length(), 60_000), s.until)+1000
	return h
}

// open makes sure that a window is open with a head of its own, and reports whether one is. If
// none is, the client's window is adopted, because only its clients know it; otherwise a statement
// that asks for tokens opens one. A statement without an account needs no head, unless it holds the limit.
func (s *step) open() bool {
	c, gen := s.Counter, s.gen()
	switch {
	case c.end != 0:
	case s.Client != "" && s.runs:
		c.end, c.count, gen = s.Window.End, max(s.Used, s.Mine), s.Window.Gen
		c.head = s.next(gen)
		c.head.claimable = c.count
	case s.Want > 0 || s.Client == "" && s.Need > 0:
		c.end, s.fresh = s.ends(), true
	default:
		return false
	}
	switch {
	case s.Client == "" && !s.longer:
	case c.head == nil: // lost, or another program opened the window
		if s.Window.End == c.end {
			gen = s.Window.Gen
		}
		c.head = s.next(gen)
		c.head.claimable = c.count
	case c.head.End != c.end:
		c.head = s.next(gen)
	}
	return true
}
