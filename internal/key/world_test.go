package key

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing/synctest"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/breaker"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/demand"
	"github.com/go-reservoir/reservoir/internal/denial"
	"github.com/go-reservoir/reservoir/internal/ledger"
	"github.com/go-reservoir/reservoir/internal/naive"
)

// scope says what may happen, and how often at most.
type scope struct {
	limit  backend.Limit
	sizing demand.Policy
	direct bool
	deaf   bool // no messages come
	most   budget
	fault  fault
}

// fault is planted into the store, so that the judges are seen to judge.
type fault uint8

const (
	none     fault = iota
	noOrder        // a statement is obeyed though a later one was here
	generous       // a statement is granted a token more than it is charged
	greedy         // what goes back stays charged
)

// budget is how often something may still happen. asks are of each process.
type budget struct {
	asks, gives, refunds, debts, lost, late, mail, times, resets, idles, limits, outages, holds int8
	stays                                                                                       bool // callers may stay until they are served
}

// world is two processes, a store, and the network between them.
type world struct {
	*scope
	seed   uint64
	procs  [2]*proc
	store  [2]*counted // of the limit's length, and of another one
	calls  []*call
	late   []late // statements for which nobody waits, and which may still arrive
	mail   []ledger.Message
	now    int64 // ns
	left   [2]budget
	last   bool // nothing more happens but what comes by itself
	errors []error
}

// proc is a process.
type proc struct {
	env     *Env
	shard   *Shard
	limit   backend.Limit // of the key, now
	keys    []*Key        // in memory; the first may have left its counter
	callers []*caller     // in line
	spent   []spent
	served  int   // requests
	dying   bool  // the time of what some key holds is over, so it will expire
	expired int64 // tokens, because their time was over
	counted int64 // Counts.Expired, before
	deaf    bool
}

type caller struct {
	w    *waiter
	k    *Key
	n    int64
	stay bool
}

// spent are tokens that a request has used.
type spent struct {
	k  *Key
	w  *waiter // of a caller who stood in line, and may have left as it was served
	a  Answer
	at int64 // us
}

// call is a fetch in flight.
type call struct {
	who   int
	f     *Fetch
	sent  int64
	ran   bool
	reply backend.Reply
}

// late is a statement that k has given up, or a copy of one.
type late struct {
	q  backend.Statement
	k  *Key
	at int64 // when it was sent
}

func (p *proc) Hears(string) bool                   { return !p.deaf }
func (p *proc) Limit(string) (backend.Limit, error) { return p.limit, nil }
func (p *proc) Call(context.Context, *Fetch) error  { return nil } // the world makes it, when it is chosen

const timeout = 100 * time.Millisecond

// start is the store's time at the beginning, us.
const start = int64(1_000_000_000_000)

func (c *scope) begin(seed uint64) *world {
	w := &world{scope: c, seed: seed, left: [2]budget{c.most, c.most}}
	other := c.limit
	other.Window *= 3
	for i, l := range []backend.Limit{c.limit, other} {
		w.store[i] = &counted{limit: l, log: naive.Log{Limit: l.Tokens}, begins: make(map[backend.Window]int64), heard: make(map[*Key]int64), holds: make(map[*Key]int64)}
		if l.Rolls {
			w.store[i].log.Rolls, w.store[i].log.Linger = l.Window.Microseconds(), l.Window.Microseconds()/backend.Buckets*22
		}
	}
	for i := range w.procs {
		p := &proc{env: new(Env), limit: c.limit, deaf: c.deaf}
		s := Settings{Limit: c.limit, Client: string(rune('A' + i)), Sizing: c.sizing, Direct: c.direct, Timeout: timeout, Fallback: Policy{Mode: FailClosed}}
		p.env.Init(s, p, 1<<10)
		p.shard = p.env.Shard("")
		w.procs[i] = p
	}
	w.pass(int64(time.Second)) // a clock shows 0 only before anything happens
	return w
}

func (w *world) us() int64 { return start + w.now/1000 }

func (w *world) of(counter string) *counted {
	if w.store[0].limit.Counter() == counter {
		return w.store[0]
	}
	return w.store[1]
}

// kind is what happens.
type kind uint8

