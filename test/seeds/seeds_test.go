// Package seeds runs whole limiters under many seeds. One goroutine draws what happens
// next, on a virtual clock and a network that loses, repeats and reorders. So a seed always
// gives the same run, and the laws can be checked after every step.
package seeds

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// everywhere is how many seeds have been everywhere, all told.
const everywhere = 2000

var (
	seeds = flag.Uint64("seeds", everywhere, "how many seeds TestSeeds runs")
	seed  = flag.Int64("seed", -1, "the one seed that TestSeeds runs, telling what happens")
)

func TestMain(m *testing.M) { redistest.Main(m) }

// A bubble of virtual time costs more than a seed, so that many share one. Each begins
// at an instant of its own, which is the same when it is run alone: random intervals
// depend on it.
const (
	perBubble = 200
	apart     = 10_000 * time.Hour
)

// TestSeeds runs the limiter, all but its store's network, under many seeds, each of
// which draws some dozens of steps: callers of all kinds that come, give up and refund,
// a network that reorders, delays, repeats and loses, windows that end, a store that
// loses its data, limiters that close.
func TestSeeds(t *testing.T) {
	defer chance.Seed(1)()
	if *seed >= 0 {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Duration(*seed%perBubble) * apart)
			if text := attempt(uint64(*seed), tally{}, func(s *sim) { s.say = func(f string, args ...any) { fmt.Fprintf(t.Output(), f, args...) } }); text != "" {
				t.Errorf("seed %d: %s", *seed, text)
			}
		})
		return
	}
	seen := runSeeds(t, *seeds)
	if *seeds >= everywhere && !t.Failed() {
		covered(t, seen)
	}
}

// runSeeds runs seeds from 0 on, until one fails.
func runSeeds(t *testing.T, n uint64) tally {
	all := tally{}
	var mu sync.Mutex
	var next atomic.Uint64
	t.Run("all", func(t *testing.T) {
		for i := range 2 {
			t.Run(fmt.Sprint("worker", i), func(t *testing.T) {
				t.Parallel()
				seen := tally{}
				for !t.Failed() {
					first := next.Add(perBubble) - perBubble
					if first >= n {
						break
					}
					synctest.Test(t, func(t *testing.T) { bubble(t, first, min(first+perBubble, n), seen) })
				}
				mu.Lock()
				defer mu.Unlock()
				for what, c := range seen {
					all[what] += c
				}
			})
		}
	})
	return all
}

func bubble(t *testing.T, from, to uint64, seen tally) {
	start := time.Now()
	for seed := from; seed < to; seed++ {
		time.Sleep(time.Until(start.Add(time.Duration(seed%perBubble) * apart)))
		if text := attempt(seed, seen, nil); text != "" {
			t.Errorf("seed %d: %s\nto see what happens: go test -run='^TestSeeds$' ./test/seeds -v -seed=%d\nThe search of the key may find a shorter way to the same fault: go test ./internal/key -run=TestSearch", seed, text, seed)
			return
		}
	}
}

// attempt runs a seed and returns the law that it broke, or nothing.
func attempt(seed uint64, seen tally, set func(*sim)) (text string) {
	s := newSim(seed, seen)
	if set != nil {
		set(s)
	}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case breach:
			text = string(p)
			s.abandon()
		default:
			panic(p)
		}
	}()
	s.run()
	return ""
}

// abandon ends all goroutines of a run that has failed.
func (s *sim) abandon() {
	s.net.Lock()
	s.net.Reply, s.net.Request = nil, nil
	s.net.Unlock()
	s.calm(func(c *testnet.Call) { c.Err = errLost })
	for _, c := range s.callers {
		c.cancel()
	}
	for _, p := range s.all {
		_ = p.Close(context.Background())
	}
	synctest.Wait()
}

// calm answers all calls that are under way, each after last, and every later call at once.
func (s *sim) calm(last func(c *testnet.Call)) {
	s.net.Faults(nil)
	s.net.Lock()
	defer s.net.Unlock()
	for c := s.net.Pick(0); c != nil; c = s.net.Pick(0) {
		last(c)
		s.net.Answer(c)
	}
}

