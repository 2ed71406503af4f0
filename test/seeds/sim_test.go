package seeds

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// sim is the run of one seed: a few limiters share a store over a network, and what
// happens next is drawn by one goroutine, which lets everything come to rest before it
// draws again. So a run is the same each time: of all goroutines that a step wakes,
// none does anything that another one's work depends on.
type sim struct {
	rnd     *rand.Rand
	net     *testnet.Network // on which a call moves when a step moves it
	limits  []named
	plans   []named      // that WithLimits gives keys in turn, the first at the end; nil = none
	plan    atomic.Int64 // which of them
	keys    []string
	all     []*process
	callers []*simCaller // under way
	won     []*simCaller // whose tokens may be refunded
	spent   map[slot]int64
	rolls   map[slot][]use  // of rolling limits, by generation
	slack   int64           // tokens that may be charged though nobody has them: of calls that nobody heard of
	blurred bool            // more such tokens, nobody knows how many
	losses  int             // how often the store has lost its data
	most    int             // how often it may
	down    atomic.Bool     // the store turns all calls away
	behind  time.Duration   // by which the store's clock was set back
	steps   bool            // it is
	now     *atomic.Int64   // tokens that WithLimits says; nil = there is none
	quiet   []quiet         // in which some process admits nothing
	holds   time.Duration   // the longest
	few     bool            // keys have no room, so that nothing is known of them between two calls
	freed   map[string]bool // keys that were reset, so that it is not known which of their holds last
	mail    []letter        // messages that were heard since all was at rest; the network's lock guards it
	resets  map[slot]bool   // the generations that a Reset has voided, by slots without an end
	fresh   map[news]int64  // the first generation that a process may still spend, as it has heard
	seen    tally
	say     func(format string, args ...any) // nil = quiet
}

// quiet is a time in which a process admits nothing of a key, because it is held and the process has heard so.
type quiet struct {
	p           *process
	key         string // what the store calls it
	from, until time.Time
	message     bool // it has heard that by a message only, which may be false, so its failure policy may still admit
}

// letter is a message that a process has heard.
type letter struct {
	p *process
	backend.Message
}

// news is a counter of which a process has heard news.
type news struct {
	p            *process
	key, counter string // what the store calls them
}

// use is what was spent at one instant; less than nothing, if it came back later.
type use struct {
	at time.Time
	n  int64
}

// named is one of the limits that count the same keys. The name is that of WithName. What
// takes a part of a window takes that part of span: of a day the last minute is played.
type named struct {
	reservoir.Limit
	name string
	span time.Duration
}

// inStore is what the store knows as key.
func (l named) inStore(key string) string {
	if l.name != "" {
		key = l.name + "\x1f" + key
	}
	return key
}

// process is one limiter and what its callers were told.
type process struct {
	*reservoir.Limiter
	limit    named
	plans    []named // if it may be another one; see sim
	who      int
	admitted int64        // tokens, those without the store not counted
	alone    int64        // tokens admitted without the store
	asked    int64        // tokens that refunds were to give back
	back     int64        // of these, what surely went back
	gone     int64        // tokens of callers that left before they were answered
	ended    bool         // Close was called
	away     atomic.Bool  // the circuit of the store is open
	begun    atomic.Int64 // refunds
	over     atomic.Int64 // refunds that have returned
	last     reservoir.Stats
}

// counter is what the store calls it.
func (l named) counter() string { return backend.Limit(l.Limit).Counter() }

// slot is a window of a counter in the store.
type slot struct {
	key, counter string
	backend.Window
}

// simCaller is one call of a limiter, in a goroutine of its own.
type simCaller struct {
	what    string
	p       *process
	key     string
	n       int64 // tokens; of a refund, what it is to take back
	got     int64 // of a refund, what it has taken back; of an "up to", what it was admitted for
	used    int64 // what it is settled to
	holds   time.Duration
	shared  bool // another refund of the process was under way, so got may be of that one
	cancel  context.CancelFunc
	from    time.Time
	at      time.Time // when it returned
	spentAt time.Time // of a refund: when that was which it takes back
	r       reservoir.Result
	err     error
	done    atomic.Bool
}

