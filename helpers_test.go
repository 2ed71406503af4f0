package reservoir_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// What the tests of the limiter share: limiters on a virtual clock and network, ways to ask for tokens, and what must be true at their end.

var bg = context.Background()

// patient rides out a busy machine where a test counts and does not time.
var patient = reservoir.WithFetchTimeout(time.Minute)

// inspected is a store that tests can look into.
type inspected interface {
	backend.Store
	backend.Inspector
}

// open returns a limiter over s that is closed, and checked to balance, at the end.
func open(t testing.TB, s backend.Store, l reservoir.Limit, opts ...reservoir.Option) *reservoir.Limiter {
	t.Helper()
	lim, err := reservoir.New(s, l, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = lim.Close(context.Background())
		balance(t, lim)
		require.Zero(t, lim.Stats().Held)
	})
	return lim
}

// fleet returns so many limiters over s, each as of a process of its own.
func fleet(t testing.TB, processes int, s backend.Store, l reservoir.Limit, opts ...reservoir.Option) []*reservoir.Limiter {
	t.Helper()
	all := make([]*reservoir.Limiter, processes)
	for i := range all {
		all[i] = open(t, s, l, opts...)
	}
	return all
}

// balance checks that every token is accounted for, once. It holds while no call
// is under way.
func balance(t testing.TB, l *reservoir.Limiter) {
	t.Helper()
	s := l.Stats()
	require.Equal(t, s.Taken+s.Refunded, s.Spent+s.Returned+s.Expired+s.Held, "%+v", s)
	for _, n := range []int64{s.Taken, s.Refunded, s.Spent, s.Returned, s.Expired, s.Held} {
		require.GreaterOrEqual(t, n, int64(0), "%+v", s)
	}
}

// allow asks for n tokens and fails the test on an error. Helper and require take longer than
// the request, so only an error pays for them.
func allow(t testing.TB, l *reservoir.Limiter, key string, n int64) reservoir.Result {
	r, err := l.AllowN(context.Background(), key, n)
	if err != nil {
		t.Helper()
		require.NoError(t, err)
	}
	return r
}

// drain asks for n tokens again and again until one request is refused. It returns
// the tokens that were admitted.
func drain(t testing.TB, l *reservoir.Limiter, key string, n int64) (admitted int64) {
	t.Helper()
	for allow(t, l, key, n).Allowed {
		admitted += n
	}
	return admitted
}

// used is what the store has charged to key in all windows that are open.
func used(t testing.TB, s backend.Inspector, key string) (n int64) {
	t.Helper()
	counters, err := s.Inspect(context.Background(), key)
	require.NoError(t, err)
	for _, c := range counters {
		n += c.Used
	}
	return n
}

// contents is what the store holds of key in the window that is open, which is of one counter at most.
func contents(t testing.TB, s backend.Inspector, key string) (c backend.Contents) {
	t.Helper()
	all, err := s.Inspect(context.Background(), key)
	require.NoError(t, err)
	require.LessOrEqual(t, len(all), 1, "counters of %s", key)
	if len(all) == 1 {
		c = all[0]
	}
	return c
}

// crowd calls f n times at once and returns when all calls have.
func crowd(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// waitFor is Limiter.WaitN.
func waitFor(ctx context.Context, l *reservoir.Limiter, key string, n int64) error {
	_, err := l.WaitN(ctx, key, n)
	return err
}

// take is the error of a call.
func take[T any](_ T, err error) error { return err }

// batches are the policies that hold stock, and everyPolicy adds the ones that hold
// none.
func batches() map[string]reservoir.Option {
	return map[string]reservoir.Option{
		"fixed=64": reservoir.WithFixedBatch(64),
		"ladder":   reservoir.WithLadder(1, 100),
		"adaptive": reservoir.WithBatch(1, 0),
	}
}

func everyPolicy() map[string]reservoir.Option {
	all := batches()
	all["fixed=1"] = reservoir.WithFixedBatch(1)
	all["direct"] = reservoir.WithDirect()
	return all
}

// smallBatches are the policies that differ under the small limits of these tests: of larger
// batches the store grants what it has.
func smallBatches() map[string]reservoir.Option {
	few := everyPolicy()
	delete(few, "fixed=64")
	delete(few, "ladder")
	return few
}

// rtt is the distance of stores where nothing else is said.
const rtt = 2 * time.Millisecond

// inBubble runs f as a subtest on virtual time.
func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// inBubbles is a bubble for each case.
func inBubbles[C any](t *testing.T, prefix string, cases map[string]C, f func(t *testing.T, name string, c C)) {
	for name, c := range cases {
		inBubble(t, strings.TrimPrefix(prefix+"/"+name, "/"), func(t *testing.T) { f(t, name, c) })
	}
}

// every asks for n tokens again and again, at random times that are interval apart on
// average, until end. It tells each when a request was made and what came of it.
func every(t *testing.T, l *reservoir.Limiter, n int64, interval time.Duration, end time.Time, each func(at time.Time, r reservoir.Result)) {
	rnd := rand.New(rand.NewPCG(uint64(interval), uint64(n)))
	for {
		time.Sleep(time.Duration(rnd.ExpFloat64() * float64(interval)))
		at := time.Now()
		if !at.Before(end) {
			return
		}
		r := allow(t, l, "k", n)
		if each != nil {
			each(at, r)
		}
	}
}

// stats adds up what limiters have counted.
func stats(all ...*reservoir.Limiter) (sum reservoir.Stats) {
	for _, l := range all {
		s := l.Stats()
		sum.StoreCalls += s.StoreCalls
		sum.Spent += s.Spent
		sum.Probes += s.Probes
		sum.Denied += s.Denied
		sum.Held += s.Held
		sum.Overdrawn += s.Overdrawn
	}
	return sum
}

// diary is what a hook was told of store calls.
type diary struct {
	mu    sync.Mutex
	calls []diaryEntry
}

func (d *diary) keep() reservoir.Option {
	return reservoir.WithHooks(reservoir.Hooks{StoreCall: func(c reservoir.StoreCall) {
		d.mu.Lock()
		defer d.mu.Unlock()
		e := diaryEntry{c, time.Now().Add(-c.Duration), time.Now()}
		e.Duration = 0
		d.calls = append(d.calls, e)
	}})
}

// all lists the calls so far.
func (d *diary) all() []diaryEntry {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]diaryEntry(nil), d.calls...)
}