// covered checks that the seeds have been everywhere.
func covered(t *testing.T, seen tally) {
	for _, what := range []string{
		"allowed from local", "allowed from fetched", "allowed from direct", "refused from fetched", "refused from direct", "refused from local",
		"waited", "cancelled", "out of time", "hopeless", "failed", "fallback", "refunded in part", "overrun", "refunded from local", "refunded from fetched", "refunded from direct",
		"refund unknown", "lost request", "lost reply", "cut", "refused", "repeated sync", "late call", "too late", "lost data",
		"closed under way", "told closed", "prefetch", "probe", "give back", "unknown", "expired", "returned", "rolled",
		"exact", "another limit", "over the limit", "two limits", "two lengths", "reset", "voided", "calendar", "many from local", "debt", "away at the end",
		"rolling", "a part", "all spent in an interval", "another plan", "outage", "hold", "told of a hold", "heard of a hold", "heard of a reset", "no messages", "clock set back", "false message",
	} {
		assert.Positive(t, seen[what], what)
	}
	t.Log(seen)
}

// TestSeedsNotice: the laws notice each of these deliberate bugs.
func TestSeedsNotice(t *testing.T) {
	defer chance.Seed(1)()
	for name, set := range map[string]func(*sim){
		"a grant that is not charged": inReplies(func(r *backend.Reply) {
			if r.Grant > 0 && len(r.Grants) == 0 {
				r.Grant, r.Mine = r.Grant+1, r.Mine+1
			}
		}),
		"a give-back is not heard": inStatements(func(q *backend.Statement) { q.Change = max(q.Change, 0) }),
		"a give-back counts twice": inStatements(func(q *backend.Statement) { q.Change += min(q.Change, 0) }),
		"a statement without an account has twice the limit": inStatements(func(q *backend.Statement) {
			if q.Client == "" {
				q.Limit.Tokens *= 2
			}
		}),
		"a batch is kept across windows": inReplies(func(r *backend.Reply) { r.Mine++ }),
		"a window that seems longer":     inReplies(func(r *backend.Reply) { r.Left *= 3 }),
		"a grant of a bucket that is not charged": inReplies(func(r *backend.Reply) {
			if len(r.Grants) > 0 {
				r.Grant, r.Grants[0].Tokens = r.Grant+1, r.Grants[0].Tokens+1
			}
		}),
		"tokens of a bucket that may be spent for longer": inReplies(func(r *backend.Reply) {
			for i := range r.Grants {
				r.Grants[i].Bucket += 3
			}
		}),
		"what was done to buckets is not undone": inStatements(func(q *backend.Statement) {
			if q.Limit.Rolls && q.Client != "" {
				q.Known = q.Seq - 1
			}
		}),
		"no reply tells of a hold":          inReplies(func(r *backend.Reply) { r.Held = 0 }),
		"replies do not know of a Reset":    inReplies(func(r *backend.Reply) { r.Window.Gen = 0 }),
		"the store does not hear of a hold": inStatements(func(q *backend.Statement) { q.Hold = 0 }),
		"a hold is over too early":          inReplies(func(r *backend.Reply) { r.Held /= 2 }),
		"what goes back to buckets counts twice": inStatements(func(q *backend.Statement) {
			for i, c := range q.Changes {
				q.Changes[i].Tokens += min(c.Tokens, 0)
			}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for seed := range uint64(5 * perBubble) {
					if text := attempt(seed, tally{}, set); text != "" {
						t.Logf("seed %d: %s", seed, text)
						return
					}
				}
				t.Error("nobody noticed")
			})
		})
	}
}

func inReplies(change func(r *backend.Reply)) func(*sim) {
	return func(s *sim) {
		s.net.Reply = func(reply any) {
			if r, ok := reply.(*backend.Reply); ok {
				change(r)
			}
		}
	}
}

func inStatements(change func(q *backend.Statement)) func(*sim) {
	return func(s *sim) { s.net.Request = change }
}

// The laws that every seed is held to.

// hear takes in what a caller was told.
func (s *sim) hear(c *simCaller) {
	s.log("process %d: its %s of %s returns: %s", c.p.who, c.what, c.key, c.answer())
	if c.what == "up to" && c.got > 0 {
		c.n = c.got
	}
	switch {
	case c.what == "close":
		s.blurred = s.blurred || c.err != nil
	case c.what == "refund":
		s.hearRefund(c)
	case c.what == "hold" && c.err == nil: // the store has heard it at the latest now
		s.isHeld(c.p, c.p.limit.inStore(c.key), c.from.Add(c.holds))
	case c.what == "check", c.what == "refresh" && !errors.Is(c.err, reservoir.ErrClosed):
	case c.err != nil:
		s.hearError(c)
	case c.what == "reset", c.what == "refresh":
	case !c.r.Allowed:
		s.seen["refused from "+c.r.Source.String()]++
		s.refused(c)
	case c.r.Source == reservoir.Fallback:
		s.seen["fallback"]++
		s.notHeld(c)
		c.p.alone += c.n
		s.won = append(s.won, c)
	default:
		s.admit(c)
	}
}

