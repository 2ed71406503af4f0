package reservoir

import (
	"context"
	"errors"
	"testing/synctest"
	"time"
)

// This file is the laws that every seed is held to.

// hear takes in what a caller was told.
func (s *sim) hear(c *caller) {
	s.log("%s of %d returns %+v %v", c.what, c.p.port.who, c.r, c.err)
	switch {
	case c.what == "close":
		s.blurred = s.blurred || c.err != nil
	case c.what == "refund":
		s.hearRefund(c)
	case c.what == "check":
	case c.err != nil:
		s.hearError(c)
	case !c.r.Allowed:
		s.seen["refused from "+c.r.Source.String()]++
		s.must(c.r.RetryAfter > 0, "a refusal without RetryAfter: %+v", c.r)
	case c.r.Source == Fallback:
		s.seen["fallback"]++
		c.p.alone += c.n
		s.won = append(s.won, c)
	default:
		s.admit(c)
	}
}

func (s *sim) hearError(c *caller) {
	s.must(!c.r.Allowed, "an error and a permission: %+v %v", c.r, c.err)
	var failure *StoreError
	switch {
	case errors.Is(c.err, ErrClosed):
		s.must(c.p.ended, "closed before its end")
		s.seen["told closed"]++
	case errors.Is(c.err, ErrDeadline):
		s.seen["hopeless"]++
	case errors.Is(c.err, ErrExceedsLimit):
		s.must(s.now != nil, "%d tokens are more than the limit", c.n)
		s.seen["over the limit"]++
	case errors.As(c.err, &failure):
		s.seen["failed"]++
	case errors.Is(c.err, context.Canceled):
		s.seen["cancelled"]++
	case errors.Is(c.err, context.DeadlineExceeded):
		s.seen["out of time"]++
	default:
		s.must(false, "an odd error: %v", c.err)
	}
}

// admit counts what was admitted: never more than the limit in a window, and of
// stock never after the window's end.
func (s *sim) admit(c *caller) {
	r := c.r
	s.seen["allowed from "+r.Source.String()]++
	if c.what == "wait" {
		s.seen["waited"]++
	}
	s.must(r.charged == c.n && r.RetryAfter == 0, "%+v for %d tokens", r, c.n)
	if r.Source != Direct {
		s.must(c.at.Before(r.Reset), "stock spent at %v, in a window that ended at %v", c.at, r.Reset)
	}
	c.p.admitted += c.n
	s.spend(c.slot(), c.n)
	s.won = append(s.won, c)
}

// hearRefund counts the tokens again that have not gone back. After an error they
// may have.
func (s *sim) hearRefund(c *caller) {
	switch {
	case c.r.Source == Fallback:
	case c.err != nil:
		s.slack += c.r.charged
		s.seen["refund unknown"]++
	default:
		s.spend(c.slot(), c.r.charged-c.n)
		if c.n > 0 {
			s.seen["refunded from "+c.r.Source.String()]++
		}
	}
}

// spend counts tokens of a window as spent: no more than the limit.
func (s *sim) spend(at slot, n int64) {
	s.spent[at] += n
	s.must(s.spent[at] <= s.limit.Tokens*int64(1+s.wire.losses), "%d tokens spent of %d, %d losses", s.spent[at], s.limit.Tokens, s.wire.losses)
}

// inspect looks at the state of every key: what must hold whenever all is at rest.
func (s *sim) inspect() {
	for _, p := range s.all {
		for _, key := range s.keys {
			if e := p.table.get(key); e != nil {
				s.inspectEntry(p, e)
			}
		}
	}
}

func (s *sim) inspectEntry(p *process, e *entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := p.clock.now()
	idle := e.flight == nil && e.queue.empty()
	s.must(!idle || e.traffic == &calm || p.closed.Load(), "nothing is under way, and yet the key has traffic of its own")
	s.must(e.pot == 0 || e.flight != nil && !e.queue.empty(), "a pot of %d is left behind", e.pot)
	s.must(e.pot >= 0, "a pot of %d", e.pot)
	if !e.queue.empty() && e.flight == nil && !p.closed.Load() {
		s.must(e.due > now, "callers are queued, no fetch is under way, and the timer is due at %d, now %d", e.due, now)
		s.must(e.queue.once == 0 || !e.win.Load().alive(now), "a window is open, callers are queued, and nobody fetches")
		s.seen["queue waits for the reset"]++
	}
	var tokens int64
	var once int
	for at := e.queue.head; at != nil; at = at.next {
		tokens += at.n
		if !at.wait {
			once++
		}
	}
	s.must(tokens == e.queue.tokens && once == e.queue.once, "the queue has %d tokens and %d callers, and counts %d and %d", tokens, once, e.queue.tokens, e.queue.once)
	s.inspectWindow(p, e, now)
}

