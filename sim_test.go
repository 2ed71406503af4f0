package reservoir

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/go-reservoir/reservoir/backend/memstore"
)

// sim is the run of one seed: a few limiters share a store over a wire, and what
// happens next is drawn by one goroutine, which lets everything come to rest
// before it draws again. So a run is the same each time: of all goroutines that
// a step wakes, none does anything that another one's work depends on.
type sim struct {
	rnd     *rand.Rand
	wire    *wire
	limit   Limit
	keys    []string
	all     []*process
	callers []*caller // under way
	won     []*caller // whose tokens may be refunded
	spent   map[slot]int64
	slack   int64         // tokens that may be charged though nobody has them: of calls that nobody heard of
	blurred bool          // more such tokens, nobody knows how many
	lossy   bool          // the store may lose its data
	now     *atomic.Int64 // tokens that WithLimits says; nil = there is none
	seen    tally
	say     func(format string, args ...any) // nil = quiet
	bug     func(s *sim)                     // a deliberate one, after each step
}

// process is one limiter and what its callers were told.
type process struct {
	*Limiter
	port     *port
	admitted int64 // tokens, those without the store not counted
	alone    int64 // tokens admitted without the store
	ended    bool  // Close was called
}

// slot is a window of a key.
type slot struct {
	key string
	end int64
}

// caller is one call of a limiter, in a goroutine of its own.
type caller struct {
	what   string
	p      *process
	key    string
	n      int64
	cancel context.CancelFunc
	at     time.Time // when it returned
	r      Result
	err    error
	done   atomic.Bool
}

func (c *caller) slot() slot { return slot{c.key, c.r.Reset.UnixMilli()} }

// tally counts what was seen, so that a test knows that it has been everywhere.
type tally map[string]int

// breach is the panic of a law that does not hold.
type breach string

func (s *sim) must(ok bool, format string, args ...any) {
	if !ok {
		panic(breach(fmt.Sprintf(format, args...)))
	}
}

func (s *sim) log(format string, args ...any) {
	if s.say != nil {
		s.say("%s "+format, append([]any{time.Now().Format("15:04:05.000000")}, args...)...)
	}
}

func pickOf[T any](s *sim, list ...T) T { return list[s.rnd.IntN(len(list))] }

func (s *sim) oneIn(n int) bool { return s.rnd.IntN(n) == 0 }

// newSim draws the set-up of a seed. The store is shared with other seeds, which
// have other keys.
func newSim(seed uint64, store *memstore.Store, seen tally) *sim {
	s := &sim{
		rnd: rand.New(rand.NewPCG(seed, 0x5eed)), wire: newWire(store),
		spent: map[slot]int64{}, seen: seen,
	}
	s.wire.log = s.log
	s.limit = Limit{
		Tokens: pickOf[int64](s, 1, 3, 10, 60, 1000, 20_000),
		Window: pickOf(s, 50*time.Millisecond, time.Second, time.Second, time.Hour),
	}
	s.lossy = s.oneIn(5)
	for i := range 1 + s.rnd.IntN(2) {
		s.keys = append(s.keys, fmt.Sprintf("%d:%d", seed, i))
	}
	opts := s.options()
	for i := range 1 + s.rnd.IntN(3) {
		s.start(i, opts)
	}
	return s
}

func (s *sim) options() []Option {
	opts := []Option{
		WithBatch(pickOf(s, Adaptive(1, 0), Adaptive(1, 0), Fixed(1), Fixed(10), Ladder(1, 50))),
		WithStranding(pickOf(s, 0, 0.01, 0.01, 0.3)),
		WithFailure(pickOf(s, FailClosed, FailClosed, FailLocal(0.5), FailOpen)),
	}
	if s.oneIn(6) {
		opts = append(opts, WithDirect())
	}
	if s.oneIn(6) { // what is evicted while the network is bad may be lost
		opts = append(opts, WithIdle(s.limit.Window/4+100*time.Millisecond))
		s.blurred = true
	} else {
		opts = append(opts, WithIdle(apart))
	}
	if s.oneIn(6) {
		s.now = new(atomic.Int64)
		s.now.Store(s.limit.Tokens)
		opts = append(opts, WithLimits(func(string) Limit { return Limit{Tokens: s.now.Load(), Window: s.limit.Window} }))
	}
	if s.oneIn(12) {
		opts = append(opts, WithMaxKeys(s.rnd.IntN(2)))
	}
	return opts
}