// refused: a refusal agrees with itself. A hold may last for longer than the window, and a Wait may find another plan.
func (s *sim) refused(c *simCaller) {
	r := c.r
	s.must(r.RetryAfter > 0, "a refusal without RetryAfter: %+v", r)
	s.must(0 <= r.Remaining && r.Remaining < c.n, "%d tokens are refused, and so many remain: %+v", c.n, r)
	if l := c.p.limit; s.holds == 0 && s.plans == nil && !l.Rolls && l.Calendar.Period == 0 {
		s.must(r.RetryAfter <= l.Window && !r.Reset.IsZero(), "refused for longer than the window: %+v", r)
	}
}

func (s *sim) hearError(c *simCaller) {
	s.must(!c.r.Allowed, "an error and a permission: %+v %v", c.r, c.err)
	var failure *reservoir.StoreError
	switch {
	case errors.Is(c.err, reservoir.ErrClosed):
		s.must(c.p.ended, "closed before its end")
		s.seen["told closed"]++
	case errors.Is(c.err, reservoir.ErrDeadline):
		s.must(c.what == "wait", "hopeless, and does not wait")
		s.seen["hopeless"]++
	case errors.Is(c.err, reservoir.ErrExceedsLimit):
		s.must(s.now != nil || s.plans != nil, "%d tokens are more than the limit", c.n)
		s.seen["over the limit"]++
	case errors.As(c.err, &failure):
		s.seen["failed"]++
	case errors.Is(c.err, context.Canceled):
		s.seen["cancelled"]++
		c.p.gone += c.n
	case errors.Is(c.err, context.DeadlineExceeded):
		s.seen["out of time"]++
		c.p.gone += c.n
	default:
		s.must(false, "an odd error: %v", c.err)
	}
}

// admit counts what was admitted: never more than the limit in a window, and never after the window's end.
func (s *sim) admit(c *simCaller) {
	r := c.r
	if c.what == "wait" {
		s.seen["waited"]++
	}
	s.seen["allowed from "+r.Source.String()]++
	s.seen["a part"] += btoi(c.what == "up to" && c.n > 1)
	if c.n > 1 && r.Source == reservoir.Local {
		s.seen["many from local"]++
	}
	s.must(r.RetryAfter == 0 && r.Remaining <= r.Limit, "%+v", r)
	none := r.Reset.IsZero() && c.p.limit.Rolls && s.most > 0 // what has lost its data counts nothing of a rolling limit, and what is held may still be spent
	s.must(none || c.at.Before(r.Reset.Add(s.behind)), "spent at %v, from %s, in a window that ended at %v", c.at, r.Source, r.Reset)
	s.notHeld(c)
	at := c.slot()
	fresh := s.fresh[news{c.p, at.key, at.counter}]
	s.must(at.Gen >= fresh, "process %d has spent of %s, from %s, of generation %d, and had heard before of a Reset of all before %d", c.p.who, stored(at.key), r.Source, at.Gen, fresh)
	c.p.admitted += c.n
	s.spend(c, at, c.n)
	s.won = append(s.won, c)
}

// notHeld: who has heard that a key is held admits nothing before the end.
func (s *sim) notHeld(c *simCaller) {
	for _, q := range s.quiet {
		if q.p == c.p && q.key == c.p.limit.inStore(c.key) && !s.freed[c.key] && !s.few && !(q.message && c.r.Source == reservoir.Fallback) {
			s.must(!c.at.After(q.from) || !c.at.Before(q.until), "process %d has spent of %s, from %s, at %v, and had heard before that it is held from %v to %v", c.p.who, stored(q.key), c.r.Source, c.at, q.from, q.until)
		}
	}
}

// hearRefund counts the tokens again that have not gone back. After an error they may
// have.
func (s *sim) hearRefund(c *simCaller) {
	switch {
	case c.r.Source == reservoir.Fallback:
	case c.err != nil:
		s.slack += c.n
		s.seen["refund unknown"]++
	default:
		c.at = c.spentAt
		s.spend(c, c.slot(), c.n-c.got)
		if !c.shared {
			c.p.back += c.got
		}
		if c.got > 0 {
			s.seen["refunded from "+c.r.Source.String()]++
		}
	}
}