const (
	arrive kind = iota
	hear
	deliver
	arriveLate
	tick
	reopen
	visit
	wake
	pass
	loseStatement
	loseReply
	delay
	repeat
	overtake
	loseMail
	repeatMail
	askOne
	askTwo
	stayOne
	stayTwo
	giveUp
	refund
	overrun
	reset
	idle
	larger
	longer
	outage
	jump
	hold
	kinds
)

var kindNames = [kinds]string{
	"the statement arrives", "the reply comes", "the message comes", "the late statement arrives", "the timer fires", "the circuit closes", "visits", "time passes to a timer",
	"time passes", "the statement is lost", "the reply is lost", "the statement is late, and given up", "the statement arrives, and will again", "a copy of the statement arrives first",
	"the message is lost", "the message comes, and will again", "asks for 1", "asks for 2", "waits for 1", "waits for 2", "gives up", "refunds", "uses one more", "Reset", "goes idle",
	"has another number of tokens", "has another length", "the circuit opens", "the window ends", "holds the key",
}

// itself reports whether it happens by itself sooner or later.
func (k kind) itself() bool { return k < pass }

// action is a step of the world. n is which call, message, caller or key it is about.
type action struct {
	kind   kind
	who, n int8
}

// actions is what may happen now: what comes by itself, in its order, and then anything else.
func (w *world) actions() (to []action) {
	may := func(when bool, k kind, who, n int) {
		if when {
			to = append(to, action{k, int8(who), int8(n)})
		}
	}
	waits, active, kept, open, next := false, -1, -1, -1, w.timer()
	for i, c := range w.calls {
		may(!c.ran, arrive, c.who, i)
		may(c.ran, hear, c.who, i)
	}
	for i := range w.mail {
		may(true, deliver, 0, i)
	}
	for i := range w.late {
		may(true, arriveLate, 0, i)
	}
	for i, p := range w.procs {
		waits = waits || len(p.callers) > 0
		if len(p.keys) > 0 {
			kept = i
		}
		if p.shard.Open.Load() {
			open = i
		}
		for j, k := range p.keys {
			may(k.use != nil && k.use.due != 0 && w.now >= k.use.due, tick, i, j)
			if k.phase < leaving && active < 0 && !(k.use != nil && k.use.hold.unsaid != 0) { // or it stays
				active = i
			}
		}
	}
	if len(to) == 0 {
		switch {
		case open >= 0:
			may(true, reopen, open, 0)
		case waits:
			may(next != 0, wake, 0, 0)
		case active >= 0:
			may(true, visit, active, 0)
		case next != 0:
			may(true, wake, 0, 0)
		default: // the limiter visits idle keys again and again
			may(kept >= 0, visit, kept, 0)
		}
	}
	if w.last {
		return to[:min(len(to), 1)]
	}
	for i, c := range w.calls {
		left := w.left[0]
		may(left.lost > 0 && !c.ran, loseStatement, c.who, i)
		may(left.lost > 0 && c.ran, loseReply, c.who, i)
		may(left.late > 0 && !c.ran, delay, c.who, i)
		may(left.late > 0 && !c.ran, repeat, c.who, i)
		may(left.late > 0 && !c.ran, overtake, c.who, i)
	}
	for i := range w.mail {
		may(w.left[0].mail > 0, loseMail, 0, i)
		may(w.left[0].mail > 0, repeatMail, 0, i)
	}
	for i, p := range w.procs {
		left := w.left[i]
		for n := range min(2, p.limit.Tokens) {
			may(left.asks > 0, askOne+kind(n), i, 0)
			may(left.asks > 0 && left.stays, stayOne+kind(n), i, 0)
		}
		for j := range p.callers {
			may(left.gives > 0, giveUp, i, j)
		}
		may(left.refunds > 0 && len(p.spent) > 0, refund, i, 0)
		may(left.debts > 0 && len(p.keys) > 0, overrun, i, 0)
		may(left.idles > 0 && slices.ContainsFunc(p.keys, func(k *Key) bool { return k.phase < leaving }), idle, i, 0)
		may(left.limits > 0, larger, i, 0)
		may(left.limits > 0, longer, i, 0)
		may(left.outages > 0 && !p.shard.Open.Load(), outage, i, 0)
		may(left.holds > 0 && p.env.Find("k") != nil, hold, i, 0)
	}
	may(w.left[0].resets > 0, reset, 0, 0)
	if w.left[0].times > 0 {
		may(w.instant() > w.now, pass, 0, 0)
		may(len(w.calls)+len(w.mail) > 0 || kept >= 0, jump, 0, 0)
	}
	return to[:min(len(to), 64)]
}