func (c *simCaller) slot() slot {
	gen := reflect.ValueOf(c.r).FieldByName("gen").Int() // what Reset divides may end at one instant
	l := c.limit()
	w := backend.Window{End: c.r.Reset.UnixMilli(), Gen: gen}
	if l.Rolls {
		w.End = 0
	}
	return slot{l.inStore(c.key), l.counter(), w}
}

// limit is that by which the caller was answered. Plans differ in their tokens.
func (c *simCaller) limit() named {
	for _, l := range c.p.plans {
		if l.Tokens == c.r.Limit {
			return l
		}
	}
	return c.p.limit
}

// counted are the limits that the store counts.
func (s *sim) counted() []named {
	if s.plans != nil {
		return s.plans
	}
	return s.limits
}

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
		s.say("%s "+format+"\n", append([]any{time.Now().Format("15:04:05.000000")}, args...)...)
	}
}

// stored is a key of the store as the log shows it.
func stored(key string) string { return strings.ReplaceAll(key, "\x1f", "/") }

// answer is what a caller was told, as the log shows it.
func (c *simCaller) answer() string {
	if c.err != nil || c.r.Limit == 0 {
		return fmt.Sprint(c.err)
	}
	text := "refused"
	if c.r.Allowed {
		text = "allowed"
	}
	return fmt.Sprintf("%s, %v, generation %d, remaining %d, reset %s, retry after %v", text, c.r.Source, c.slot().Gen, c.r.Remaining, c.r.Reset.Format("15:04:05.000"), c.r.RetryAfter)
}

// traffic is a call and its reply, as the log shows them.
func traffic(c *testnet.Call, reply any) string {
	text := fmt.Sprintf("process %d, %s of %s", c.Who, c.Op, stored(c.Key))
	if q := c.Statement; q != nil && q.Client != "" {
		text += fmt.Sprintf(", number %d of life %d: window %v, mine %d, changes %d %v, want %d, need %d", q.Seq, q.Life, q.Window, q.Mine, q.Change, q.Changes, q.Want, q.Need)
	} else if q != nil {
		text += fmt.Sprintf(" without an account: window %v, changes %d %v, need %d", q.Window, q.Change, q.Changes, q.Need)
	}
	if c.Ghost {
		text += ", for which nobody waits,"
	}
	switch r := reply.(type) {
	case nil:
	case *backend.Reply:
		if r.Void {
			return text + " is void"
		}
		text += fmt.Sprintf(" gets %d %v: window %v, mine %d, charged %d, remaining %d, left %v, held %v, idle %d, called %d", r.Grant, r.Grants, r.Window, r.Mine, r.Used, r.Remaining, r.Left, r.Held, r.Idle, r.Called)
	default:
		text += fmt.Sprintf(" gets %+v", reflect.Indirect(reflect.ValueOf(r)))
	}
	return text
}

func pickOf[T any](s *sim, list ...T) T { return list[s.rnd.IntN(len(list))] }

func (s *sim) oneIn(n int) bool { return s.rnd.IntN(n) == 0 }

// The errors of calls that do not arrive, and of a store that is not ready.
var (
	errLost    = &backend.Error{Op: "net", Class: backend.Unknown, Err: testnet.ErrCut}
	errLoading = &backend.Error{Op: "net", Class: backend.Unavailable, Err: errors.New("LOADING")}
)