// spend counts tokens as spent: of a window no more than the limit, and of a rolling limit no more in any interval, after each Reset.
func (s *sim) spend(c *simCaller, at slot, n int64) {
	limit, spent := c.limit(), int64(0)
	if limit.Rolls {
		s.rolls[at] = append(s.rolls[at], use{c.at, n})
		spent = s.worst(at, c.at, limit.Window)
	} else {
		s.spent[at] += n
		spent = s.spent[at]
	}
	if n > 0 {
		s.seen["all spent in an interval"] += btoi(limit.Rolls && spent == limit.Tokens)
		s.must(spent <= limit.Tokens*int64(1+s.losses), "of %s, counter %s, generation %d, %d tokens were spent, and the limit is %d; the store has lost its data %d times", stored(at.key), at.counter, at.Gen, spent, limit.Tokens, s.losses)
	}
}

func btoi(ok bool) int {
	if ok {
		return 1
	}
	return 0
}

// worst is the most that was spent in an interval of length that an instant is in. Callers are not heard in the order in which they returned.
func (s *sim) worst(at slot, in time.Time, length time.Duration) (most int64) {
	for _, u := range s.rolls[at] {
		if end := u.at; !end.Before(in) && end.Before(in.Add(length)) {
			most = max(most, s.between(at, end.Add(-length), end))
		}
	}
	return most
}

// between is what was spent after an instant, and not after another one.
func (s *sim) between(at slot, from, to time.Time) (n int64) {
	for _, u := range s.rolls[at] {
		if u.at.After(from) && !u.at.After(to) {
			n += u.n
		}
	}
	return n
}

// inspect looks at what each limiter tells of itself when all is at rest.
func (s *sim) inspect() {
	for _, p := range s.all {
		x := p.Stats()
		for _, n := range [][2]int64{
			{p.last.Taken, x.Taken}, {p.last.Refunded, x.Refunded}, {p.last.Spent, x.Spent}, {p.last.Returned, x.Returned},
			{p.last.Denied, x.Denied}, {p.last.StoreCalls, x.StoreCalls}, {p.last.Expired, x.Expired},
			{0, x.Held}, {0, x.Idle}, {0, x.Debt},
		} {
			s.must(n[0] <= n[1], "a count went back from %d to %d: %+v after %+v", n[0], n[1], x, p.last)
		}
		p.last = x
		s.seen["debt"] += int(min(x.Debt, 1))
	}
	for _, c := range s.callers {
		if c.what == "allow" || c.what == "handle" {
			s.must(time.Since(c.from) < 10*time.Second, "%s has had no answer since %v", c.what, c.from)
		}
	}
}

// calmDown heals the network: what is on it arrives, and from then on every call is
// answered at once.
func (s *sim) calmDown() {
	s.log("the network is calm")
	s.down.Store(false)
	s.seen["outage"] += s.net.Happened(testnet.Refuse)
	s.plan.Store(0)
	s.net.Deafen(nil)
	s.calm(func(c *testnet.Call) {
		if !c.Executed {
			s.execute(c)
		}
	})
	if s.now != nil {
		s.now.Store(s.limits[0].Tokens)
	}
	s.settle()
	s.inspect()
	if s.oneIn(2) || s.blurred && s.limits[0].Window > time.Hour { // a key that is looked at every 100 ms for a week takes seconds
		for _, c := range s.callers {
			c.cancel()
		}
		s.settle()
	}
}

// patience is how many windows callers may take to be served in, once the network
// works: as long as what they ask for is of the limit, and some.
func (s *sim) patience() (windows int) {
	for _, c := range s.callers {
		windows += 2 + int(c.n/c.p.limit.Tokens)*2
	}
	return windows + 6
}