// start adds a process. Calls over its port end a little before the caller's own
// time-out, or after it: by whole nanoseconds, other ones for each process.
func (s *sim) start(i int, opts []Option) {
	skew := time.Duration(i + 1)
	if s.oneIn(2) {
		skew = -skew
	}
	p := &port{wire: s.wire, who: i, skew: skew}
	l, err := New(p, s.limit, opts...)
	s.must(err == nil, "%v", err)
	s.all = append(s.all, &process{Limiter: l, port: p})
}

// run makes the steps, and then ends all calls and all limiters in good order.
func (s *sim) run() {
	for range 15 + s.rnd.IntN(35) {
		s.step()
		s.settle()
		if s.bug != nil {
			s.bug(s)
		}
		s.inspect()
	}
	s.calmDown()
	s.finish()
}

func (s *sim) step() {
	switch k := s.rnd.IntN(100); {
	case k < 2:
		s.burst()
	case k < 38:
		s.call()
	case k < 64:
		s.deliver()
	case k < 70:
		s.lose()
	case k < 74:
		s.twice()
	case k < 90:
		s.sleep()
	case k < 94:
		s.cancel()
	case k < 97:
		s.refund()
	case k < 98:
		s.relimit()
	case k < 99:
		s.forget()
	default:
		s.end()
	}
}

// burst is traffic of one process, fast enough for batches, one after the other.
func (s *sim) burst() {
	p, key := pickOf(s, s.all...), pickOf(s, s.keys...)
	for range 4 + s.rnd.IntN(20) {
		ctx, cancel := context.WithCancel(context.Background())
		c := &caller{p: p, key: key, n: 1, what: "allow", cancel: cancel}
		s.launch(c, func() { c.r, c.err = c.do(ctx) })
		s.settle()
		s.deliver()
		time.Sleep(time.Duration(s.rnd.Int64N(int64(s.limit.Window/50))) | 1)
	}
}

// relimit changes the limit, never to more than it was at first.
func (s *sim) relimit() {
	if s.now != nil {
		s.seen["another limit"]++
		s.now.Store(1 + s.rnd.Int64N(s.limit.Tokens))
		s.log("the limit is %d", s.now.Load())
	}
}

// call starts a caller.
func (s *sim) call() {
	c := &caller{p: s.all[s.rnd.IntN(len(s.all))], key: pickOf(s, s.keys...), n: s.tokens()}
	ctx, cancel := context.WithCancel(context.Background())
	if s.oneIn(5) {
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), s.pause())
	}
	c.cancel = cancel
	c.what = pickOf(s, "allow", "allow", "allow", "allow", "allow", "handle", "wait", "wait", "check")
	s.log("process %d: %s %s %d", c.p.port.who, c.what, c.key, c.n)
	s.launch(c, func() { c.r, c.err = c.do(ctx) })
}

func (s *sim) launch(c *caller, f func()) {
	s.callers = append(s.callers, c)
	go func() {
		f()
		c.at = time.Now()
		c.cancel()
		c.done.Store(true)
	}()
}

func (c *caller) do(ctx context.Context) (r Result, err error) {
	switch c.what {
	case "wait":
		r, _, err = c.p.acquire(ctx, c.key, c.n, true)
	case "handle":
		return c.p.Key(c.key).AllowN(ctx, c.n)
	case "check":
		return c.p.Check(ctx, c.key)
	default:
		return c.p.AllowN(ctx, c.key, c.n)
	}
	return r, err
}

func (s *sim) tokens() int64 {
	most := pickOf(s, 1, 1, 4, 4, s.limit.Tokens/2, s.limit.Tokens)
	return 1 + s.rnd.Int64N(min(max(most, 1), s.limit.Tokens))
}

// deliver has the store execute a call, or brings a reply, or both.
func (s *sim) deliver() {
	s.wire.mu.Lock()
	defer s.wire.mu.Unlock()
	m := s.wire.pick(s.rnd.IntN(1 << 20))
	if m == nil {
		return
	}
	both := !s.oneIn(3)
	if !m.done {
		s.execute(m)
		if !m.ghost && !both {
			return
		}
	}
	s.log("answer %d: %s %s", m.who, m.op, m.key)
	s.wire.answer(m)
}