// newSim draws the set-up of a seed.
func newSim(seed uint64, seen tally) *sim {
	s := &sim{rnd: rand.New(rand.NewPCG(seed, 0x5eed)), net: testnet.Far(0), spent: map[slot]int64{}, rolls: map[slot][]use{}, freed: map[string]bool{}, seen: seen,
		resets: map[slot]bool{}, fresh: map[news]int64{}}
	s.net.Faults(func(c *testnet.Call) testnet.Fault {
		s.log("sent: %s", traffic(c, nil))
		if s.down.Load() {
			return testnet.Refuse
		}
		return testnet.Hold
	})
	s.limits = []named{s.drawLimit()}
	if s.oneIn(4) {
		other := s.drawLimit()
		if s.seen["two limits"]++; other.counter() != s.limits[0].counter() {
			s.seen["two lengths"]++
		} else {
			s.limits[0].name, other.name = "first", "second"
		}
		s.limits = append(s.limits, other)
	}
	if s.oneIn(5) {
		s.most = 2
	}
	late := pickOf(s, 0, 0, 3*time.Millisecond, 300*time.Millisecond)
	s.net.Travel = func(_ int, leg testnet.Leg) time.Duration {
		if leg == testnet.Message {
			return late
		}
		return 0
	}
	s.net.Heard = func(who int, m backend.Message) {
		s.net.Lock()
		defer s.net.Unlock()
		s.mail = append(s.mail, letter{s.all[who], m})
	}
	for i := range 1 + s.rnd.IntN(2) {
		s.keys = append(s.keys, fmt.Sprintf("%d-%d", seed, i))
	}
	opts := s.options()
	for i := range len(s.limits) + s.rnd.IntN(3) {
		s.start(i, opts)
	}
	return s
}

func (s *sim) drawLimit() named {
	l := named{span: pickOf(s, 50*time.Millisecond, time.Second, time.Second, time.Minute)}
	l.Limit = reservoir.Limit{Tokens: pickOf[int64](s, 1, 3, 10, 60, 1000, 20_000), Window: l.span}
	if s.oneIn(6) {
		s.seen["calendar"]++
		l.Limit = pickOf(s, reservoir.PerDay, reservoir.PerWeek)(l.Tokens, pickOf(s, time.UTC, berlin))
		_, end := l.Calendar.Around(time.Now())
		time.Sleep(time.Until(end) - time.Duration(s.rnd.Int64N(int64(l.span)*3)))
	} else if s.oneIn(2) {
		s.seen["rolling"]++
		l.Limit = l.Limit.Rolling()
	}
	return l
}

// berlin has days of 23 and 25 hours.
var berlin, _ = time.LoadLocation("Europe/Berlin")

// failClosed is the default, so it is an option that changes nothing.
var failClosed = reservoir.WithHooks(reservoir.Hooks{})

func (s *sim) options() []reservoir.Option {
	failure := pickOf(s, failClosed, failClosed, reservoir.WithFailLocal(0.5), reservoir.WithFailOpen())
	opts := []reservoir.Option{
		pickOf(s, reservoir.WithBatch(1, 0), reservoir.WithBatch(1, 0), reservoir.WithFixedBatch(1), reservoir.WithFixedBatch(10), reservoir.WithLadder(1, 50)),
		failure,
		reservoir.WithIdle(apart),
	}
	if s.oneIn(6) {
		opts = append(opts, reservoir.WithDirect())
	}
	if s.oneIn(6) { // what is evicted while the network is bad may be lost
		opts, s.blurred = append(opts, reservoir.WithIdle(s.limits[0].span/4+100*time.Millisecond)), true
	}
	if len(s.limits) == 1 && s.oneIn(6) {
		limit := s.limits[0]
		s.now = new(atomic.Int64)
		s.now.Store(limit.Tokens)
		opts = append(opts, reservoir.WithLimits(func(string) reservoir.Limit {
			now := limit.Limit
			now.Tokens = s.now.Load()
			return now
		}))
	}
	if len(s.limits) == 1 && s.now == nil && s.limits[0].Calendar.Period == 0 && s.oneIn(4) {
		other := s.limits[0]
		other.Tokens++
		if other.Rolls = !other.Rolls; s.oneIn(2) {
			other.Window, other.span = 3*other.Window, 3*other.span
		}
		s.plans = []named{s.limits[0], other}
		opts = append(opts, reservoir.WithLimits(func(string) reservoir.Limit { return s.plans[s.plan.Load()].Limit }))
	}
	s.steps = s.most == 0 && !slices.ContainsFunc(s.counted(), func(l named) bool { return !l.Rolls }) && s.oneIn(2)
	if s.oneIn(12) {
		opts, s.few = append(opts, reservoir.WithMaxKeys(s.rnd.IntN(2))), true
	}
	return opts
}