func (s *sim) inspectWindow(p *process, e *entry, now int64) {
	w := e.win.Load()
	if w == nil {
		s.must(e.pot == 0 && e.granted == 0, "tokens without a window")
		return
	}
	stock := w.stock.Load()
	s.must(stock >= 0, "a stock of %d", stock)
	s.must(e.returned >= 0 && e.granted-e.returned >= stock+e.pot, "granted %d, returned %d, and yet there are %d in stock", e.granted, e.returned, stock+e.pot)
	if e.granted-e.returned > s.limit.Tokens*int64(1+s.wire.losses) && p.alone == 0 {
		s.must(false, "granted %d of %d", e.granted-e.returned, s.limit.Tokens)
	}
	if w.quiet.Load() != 0 && w.alive(now) {
		s.seen["quiet"]++
	}
}

// calmDown heals the network: what is on it arrives or is lost, and from then on
// every call is answered at once.
func (s *sim) calmDown() {
	s.log("the network is calm")
	s.wire.mu.Lock()
	for m := s.wire.pick(0); m != nil; m = s.wire.pick(0) {
		if !m.done {
			s.execute(m)
		}
		s.wire.answer(m)
	}
	s.wire.calm = true
	s.wire.mu.Unlock()
	if s.now != nil {
		s.now.Store(s.limit.Tokens)
	}
	s.settle()
	s.inspect()
	if s.oneIn(2) {
		for _, c := range s.callers {
			c.cancel()
		}
		s.settle()
	}
}

// patience is how many windows callers may take to be served in, once the network
// works: as long as what they ask for is of the limit, and some.
func (s *sim) patience() int {
	var tokens int64
	for _, c := range s.callers {
		tokens += c.n
	}
	return int(tokens/s.limit.Tokens)*2 + 6
}

// finish lets all callers return, closes all limiters and counts.
func (s *sim) finish() {
	for i := s.patience(); len(s.callers) > 0; i-- {
		s.must(i > 0, "%d callers are stuck, the first of them: %s %d", len(s.callers), s.callers[0].what, s.callers[0].n)
		time.Sleep(s.limit.Window + s.limit.Window/1000 + time.Second)
		s.settle()
		s.inspect()
	}
	for _, p := range s.all {
		s.must(p.ended || p.table.size.Load() == 0 || p.sweeper.armed.Load(), "keys are held and nobody will sweep them")
		s.balance(p)
	}
	for _, p := range s.all {
		err := p.Close(context.Background())
		s.must(err == nil || p.ended, "close: %v", err)
		p.ended = true
		synctest.Wait()
		last := s.balance(p)
		s.must(last.Held == 0, "closed with tokens in hand")
		s.seenOf(p, last)
		s.slack += last.Unknown + last.Expired
	}
	for _, key := range s.keys {
		s.conserved(key)
	}
	s.must(calm == (traffic{}), "the traffic that all keys share was written: %+v", calm)
	s.must(unknown == (habit{}), "the habit that all keys share was written: %+v", unknown)
}

// balance: what the limiter counts as spent is what callers were told.
func (s *sim) balance(p *process) Stats {
	x := p.Stats()
	s.log("process %d: %+v", p.port.who, x)
	s.must(x.Spent >= p.admitted && x.Spent <= p.admitted+p.alone, "%d tokens spent, and callers were told %d, and %d without the store", x.Spent, p.admitted, p.alone)
	for _, n := range []int64{x.Taken, x.Refunded, x.Returned, x.Expired, x.Held, x.Stranded, x.Owed, x.Denied} {
		s.must(n >= 0, "%+v", x)
	}
	return x
}

// conserved: what the store has charged in the window that is open is what was
// spent of it, or more by calls of which nobody has heard.
func (s *sim) conserved(key string) {
	c, err := s.wire.store.Inspect(context.Background(), s.wire.keyOf(key))
	s.must(err == nil, "%v", err)
	if c.Window == 0 || s.wire.losses > 0 {
		return
	}
	spent, alone := s.spent[slot{key, int64(c.Window)}], int64(0)
	for _, p := range s.all {
		alone += p.alone
	}
	s.must(c.Used >= spent, "%d tokens are charged, and %d were spent", c.Used, spent)
	if s.blurred {
		return
	}
	s.must(c.Used <= spent+s.slack+alone, "%d tokens are charged, %d were spent, %d may be lost, %d admitted without the store", c.Used, spent, s.slack, alone)
	if s.slack+alone == 0 && c.Used > 0 {
		s.seen["exact"]++
	}
}

// seenOf notes what a limiter has been through.
func (s *sim) seenOf(p *process, x Stats) {
	for what, n := range map[string]int64{
		"prefetch": x.Prefetches, "probe": x.Probes, "give back": x.GiveBacks, "recovered": x.Recovered,
		"re-asserted": x.Reasserted, "unknown take": x.Unknown, "expired": x.Expired, "returned": x.Returned,
	} {
		s.seen[what] += int(min(n, 1))
	}
	if p.shardOf(s.keys[0]).open.Load() {
		s.seen["away at the end"]++
	}
	windows := map[string]int{}
	for at := range s.spent {
		if windows[at.key]++; windows[at.key] > 1 {
			s.seen["rolled"]++
		}
	}
}