// finish lets all callers return, closes all limiters and counts.
func (s *sim) finish() {
	longest := time.Duration(0)
	for _, l := range s.counted() {
		longest = max(longest, l.Window)
	}
	for i := s.patience(); len(s.callers) > 0; i-- {
		s.must(i > 0, "%d callers are stuck, the first of them: %s %d", len(s.callers), s.callers[0].what, s.callers[0].n)
		time.Sleep(longest + longest/1000 + time.Second)
		s.settle()
		s.inspect()
	}
	s.recover()
	for _, p := range s.all {
		s.balance(p)
		s.log("process %d: close", p.who)
		err := p.Close(context.Background())
		s.must(err == nil || p.ended, "close: %v", err)
		p.ended = true
		synctest.Wait()
		last := s.balance(p)
		s.must(last.Held == 0 && last.Taken+last.Refunded == last.Spent+last.Returned+last.Expired, "closed, and %+v", last)
		s.seenOf(last)
		s.slack += last.Unknown + last.Expired
	}
	for _, l := range s.counted() {
		for _, key := range s.keys {
			s.conserved(l, key)
		}
	}
	s.forgets(longest)
}

// recover lets the limiters notice that the store is back, which takes no traffic.
func (s *sim) recover() {
	for _, p := range s.all {
		if p.away.Load() && !p.ended {
			s.seen["away at the end"]++
			time.Sleep(3 * time.Second)
			s.must(!p.away.Load(), "the store is back, and it was not noticed")
		}
	}
}

// balance: what the limiter counts as spent and not refunded is what callers were told. A caller that has gone may have taken back
// what the failure policy had admitted it for.
func (s *sim) balance(p *process) reservoir.Stats {
	x := p.Stats()
	s.log("process %d has counted %+v", p.who, x)
	net := x.Spent - x.Refunded
	s.must(net >= p.admitted-p.asked-p.gone && net <= p.admitted+p.alone-p.back,
		"%d tokens spent, and callers were told %d, %d without the store; %d to %d went back", net, p.admitted, p.alone, p.back, p.asked)
	return x
}

// conserved: what the store has charged in the window that is open is what was spent of
// it, or more by calls of which nobody has heard.
func (s *sim) conserved(l named, key string) {
	all, err := s.net.Inspect(context.Background(), l.inStore(key))
	s.must(err == nil, "inspect: %v", err)
	i := slices.IndexFunc(all, func(c backend.Contents) bool { return c.Counter == l.counter() })
	if i < 0 || s.losses > 0 {
		return
	}
	c := all[i]
	if c.Window.End == 0 {
		return
	}
	spent, more := s.spent[slot{l.inStore(key), c.Counter, c.Window}], s.slack
	most := spent
	if l.Rolls {
		at, length := slot{l.inStore(key), c.Counter, backend.Window{Gen: c.Window.Gen}}, l.Window
		now := time.Now()
		spent, most = s.between(at, now.Add(-length), now), s.between(at, now.Add(-length*(backend.MaxChanges+1)/backend.Buckets), now)
		if s.steps { // its clock stood still
			s.blurred = true
		}
	}
	for _, p := range s.all {
		more += p.alone
	}
	s.must(c.Used >= spent, "of %s, counter %s, %d tokens are charged, and %d were spent", stored(l.inStore(key)), c.Counter, c.Used, spent)
	if s.blurred {
		return
	}
	s.must(c.Used <= most+more, "of %s, counter %s, %d tokens are charged that nobody has: %d are charged in all, %d were spent, and %d may be lost or were admitted without the store. By client: %+v",
		stored(l.inStore(key)), c.Counter, c.Used-most-more, c.Used, most, more, c.Clients)
	if more == 0 && c.Used > 0 {
		s.seen["exact"]++
	}
}

// forgets: when all that was spent is over, all of each limit is free again.
func (s *sim) forgets(longest time.Duration) {
	time.Sleep(2*longest + time.Second + s.holds)
	for _, l := range s.counted() {
		for _, key := range s.keys {
			state, err := s.net.Store().Check(context.Background(), l.inStore(key), backend.Limit(l.Limit))
			s.must(err == nil && state.Remaining == l.Tokens, "in the end %+v of %+v, %v", state, l, err)
		}
	}
}

// seenOf notes what a limiter has been through.
func (s *sim) seenOf(x reservoir.Stats) {
	for what, n := range map[string]int64{
		"prefetch": x.Prefetches, "probe": x.Probes, "give back": x.GiveBacks, "unknown": x.Unknown, "expired": x.Expired, "returned": x.Returned,
	} {
		s.seen[what] += int(min(n, 1))
	}
	windows := map[slot]int{}
	for at := range s.spent {
		if at.Window = (backend.Window{}); windows[at] > 0 {
			s.seen["rolled"]++
		}
		windows[at]++
	}
}