// timer is when the next timer fires, 0 if none is set.
func (w *world) timer() (at int64) {
	for _, p := range w.procs {
		for _, k := range p.keys {
			if k.use != nil && k.use.due != 0 && (at == 0 || k.use.due < at) {
				at = k.use.due
			}
		}
	}
	return at
}

// instant is the next one at which something may change. No call lasts for longer than its timeout.
func (w *world) instant() int64 {
	at := int64(math.MaxInt64)
	at2 := func(t int64) {
		if t > w.now && t < at {
			at = t
		}
	}
	for _, p := range w.procs {
		for _, k := range p.keys {
			if k.use != nil && k.use.due != 0 {
				if at2(k.use.due); w.now >= k.use.due {
					return 0 // it fires first
				}
			}
			if l := k.Lease.Load(); l != nil {
				at2(l.Deadline.Load())
				at2(l.Latest + 1)
			}
			if k.use != nil && k.use.denial.State == denial.Held {
				at2(k.use.denial.Until)
			}
		}
	}
	for _, c := range w.calls {
		if w.now >= c.sent+int64(timeout) {
			return 0
		}
		at2(c.sent + int64(time.Millisecond))
		at2(c.sent + int64(timeout))
	}
	for _, s := range w.store {
		at2(w.now + int64(s.counter.Check(s.limit, w.us()).Left))
	}
	if at == math.MaxInt64 {
		return 0
	}
	return at
}

// pass lets time pass. What is random depends on the time.
func (w *world) pass(to int64) {
	for _, p := range w.procs {
		p.env.Clock.Pass(time.Duration(to - w.now))
	}
	w.now = to
	chance.Seed(w.seed + uint64(to))
	for _, s := range w.store {
		s.log.List = slices.DeleteFunc(s.log.List, func(t naive.Tokens) bool { return s.over(t.Window, t.At, w.us()) })
	}
}