// start adds a process. Its calls end a little before their deadlines, or after them:
// by whole nanoseconds, other ones for each process.
func (s *sim) start(i int, opts []reservoir.Option) {
	skew := time.Duration(i + 1)
	if s.oneIn(2) {
		skew = -skew
	}
	limit := s.limits[i%len(s.limits)]
	if limit.name != "" {
		opts = append(opts[:len(opts):len(opts)], reservoir.WithName(limit.name))
	}
	p := &process{limit: limit, plans: s.plans, who: i}
	opts = append(opts[:len(opts):len(opts)], reservoir.WithHooks(reservoir.Hooks{
		ShardState: func(now reservoir.ShardState) { p.away.Store(now.Away) },
		StoreCall: func(c reservoir.StoreCall) {
			s.log("process %d: its %s (%s) has ended: %v", i, c.Op, c.Cause, c.Err)
		},
	}))
	var err error
	p.Limiter, err = reservoir.New(s.net.Port(i, skew), limit.Limit, opts...)
	s.must(err == nil, "%v", err)
	s.all = append(s.all, p)
}

// run makes the steps, and then ends all calls and all limiters in good order.
func (s *sim) run() {
	for range 15 + s.rnd.IntN(35) {
		s.step()
		s.settle()
		s.inspect()
	}
	s.calmDown()
	s.finish()
}

func (s *sim) step() {
	switch k := s.rnd.IntN(107); {
	case k < 2:
		s.burst()
	case k < 38:
		s.call()
	case k < 64:
		s.onCall(s.deliver)
	case k < 70:
		s.onCall(s.lose)
	case k < 74:
		s.onCall(s.twice)
	case k < 90:
		time.Sleep(s.pause())
	case k < 94:
		s.cancel()
	case k < 97:
		s.refund()
	case k < 98:
		s.relimit()
		s.reset()
	case k < 101:
		s.hold()
	case k < 102:
		s.forget()
	case k < 103:
		s.end()
	default:
		s.weather()
	}
}

// onCall does something to a call that is under way.
func (s *sim) onCall(f func(c *testnet.Call)) {
	s.net.Lock()
	defer s.net.Unlock()
	if c := s.net.Pick(s.rnd.IntN(1 << 20)); c != nil {
		f(c)
	}
}

// burst is traffic of one process, fast enough for batches, one after the other.
func (s *sim) burst() {
	p, key, n := pickOf(s, s.all...), pickOf(s, s.keys...), pickOf[int64](s, 1, 1, 2, 5)
	for range 4 + s.rnd.IntN(20) {
		s.launch(&simCaller{p: p, key: key, n: min(n, p.limit.Tokens), what: "allow"}, context.Background())
		s.settle()
		s.onCall(s.deliver)
		time.Sleep(time.Duration(s.rnd.Int64N(int64(p.limit.span/50))) | 1)
	}
}

// relimit changes the limit, never to more than it was at first.
func (s *sim) relimit() {
	if s.plans != nil {
		s.seen["another plan"]++
		s.plan.Store(s.rnd.Int64N(2))
		s.log("the plan is %d", s.plan.Load())
		if s.oneIn(2) {
			s.launch(&simCaller{p: pickOf(s, s.all...), key: pickOf(s, s.keys...), what: "refresh"}, context.Background())
		}
	}
	if s.now != nil {
		s.seen["another limit"]++
		s.now.Store(1 + s.rnd.Int64N(s.limits[0].Tokens))
		s.log("the limit is %d", s.now.Load())
	}
}