// execute has the store do what m says, if it is not too late for that.
func (s *sim) execute(m *letter) {
	if m.late() {
		s.seen["too late"]++
		m.done = true
		return
	}
	s.wire.execute(m)
	s.log("execute %d: %s %s ghost=%v %+v %v", m.who, m.op, m.key, m.ghost, m.last, m.err)
	if m.ghost {
		s.seen["late call"]++
		if m.copied || s.all[m.who].ended {
			s.slack += m.charged
		}
	}
}

// lose loses a request or a reply. A connection may break while the request goes
// on its way.
func (s *sim) lose() {
	s.wire.mu.Lock()
	defer s.wire.mu.Unlock()
	m := s.wire.pick(s.rnd.IntN(1 << 20))
	if m == nil {
		return
	}
	switch {
	case m.done:
		s.seen["lost reply"]++
		m.err = errLost
	case s.oneIn(4):
		s.seen["refused"]++
		m.err = errLoading
	case s.oneIn(2):
		s.seen["lost request"]++
		m.err = errLost
	default:
		s.seen["cut"]++
		s.wire.mail = append(s.wire.mail, m.twin(false))
		m.err = errLost
	}
	s.log("lose %d: %s %v", m.who, m.op, m.err)
	s.wire.answer(m)
}

// twice puts a statement on the wire once more. Takes and refunds are never sent
// again by a store.
func (s *sim) twice() {
	s.wire.mu.Lock()
	defer s.wire.mu.Unlock()
	if m := s.wire.pick(s.rnd.IntN(1 << 20)); m != nil && m.op == "sync" {
		s.seen["repeated"]++
		s.wire.mail = append(s.wire.mail, m.twin(true))
	}
}

// sleep lets time pass: none, or some of a call's time, or of a window.
func (s *sim) sleep() { time.Sleep(s.pause()) }

func (s *sim) pause() time.Duration {
	d := pickOf(s, time.Millisecond, 10*time.Millisecond, 110*time.Millisecond, 600*time.Millisecond,
		s.limit.Window/60, s.limit.Window/3, s.limit.Window+s.limit.Window/100)
	return d/2 + time.Duration(s.rnd.Int64N(int64(d))) | 1
}

func (s *sim) cancel() {
	if len(s.callers) > 0 {
		c := pickOf(s, s.callers...)
		s.log("cancel %s of %d", c.what, c.p.port.who)
		c.cancel()
	}
}

// refund gives back what a caller was admitted for.
func (s *sim) refund() {
	if len(s.won) == 0 {
		return
	}
	i := s.rnd.IntN(len(s.won))
	c := s.won[i]
	s.won = append(s.won[:i], s.won[i+1:]...)
	s.log("refund %d to %d", c.r.charged, c.p.port.who)
	if c.r.Source != Fallback { // from now on others may spend them
		s.spent[c.slot()] -= c.r.charged
	}
	before := c.p.count.refunded.Load()
	back := &caller{what: "refund", p: c.p, key: c.key, r: c.r, cancel: func() {}}
	s.launch(back, func() {
		back.err = c.p.Refund(context.Background(), c.key, c.r)
		back.n = min(c.p.count.refunded.Load()-before, c.r.charged)
	})
}

// forget makes the store lose its data.
func (s *sim) forget() {
	if s.lossy && s.wire.losses < 2 {
		s.seen["lost data"]++
		s.log("the store loses its data")
		s.wire.mu.Lock()
		s.wire.losses++
		s.wire.mu.Unlock()
	}
}

// end closes a limiter in the midst of all.
func (s *sim) end() {
	p := pickOf(s, s.all...)
	if p.ended || s.oneIn(2) {
		return
	}
	p.ended = true
	s.seen["closed under way"]++
	s.log("close %d", p.port.who)
	c := &caller{what: "close", p: p, cancel: func() {}}
	s.launch(c, func() { c.err = p.Close(context.Background()) })
}

// settle waits until everything is at rest and hears who has returned.
func (s *sim) settle() {
	synctest.Wait()
	still := s.callers[:0]
	for _, c := range s.callers {
		if c.done.Load() {
			s.hear(c)
		} else {
			still = append(still, c)
		}
	}
	s.callers = still
}