// do lets a happen.
func (w *world) do(a action) error {
	i, n, left := int(a.who), int(a.n), &w.left[a.who]
	p := w.procs[i]
	for _, p := range w.procs {
		p.counted = p.env.Counts.Expired.Load()
		p.dying = slices.ContainsFunc(p.keys, func(k *Key) bool { return k.Lease.Load() != nil && !k.Lease.Load().Alive(w.now) })
	}
	switch a.kind {
	case arrive, repeat, overtake, delay:
		c := w.calls[n]
		if a.kind != arrive {
			w.left[0].late--
		}
		switch a.kind {
		case delay:
			w.late = append(w.late, late{c.f.Req, c.f.k, c.sent})
			w.fail(n)
		case overtake:
			w.sync(c.f.Req)
		default:
			c.ran, c.reply = true, w.sync(c.f.Req)
			if a.kind == repeat {
				w.late = append(w.late, late{c.f.Req, c.f.k, c.sent})
			}
		}
	case hear:
		c := w.calls[n]
		w.calls = slices.Delete(w.calls, n, n+1)
		w.answers(p)
		if s := w.of(c.f.Req.Limit.Counter()); c.reply.Held > 0 && c.reply.Window.Gen >= s.kept {
			s.holds[c.f.k] = max(s.holds[c.f.k], c.reply.Now+c.reply.Held.Microseconds())
		}
		c.f.Shard.ObserveLead(time.Duration(w.now - c.f.Ordered))
		_ = c.f.End(Trip{Sent: c.sent, End: w.now}, c.reply, nil)
	case loseStatement, loseReply:
		w.left[0].lost--
		w.fail(n)
	case arriveLate:
		l := w.late[n]
		w.late = slices.Delete(w.late, n, n+1)
		r := w.sync(l.q)
		states := l.k.phase != retired && l.k.replyLost && w.now-l.at < int64(l.q.Limit.Window) // by the next statement, or the one that is on its way
		for _, c := range w.calls {
			if c.f.k == l.k {
				states = !c.ran
			}
		}
		if s := w.of(l.q.Limit.Counter()); !r.Void && !states {
			s.stays = true
		}
	case deliver, repeatMail, loseMail:
		m := w.mail[n]
		if a.kind != deliver {
			w.left[0].mail--
		}
		if a.kind != repeatMail {
			w.mail = slices.Delete(w.mail, n, n+1)
		}
		if a.kind != loseMail {
			for _, p := range w.procs {
				if k := p.env.Find("k"); k != nil && !p.deaf && p.env.Client == m.Process {
					switch s := w.of(m.Counter); {
					case m.Counter != k.Limit.Load().Counter():
					case m.Kind == backend.Voided:
						s.heard[k] = m.Window.Gen + 1
						delete(s.holds, k) // until it has asked: nobody knows which was first
					case m.Kind == backend.Held && m.Window.Gen >= s.kept:
						s.holds[k] = max(s.holds[k], m.Window.End*1000)
					}
					k.Hear(m.Message)
				}
			}
		}
	case tick:
		p.keys[n].tick()
	case reopen:
		w.answers(p)
	case outage:
		left.outages--
		for !p.shard.Open.Load() {
			p.shard.Record(w.now, w.now, breaker.Failed, errLost)
		}
	case visit, idle:
		if a.kind == idle {
			left.idles--
		}
		w.visit(p)
	case wake, pass:
		to := w.instant()
		if a.kind == wake {
			to = w.timer()
		}
		if w.left[0].times--; w.left[0].times < 0 {
			w.left[0].times, w.last = 0, true
		}
		w.pass(to)
	case jump:
		if w.left[0].times--; w.left[0].times < 0 {
			w.left[0].times, w.last = 0, true
		}
		end := w.now + int64(time.Millisecond)
		for _, s := range w.store {
			if left := int64(s.counter.Check(s.limit, w.us()).Left); left > 0 {
				end = max(end, w.now+left+int64(time.Millisecond))
				break
			}
		}
		w.pass(end)
	case askOne, askTwo, stayOne, stayTwo:
		left.asks--
		stay := a.kind >= stayOne
		w.ask(i, int64(a.kind-askOne)%2+1, stay)
	case giveUp:
		left.gives--
		c := p.callers[n]
		p.callers = slices.Delete(p.callers, n, n+1)
		c.k.cancel(c.w)
	case refund:
		left.refunds--
		w.refund(i)
	case overrun:
		left.debts--
		w.overrun(i)
	case hold:
		left.holds--
		d := 3 * time.Second // beyond the window
		if left.holds > 0 {
			d = 300 * time.Millisecond
		}
		w.hold(i, d)
	case reset:
		w.left[0].resets--
		w.reset(p.limit)
	case larger:
		left.limits--
		if p.limit.Tokens++; p.limit.Tokens > w.limit.Tokens+1 {
			p.limit.Tokens = w.limit.Tokens - 1
		}
		w.relimit(p)
	case longer:
		left.limits--
		p.limit.Window = w.store[0].limit.Window + w.store[1].limit.Window - p.limit.Window
		w.relimit(p)
	}
	return w.collect()
}

// answers ends an outage, if there is one.
func (w *world) answers(p *proc) {
	if p.shard.Open.Load() {
		p.shard.Record(w.now, w.now, breaker.Answered, nil)
		p.shard.Resume()
		synctest.Wait()
	}
}

func (w *world) visit(p *proc) {
	for _, k := range slices.Clone(p.keys) {
		k.Visit()
		k.Visit()
	}
}

// sync lets a statement arrive.
func (w *world) sync(q backend.Statement) backend.Reply {
	if err := q.Validate(); err != nil {
		w.errors = append(w.errors, err)
	}
	s := w.of(q.Limit.Counter())
	s.sent++
	back := min(q.Change, 0)
	switch w.fault {
	case noOrder:
		q.Life, q.Seq = 1, s.sent
	case greedy:
		q.Change -= back
	}
	r, messages := s.counter.Sync(q, w.us())
	if !r.Void && !r.Astray && q.Hold > 0 { // it rounds up to a millisecond
		s.held = max(s.held, w.us()+q.Hold.Microseconds(), w.us()+s.counter.Check(s.limit, w.us()).Held.Microseconds())
		s.longest = max(s.longest, s.held)
	}
	if s.held > w.us() && r.Grant > 0 {
		w.errors = append(w.errors, errors.New("a grant while the limit is held"))
	}
	switch {
	case w.fault == greedy:
		r.Mine += back
	case w.fault == generous && r.Grant > 0:
		r.Grant++
		r.Mine++
	}
	if _, known := s.begins[r.Window]; !known {
		s.begins[r.Window] = w.us()
	}
	for _, m := range messages {
		m.Key, m.Counter = "k", q.Limit.Counter()
		for _, p := range w.procs {
			if to := m; m.Process == p.env.Client || m.Process == "" {
				to.Process = p.env.Client
				w.mail = append(w.mail, to)
			}
		}
	}
	return r
}