// reset gives a key a fresh window, which is a window of its own for the laws too.
func (s *sim) reset() {
	if s.oneIn(2) {
		p, key := pickOf(s, s.all...), pickOf(s, s.keys...)
		s.seen["reset"]++
		s.log("process %d: reset %s", p.who, key)
		s.freed[key] = true
		s.launch(&simCaller{p: p, key: key, what: "reset"}, context.Background())
	}
}

// hold holds a key, for some of a window or for longer.
func (s *sim) hold() {
	c := &simCaller{p: pickOf(s, s.all...), key: pickOf(s, s.keys...), what: "hold", holds: s.pause() * pickOf[time.Duration](s, 1, 1, 2)}
	s.seen["hold"]++
	s.holds = max(s.holds, c.holds)
	s.log("process %d: hold %s for %v", c.p.who, c.key, c.holds)
	s.launch(c, context.Background())
}

// isHeld notes that a process has heard that a key is held. Stores round up to a millisecond what somebody has asked for.
func (s *sim) isHeld(p *process, key string, until time.Time) {
	until = until.Add(-time.Millisecond)
	if s.most == 0 && s.plans == nil && until.After(time.Now()) { // what loses its data forgets it, and what changes its plan may leave it
		s.quiet = append(s.quiet, quiet{p, key, time.Now(), until, false})
	}
}

// weather changes what is around: the plan, an outage of the store begins or ends, messages cease or come again or are false, the
// store's clock is set back.
func (s *sim) weather() {
	switch s.rnd.IntN(6) {
	case 0:
		s.relimit()
	case 1:
		s.down.Store(!s.down.Load())
		s.log("the store is down: %v", s.down.Load())
	case 2:
		s.seen["no messages"]++
		s.net.Deafen(pickOf[error](s, errLost, nil))
	case 3:
		if s.steps {
			s.seen["clock set back"]++
			s.behind += time.Duration(s.rnd.Int64N(int64(2 * s.limits[0].Window)))
			s.net.Skew(-s.behind)
			s.log("the store's clock is %v behind", s.behind)
		}
	default:
		l, key := pickOf(s, s.counted()...), pickOf(s, s.keys...)
		m := backend.Message{Kind: pickOf(s, backend.Recall, backend.Exhausted, backend.Again, backend.Voided, backend.Held), Key: l.inStore(key), Counter: l.counter(), Limit: l.Tokens}
		all, err := s.net.Inspect(context.Background(), m.Key)
		s.must(err == nil, "inspect: %v", err)
		if i := slices.IndexFunc(all, func(c backend.Contents) bool { return c.Counter == m.Counter }); i >= 0 {
			s.seen["false message"]++
			m.Window = all[i].Window
			s.freed[key] = s.freed[key] || m.Kind == backend.Voided // ends a hold of which the store has not heard
			s.log("a false message, of kind %d, of %s: window %v", m.Kind, stored(m.Key), m.Window)
			_ = s.net.Store().(backend.Listener).Publish(context.Background(), m)
		}
	}
}

// call starts a caller.
func (s *sim) call() {
	c := &simCaller{p: pickOf(s, s.all...), key: pickOf(s, s.keys...)}
	c.n = s.tokens(c.p.limit.Tokens)
	c.what = pickOf(s, "allow", "allow", "allow", "allow", "allow", "handle", "wait", "wait", "check", "up to")
	ctx := context.Background()
	if s.oneIn(5) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.pause())
		_ = cancel // launch's own ends it
	}
	s.log("process %d: %s %s %d", c.p.who, c.what, c.key, c.n)
	s.launch(c, ctx)
}

// launch makes c's call in a goroutine of its own.
func (s *sim) launch(c *simCaller, ctx context.Context) {
	ctx, c.cancel = context.WithCancel(ctx)
	c.from = time.Now()
	s.callers = append(s.callers, c)
	go func() {
		c.do(ctx)
		c.at = time.Now()
		c.cancel()
		c.done.Store(true)
	}()
}