type diaryEntry struct {
	reservoir.StoreCall
	begun, ended time.Time
}

// crowdOnce has so many callers ask for n tokens at once, and returns how many were
// admitted and how many got an error.
func crowdOnce(l *reservoir.Limiter, callers int, n int64) (admitted, failed int64) {
	var ok, bad atomic.Int64
	crowd(callers, func(int) {
		switch r, err := l.AllowN(context.Background(), "k", n); {
		case err != nil:
			bad.Add(1)
		case r.Allowed:
			ok.Add(1)
		}
	})
	return ok.Load(), bad.Load()
}

// exhaust uses up the limit of key through the limiters in turn.
func exhaust(t *testing.T, all []*reservoir.Limiter, key string) {
	t.Helper()
	for _, l := range all {
		drain(t, l, key, 1)
	}
}

// heap is what is in use after all garbage is gone.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // of what finalizers and pools still held
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// states records what the hooks are told of shards.
type states struct {
	mu  sync.Mutex
	all []reservoir.ShardState
}

func (s *states) hooks() reservoir.Hooks {
	return reservoir.Hooks{ShardState: func(state reservoir.ShardState) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, state)
	}}
}

func (s *states) option() reservoir.Option { return reservoir.WithHooks(s.hooks()) }

func (s *states) told() []reservoir.ShardState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]reservoir.ShardState(nil), s.all...)
}

// away reports whether the last that was told of shard is that it does not answer.
func (s *states) away(shard string) (away bool) {
	for _, state := range s.told() {
		if state.Shard == shard {
			away = state.Away
		}
	}
	return away
}

// sharded is a network whose shards are named by what stands before the colon of a
// key, and by name for keys without one.
type sharded struct {
	*testnet.Network
	name func() string
}

func (s sharded) Shard(key string) string {
	if name, _, ok := strings.Cut(key, ":"); ok || s.name == nil {
		return name
	}
	return s.name()
}

// fleetOn is fleet, with a port of the network for each process.
func fleetOn(t *testing.T, processes int, net *testnet.Network, l reservoir.Limit, opts ...reservoir.Option) []*reservoir.Limiter {
	t.Helper()
	all := make([]*reservoir.Limiter, processes)
	for i := range all {
		all[i] = open(t, net.Port(i, 0), l, opts...)
	}
	return all
}

// line is callers of one key that came one after the other.
type line struct {
	t  *testing.T
	l  *reservoir.Limiter
	wg sync.WaitGroup
	in []*caller
}

// wait adds waiters for ns tokens each, and allow callers of AllowN. Each has its
// place in line before the next one comes.
func (q *line) wait(ns ...int64) []*caller { return q.add(context.Background(), true, ns) }

func (q *line) allow(ns ...int64) []*caller { return q.add(context.Background(), false, ns) }

func (q *line) add(ctx context.Context, wait bool, ns []int64) (added []*caller) {
	for _, n := range ns {
		c := &caller{n: n, wait: wait, ctx: ctx, done: make(chan struct{})}
		q.in, added = append(q.in, c), append(added, c)
		q.wg.Go(func() {
			defer close(c.done)
			if c.wait {
				c.err = waitFor(ctx, q.l, "k", n)
				c.allowed = c.err == nil
			} else {
				var r reservoir.Result
				r, c.err = q.l.AllowN(ctx, "k", n)
				c.allowed = c.err == nil && r.Allowed
			}
			c.at = time.Now()
		})
		synctest.Wait()
	}
	return added
}