func (w *world) fail(n int) {
	c := w.calls[n]
	w.calls = slices.Delete(w.calls, n, n+1)
	again := c.f.k.use.pause == 0 // the first in a row: its callers get the next
	_ = c.f.End(Trip{Sent: c.sent, End: w.now}, backend.Reply{}, errLost)
	for _, other := range w.procs[c.who].callers {
		if !again && other.k == c.f.k && !other.stay && other.w.InLine && other.w.Seq <= c.f.last {
			w.errors = append(w.errors, errors.New("a caller waits on, though the call for it has failed"))
		}
	}
}

var errLost = &backend.Error{Op: "sync", Class: backend.Unknown, Err: errors.New("lost")}

func (w *world) reset(l backend.Limit) {
	s := w.of(l.Counter())
	s.log.Resets = append(s.log.Resets, w.us())
	void, _ := s.counter.Reset(l, w.us())
	s.kept, s.held = void.Gen+1, 0
	clear(s.holds)
	for _, p := range w.procs {
		w.mail = append(w.mail, ledger.Message{Process: p.env.Client, Message: backend.Message{Kind: backend.Voided, Key: "k", Counter: l.Counter(), Window: void}})
	}
}

// hold holds the key of a process, which does not wait until the store has heard.
func (w *world) hold(who int, d time.Duration) {
	k := w.procs[who].env.Find("k")
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if forgotten, _ := k.Hold(gone, d); forgotten {
		return
	}
	s := w.of(k.Limit.Load().Counter())
	s.holds[k] = max(s.holds[k], w.us()+d.Microseconds())
	s.longest = max(s.longest, s.holds[k])
}

func (w *world) relimit(p *proc) {
	s := w.of(p.limit.Counter())
	s.log.Limit = max(s.log.Limit, p.limit.Tokens)
	if k := p.env.Find("k"); k != nil {
		k.Relimit(p.limit, Told, nil)
	}
}

// ask is a request, as the limiter makes it.
func (w *world) ask(who int, n int64, stay bool) {
	p := w.procs[who]
	for range 4 {
		k := p.env.Make("k", p.limit)
		if !slices.Contains(p.keys, k) {
			if s := w.of(k.Limit.Load().Counter()); slices.ContainsFunc(p.keys, func(other *Key) bool { return SameCounter(other.Limit.Load(), k.Limit.Load()) }) {
				s.stays = true
			}
			p.keys = append(p.keys, k)
		}
		if lease := k.Lease.Load(); !stay && lease.Alive(w.now) {
			if left, ok := lease.Spend(n); ok {
				if n > 1 {
					k.Used(n)
				}
				k.OrderIfLow(lease, left)
				w.admitted(p, k, nil, n, Answer{Allowed: true, Of: lease.Window, Bucket: lease.Bucket, Charged: n})
				return
			}
			if n <= k.Limit.Load().Tokens && lease.Denies(n, w.now) {
				k.Refusals.Add(1)
				w.refused(k, lease.Window)
				return
			}
		}
		c, v := k.decide(context.Background(), Ask{N: n, Stays: stay}, true)
		if v.Next == wait {
			p.callers = append(p.callers, &caller{c, k, n, stay})
			return
		}
		if v.Next != StartOver {
			w.answered(p, k, nil, n, stay, v)
			return
		}
		w.gone(p)
	}
	w.errors = append(w.errors, errors.New("a request starts over again and again"))
}