func (c *simCaller) do(ctx context.Context) {
	switch c.what {
	case "wait":
		c.r, c.err = c.p.WaitN(ctx, c.key, c.n)
	case "up to":
		c.got, c.r, c.err = c.p.AllowUpTo(ctx, c.key, c.n)
	case "handle":
		c.r, c.err = c.p.Key(c.key).AllowN(ctx, c.n)
	case "check":
		c.r, c.err = c.p.Check(ctx, c.key)
	case "hold":
		c.err = c.p.Hold(context.Background(), c.key, c.holds)
	case "reset":
		c.err = c.p.Reset(context.Background(), c.key)
	case "refresh":
		c.err = c.p.Refresh(context.Background(), c.key)
	case "close":
		c.err = c.p.Close(context.Background())
	case "refund":
		before, mine, ended := c.p.Stats().Refunded, c.p.begun.Add(1), c.p.over.Load()
		c.err = c.p.Settle(context.Background(), c.r, c.used)
		c.got = min(c.p.Stats().Refunded-before, c.n)
		c.shared = ended < mine-1 || c.p.begun.Load() > mine
		c.p.over.Add(1)
	default:
		c.r, c.err = c.p.AllowN(ctx, c.key, c.n)
	}
}

func (s *sim) tokens(limit int64) int64 {
	most := pickOf(s, 1, 1, 4, 4, limit/2, limit)
	return 1 + s.rnd.Int64N(min(max(most, 1), limit))
}

// deliver has the store execute a call, or brings a reply, or both.
func (s *sim) deliver(c *testnet.Call) {
	both := !s.oneIn(3)
	if !c.Executed {
		s.execute(c)
		if !c.Ghost && !both {
			return
		}
	}
	s.log("the reply comes: process %d, %s of %s", c.Who, c.Op, stored(c.Key))
	if r, ok := c.Reply.(*backend.Reply); ok && !c.Ghost && c.Err == nil && r.Held > 0 {
		s.seen["told of a hold"]++
		if !s.steps && c.Statement.Client != "" { // a probe of the shard is of no key
			s.isHeld(s.all[c.Who], c.Key, time.UnixMicro(r.Now-1).Add(r.Held)) // it rounds up
		}
	}
	s.net.Answer(c)
}

// execute has the store do what c says, if it is not too late for that.
func (s *sim) execute(c *testnet.Call) {
	if c.Late() {
		s.seen["too late"]++
		c.Executed = true
		return
	}
	reply, err := s.net.Execute(c)
	if err != nil {
		reply = err
	}
	s.log("executed: %s", traffic(c, reply))
	if void, ok := reply.(*backend.Window); ok && err == nil {
		s.resets[slot{c.Key, s.all[c.Who].limit.counter(), backend.Window{Gen: void.Gen}}] = true
		s.seen["voided"] += btoi(void.End != 0)
	}
	if !c.Ghost {
		return
	}
	s.seen["late call"]++
	if r, ok := reply.(*backend.Reply); ok && s.all[c.Who].ended { // no later statement undoes it
		s.slack += r.Grant
	}
}

// lose loses a request or a reply. A connection may break while the request goes on its
// way.
func (s *sim) lose(c *testnet.Call) {
	c.Err = errLost
	switch {
	case c.Executed:
		s.seen["lost reply"]++
	case s.oneIn(4):
		s.seen["refused"]++
		c.Err = errLoading
	case s.oneIn(2):
		s.seen["lost request"]++
	default:
		s.seen["cut"]++
		s.net.Copy(c, false)
	}
	s.log("lost: process %d, %s of %s, %v", c.Who, c.Op, stored(c.Key), c.Err)
	s.net.Answer(c)
}