// inOrder checks that nobody was served before who came earlier.
func (q *line) inOrder() {
	q.t.Helper()
	q.wg.Wait()
	for i, c := range q.in {
		require.NoError(q.t, c.err)
		if i > 0 {
			assert.False(q.t, c.at.Before(q.in[i-1].at), "caller %d for %d was served %v before the one for %d", i, c.n, q.in[i-1].at.Sub(c.at), q.in[i-1].n)
		}
	}
}

func lineOf(t *testing.T, l *reservoir.Limiter) *line { return &line{t: t, l: l} }

// caller is one of them.
type caller struct {
	n       int64
	wait    bool
	ctx     context.Context
	done    chan struct{}
	at      time.Time // when it had its answer
	allowed bool
	err     error
}

// answered reports whether c has its answer, and whether it was admitted.
func (c *caller) answered() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// times returns n so often.
func times(count int, n int64) []int64 {
	all := make([]int64, count)
	for i := range all {
		all[i] = n
	}
	return all
}

// toOpen is how many failures in a row open a shard's circuit at the most, and
// toClose how long it takes at the most to see that the shard answers again.
const (
	toOpen  = 10
	toClose = 3 * time.Second
)

// breakdown makes every call meet f, and asks for other keys until an answer takes
// no time: the circuit is open.
func breakdown(t *testing.T, l *reservoir.Limiter, net *testnet.Network, f testnet.Fault) {
	t.Helper()
	net.Always(f)
	for i := range toOpen {
		_, _ = l.Allow(bg, fmt.Sprint("other ", i))
	}
	synctest.Wait()
	calls := net.Count("")
	_, _ = l.Allow(bg, "one more")
	require.Equal(t, calls, net.Count(""), "the circuit did not open")
}

// repair ends a breakdown, and asks now and then until the store is asked again.
func repair(t *testing.T, l *reservoir.Limiter, net *testnet.Network, key string, n int64) {
	t.Helper()
	net.Faults(nil)
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		r, err := l.AllowN(bg, key, n)
		if err == nil && r.Source != reservoir.Fallback {
			return
		}
		require.Less(t, time.Since(begin), 2*toClose)
	}
}

// failClosed is the default, so it is an option that changes nothing.
var failClosed = reservoir.WithHooks(reservoir.Hooks{})

// spendAll asks for single tokens until nobody of all has admitted one for a while, which tokens on their way back need.
func spendAll(t *testing.T, all []*reservoir.Limiter) (admitted int64) {
	for idle := 0; idle < 40; idle++ {
		for _, l := range all {
			for allow(t, l, "k", 1).Allowed {
				admitted++
				idle = 0
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return admitted
}

type plan struct {
	limit atomic.Pointer[reservoir.Limit]
	asked atomic.Int64
}

func (p *plan) option() reservoir.Option {
	return reservoir.WithLimits(func(string) reservoir.Limit {
		p.asked.Add(1)
		return *p.limit.Load()
	})
}

func (p *plan) set(l reservoir.Limit) { p.limit.Store(&l) }

func planned(l reservoir.Limit) *plan {
	p := new(plan)
	p.set(l)
	return p
}

// usedOf is what the store has charged to key in the open window of limit's counter.
func usedOf(t testing.TB, s backend.Inspector, key string, limit reservoir.Limit) int64 {
	t.Helper()
	counters, err := s.Inspect(bg, key)
	require.NoError(t, err)
	for _, c := range counters {
		if c.Counter == backend.Limit(limit).Counter() {
			return c.Used
		}
	}
	return 0
}

func inShadow(l reservoir.Limit) reservoir.Limit {
	l.Shadow = true
	return l
}

// kinds are the kinds of limits, of 600 tokens.
func kinds() map[string]reservoir.Limit {
	return map[string]reservoir.Limit{
		"fixed":    reservoir.PerHour(600),
		"calendar": reservoir.PerDay(600, nil),
		"rolling":  reservoir.PerHour(600).Rolling(),
	}
}

// onKinds is a bubble for each kind of limit and some policies, with three processes that have stock, and a store whose clock is an hour ahead.
func onKinds(t *testing.T, f func(t *testing.T, net *testnet.Network, all []*reservoir.Limiter, limit reservoir.Limit)) {
	for kind, limit := range kinds() {
		for policy, opt := range smallBatches() {
			inBubble(t, kind+"/"+policy, func(t *testing.T) {
				net := testnet.Far(rtt / 2)
				net.Skew(time.Hour)
				all := fleetOn(t, 3, net, limit, opt)
				for range 60 {
					for _, l := range all {
						require.True(t, allow(t, l, "k", 1).Allowed)
					}
					time.Sleep(100 * time.Millisecond)
				}
				f(t, net, all, limit)
			})
		}
	}
}