// refund refunds what was spent last. Tokens that have expired stay spent.
func (w *world) refund(who int) {
	p := w.procs[who]
	last := p.spent[len(p.spent)-1]
	p.spent = p.spent[:len(p.spent)-1]
	was, c := p.env.Counts.Expired.Load(), chargeOf(last.a)
	if last.w != nil {
		last.k.cancel(last.w)
	} else {
		last.k.Refund(c, c.Tokens)
	}
	back := c.Tokens - (p.env.Counts.Expired.Load() - was)
	s := w.of(last.k.Limit.Load().Counter())
	name := s.name(last.a.Of)
	if s.over(name, last.at, w.us()) {
		return
	}
	err := s.log.Refund(last.at, who, name, back)
	if err == nil {
		err = s.log.Return(who, name, back)
	}
	if err != nil {
		w.errors = append(w.errors, err)
	}
}

// overrun is a token that a request uses above its charge: from the stock, or it is declared, or overdrawn if no window is open.
func (w *world) overrun(who int) {
	p := w.procs[who]
	k := p.keys[0]
	s, was, over := w.of(k.Limit.Load().Counter()), k.Spent(), p.env.Counts.Overdrawn.Load()
	name := naive.Window{}
	if lease := k.Lease.Load(); lease != nil {
		name = s.name(lease.Window)
	}
	k.Overrun(1)
	switch {
	case k.Spent() > was:
		s.log.Grant(who, name, 1)
		if err := s.log.Spend(w.us(), who, name, 1); err != nil {
			w.errors = append(w.errors, err)
		}
	case p.env.Counts.Overdrawn.Load() == over:
		s.log.Declare(w.us(), who, name, 1)
		s.stays = s.stays || k.Limit.Load().Rolls
	}
}

// collect takes what the keys have ordered and answered.
func (w *world) collect() error {
	for i, p := range w.procs {
		for j := 0; j < len(p.callers); j++ {
			c := p.callers[j]
			if c.w.InLine {
				continue
			}
			p.callers = slices.Delete(p.callers, j, j+1)
			j--
			if v := c.w.Outcome; v.Next == StartOver {
				w.ask(i, c.n, c.stay)
			} else {
				w.answered(p, c.k, c.w, c.n, c.stay, v)
			}
		}
		for _, k := range p.keys {
			if k.use == nil || k.use.fetch == nil || slices.ContainsFunc(w.calls, func(c *call) bool { return c.f == k.use.fetch }) {
				continue
			}
			w.calls = append(w.calls, &call{who: i, f: k.use.fetch, sent: w.now})
		}
		if p.dying {
			p.expired += p.env.Counts.Expired.Load() - p.counted
		}
		w.gone(p)
	}
	return errors.Join(w.errors...)
}

// gone forgets keys that are forgotten.
func (w *world) gone(p *proc) {
	for _, k := range p.keys {
		if s := w.of(k.Limit.Load().Counter()); k.phase == retired && s.holds[k] > max(s.held, w.us()) {
			w.errors = append(w.errors, errors.New("a key is forgotten, and the store has not heard of its hold"))
		}
	}
	p.keys = slices.DeleteFunc(p.keys, func(k *Key) bool { return k.phase == retired })
}

// text says what a is.
func (w *world) text(a action) string {
	who := string(rune('A' + a.who))
	switch a.kind {
	case deliver, arriveLate, wake, pass, jump, reset, loseMail, repeatMail:
		who = ""
	}
	text := fmt.Sprintf("%v %s %s", time.Duration(w.now), who, kindNames[a.kind])
	switch a.kind {
	case arrive, loseStatement, delay, repeat, overtake:
		q := &w.calls[a.n].f.Req
		text += fmt.Sprintf(" (%s, number %d of life %d: window %v, mine %d, change %d %v, want %d, need %d)", w.calls[a.n].f.Cause, q.Seq, q.Life, q.Window, q.Mine, q.Change, q.Changes, q.Want, q.Need)
	case hear, loseReply:
		r := &w.calls[a.n].reply
		text += fmt.Sprintf(" (void %v, window %v, granted %d, mine %d, left %d, idle %d, called %d)", r.Void, r.Window, r.Grant, r.Mine, r.Remaining, r.Idle, r.Called)
	case deliver, loseMail, repeatMail:
		m := w.mail[a.n]
		text += fmt.Sprintf(" (to %s: kind %d, window %v)", m.Process, m.Kind, m.Window)
	}
	return text
}