// twice puts a call on the network once more, unless it is a reset or a statement without an account, which no store
// sends again.
func (s *sim) twice(c *testnet.Call) {
	if c.Op != "reset" && (c.Statement == nil || c.Statement.Client != "") {
		s.seen["repeated "+c.Op]++
		s.net.Copy(c, true)
		s.log("there are two: process %d, %s of %s", c.Who, c.Op, stored(c.Key))
	}
}

// pause is some of a call's time, or of a window.
func (s *sim) pause() time.Duration {
	window := pickOf(s, s.limits...).span
	d := pickOf(s, time.Millisecond, 10*time.Millisecond, 110*time.Millisecond, 600*time.Millisecond,
		window/60, window/3, window+window/100)
	return d/2 + time.Duration(s.rnd.Int64N(int64(d))) | 1
}

func (s *sim) cancel() {
	if len(s.callers) > 0 {
		c := pickOf(s, s.callers...)
		s.log("process %d: its %s of %s gives up", c.p.who, c.what, c.key)
		c.cancel()
	}
}

// refund gives back what a caller was admitted for, or a part of it. Or it has used more.
func (s *sim) refund() {
	if len(s.won) == 0 {
		return
	}
	i := s.rnd.IntN(len(s.won))
	c := s.won[i]
	s.won = append(s.won[:i], s.won[i+1:]...)
	back, used := c.n, int64(0)
	switch {
	case s.oneIn(3): // what may be charged above the limit is of the kind that was admitted without the store
		back, used = 0, c.n+1+s.rnd.Int64N(c.limit().Tokens)
		c.p.alone += used - c.n
		s.seen["overrun"]++
	case c.n > 1 && s.oneIn(2):
		back = 1 + s.rnd.Int64N(c.n-1)
		used = c.n - back
		s.seen["refunded in part"]++
	}
	s.log("process %d: settle %d of %s, %d used", c.p.who, c.n, c.key, used)
	c.p.asked += back
	if c.r.Source != reservoir.Fallback { // from now on others may spend them
		s.spend(c, c.slot(), -back)
	}
	s.launch(&simCaller{what: "refund", p: c.p, key: c.key, r: c.r, n: back, used: used, spentAt: c.at}, context.Background())
}

// forget makes the store lose its data.
func (s *sim) forget() {
	if s.losses < s.most {
		s.losses++
		s.seen["lost data"]++
		s.log("the store loses its data")
		s.net.LoseData()
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
	s.log("process %d: close", p.who)
	s.launch(&simCaller{what: "close", p: p}, context.Background())
}

// open takes in which messages were heard, when all is at rest: who returns later was answered after them. What loses its data may give
// an old generation anew, who changes its plan does not hear of the other one, and past WithMaxKeys there is nobody who hears.
func (s *sim) open(m letter) {
	s.log("process %d has heard a message of kind %d, of %s: window %v", m.p.who, m.Kind, stored(m.Key), m.Window)
	if s.most > 0 || s.plans != nil || s.few {
		return
	}
	switch m.Kind {
	case backend.Voided:
		if s.resets[slot{m.Key, m.Counter, backend.Window{Gen: m.Window.Gen}}] {
			s.seen["heard of a reset"]++
			s.fresh[news{m.p, m.Key, m.Counter}] = m.Window.Gen + 1
		}
	case backend.Held:
		state, err := s.net.Store().Check(context.Background(), m.Key, backend.Limit(m.p.limit.Limit))
		s.must(err == nil, "check: %v", err)
		until := time.Now().Add(state.Held)
		if said := m.Window.Time(); said.Before(until) {
			until = said
		}
		if !s.steps && until.After(time.Now()) {
			s.seen["heard of a hold"]++
			s.quiet = append(s.quiet, quiet{m.p, m.Key, time.Now().Add(-1), until.Add(-time.Millisecond), true})
		}
	}
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
	s.net.Lock()
	mail := s.mail
	s.mail = nil
	s.net.Unlock()
	for _, m := range mail {
		s.open(m)
	}
}
