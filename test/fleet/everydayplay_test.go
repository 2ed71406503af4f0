package fleet

import (
	"cmp"
	"context"
	"maps"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// game is one run of real limiters on the virtual clock. The same game has the same record:
// randomness follows the seed, one thread runs, events have instants of their own (see lane), and
// what one instant decides at random, as the order of answers, is not recorded.
type game struct {
	everyday
	policy
	seed   uint64
	faults func(*testnet.Network) // nil = none

	net      *testnet.Network
	begin    time.Time
	limiters []*reservoir.Limiter
	active   sync.WaitGroup

	mu  sync.Mutex // guards the fields below
	all []process
	err error // the first
	record
}

// process is what goes on at one process.
type process struct {
	callers int           // without an answer
	calls   int           // whose reply is not yet sent
	replies time.Duration // when the last one comes
	looked  bool          // somebody waits for it to come to rest
	look    time.Duration // the last instant at which it was looked at or settled
}

// record is what happened.
type record struct {
	answers []answer
	calls   []time.Duration // when they were sent
	held    []int64         // by a process at each rest, see game.rest
}

// answer is what one request got, or a settlement, which has refunded tokens.
type answer struct {
	asked, at time.Duration
	since     time.Duration // a token is remembered for some time since then: the answer to its request
	tokens    int64         // negative if they were refunded
	allowed   bool
	waited    bool
	window    int64
}

func (a answer) took() time.Duration { return a.at - a.asked }

// play makes the requests. It fails if a request fails, and if counts do not balance.
func (g *game) play(t *testing.T, requests []request) record {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer chance.Seed(g.seed)()
	cryptotest.SetGlobalRandom(t, g.seed) // for the names of limiters, by which a store may choose
	synctest.Test(t, func(t *testing.T) { g.run(t, requests) })
	return g.record
}

func (g *game) run(t *testing.T, requests []request) {
	g.begin, g.all = time.Now(), make([]process, g.processes)
	g.net = testnet.Far(0)
	g.net.Travel = g.travel
	if g.faults != nil {
		g.faults(g.net)
	}
	limit := reservoir.Limit{Tokens: g.limit, Window: g.window}
	if g.rolls {
		limit = limit.Rolling()
	}
	for i := range g.processes {
		l, err := reservoir.New(g.net.Port(i, 0), limit, g.option)
		require.NoError(t, err)
		g.limiters = append(g.limiters, l)
	}
	for _, q := range requests {
		time.Sleep(q.at - g.now())
		g.active.Go(func() { g.ask(q) })
	}
	g.active.Wait()
	require.NoError(t, g.err)
	for _, c := range g.net.Calls("") {
		g.calls = append(g.calls, c.At.Sub(g.begin))
	}
	slices.Sort(g.calls)
	g.close(t)
}

// close closes the limiters and compares their counts with what their callers got.
func (g *game) close(t *testing.T) {
	var admitted, spent int64
	for _, a := range g.answers {
		if a.allowed && a.tokens > 0 {
			admitted += a.tokens
		}
	}
	for i, l := range g.limiters {
		require.NoError(t, l.Close(context.Background()))
		s := l.Stats()
		require.Equal(t, s.Taken+s.Refunded, s.Spent+s.Returned+s.Expired+s.Held, "process %d: %+v", i, s)
		require.Zero(t, s.Held+s.Overdrawn, "process %d: %+v", i, s)
		spent += s.Spent
		if g.used == 0 {
			spent -= s.Refunded // a late answer of a direct call
		}
	}
	require.Equal(t, admitted, spent, "what limiters spent, and what their callers got")
}

func (g *game) now() time.Duration { return time.Since(g.begin) }

// travel is how long one way takes that starts now.
func (g *game) travel(who int, leg testnet.Leg) time.Duration {
	event := map[testnet.Leg]time.Duration{testnet.Going: reach, testnet.Coming: reply, testnet.Message: message}[leg]
	away := g.away
	if g.near && who == 0 {
		away = time.Millisecond
	}
	at := lane(who).next(g.now()+away, event)
	g.locked(func() {
		switch p := &g.all[who]; leg {
		case testnet.Going:
			p.calls++
		case testnet.Coming:
			p.calls, p.replies = p.calls-1, max(p.replies, at)
		}
	})
	return at - g.now()
}

func (g *game) locked(do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	do()
}

// look waits for a time and then for the next instant at which nothing else happens at a process: none
// of its own events but the arrival of a call at the store.
func (g *game) look(process int, after time.Duration) {
	var at time.Duration
	g.locked(func() {
		p := &g.all[process]
		at = lane(process).next(max(g.now()+after, p.look)+1, reach)
		p.look = at
	})
	time.Sleep(at - g.now())
}

// ask makes a request, and settles it if it used less.
func (g *game) ask(q request) {
	l, p := g.limiters[q.process], &g.all[q.process]
	g.locked(func() { p.callers++ })
	r, err := l.AllowN(context.Background(), "shared", q.tokens)
	a := answer{asked: q.at, at: g.now(), since: g.now(), tokens: q.tokens, allowed: r.Allowed, waited: r.Source == reservoir.Fetched || r.Source == reservoir.Direct, window: r.Reset.UnixMilli()}
	g.locked(func() { p.callers-- })
	g.note(a, err)
	if g.rests && a.allowed {
		g.rest(q.process)
	}
	if q.used < 0 || !a.allowed || err != nil {
		return
	}
	g.look(q.process, chance.Interval(g.window/120))
	err = l.Settle(context.Background(), r, q.used)
	a.asked, a.at, a.tokens, a.waited = g.now(), g.now(), q.used-q.tokens, false
	g.note(a, err)
}

func (g *game) note(a answer, err error) {
	g.locked(func() {
		g.answers = append(g.answers, a)
		g.err = cmp.Or(g.err, err)
	})
}

// rest, after a request was admitted, waits until nobody waits at a process and none of its calls is under way, and notes what it
// holds then.
func (g *game) rest(process int) {
	p, looked := &g.all[process], false
	g.locked(func() { p.looked, looked = true, p.looked })
	for atRest := false; !looked && !atRest; {
		g.look(process, g.away)
		g.locked(func() {
			atRest = p.callers+p.calls == 0 && p.replies < g.now()
			p.looked = !atRest
		})
		if atRest {
			held := g.limiters[process].Stats().Held
			g.locked(func() { g.held = append(g.held, held) })
		}
	}
}

// sums are the figures of a row over its seeds and windows.
type sums struct {
	Windows, Refusing   int64   // windows in all, and with a refusal
	First, Worst        float64 // spent at the first refusal: the sum of the shares, and the least
	Requests, Needless  int64
	Calls, Waited, Late int64 // late: requests that waited for longer than a round trip
	Longest             time.Duration
	Used, Tokens        int64 // by requests, and those of the limit in all windows
	Rests, Held, Most   int64 // processes that came to rest, and what they held: the sum, and the most
}

// measure plays a row once for each seed and sums up.
func (e everyday) measure(t *testing.T, p policy, seed, seeds uint64, faults func(*testnet.Network)) sums {
	t.Helper()
	s := sums{Worst: 1}
	for i := range seeds {
		g := game{everyday: e, policy: p, seed: seed + i, faults: faults}
		r := g.play(t, e.requests(seed+i))
		for _, held := range r.held {
			s.Rests, s.Held, s.Most = s.Rests+1, s.Held+held, max(s.Most, held)
		}
		if e.rests {
			continue
		}
		if p.rolls {
			s.addRolling(t, e, r)
		} else {
			s.addFixed(t, e, r)
		}
	}
	return s
}

// addFixed adds the windows of a record. A window's calls are those since the window before was
// first heard of.
func (s *sums) addFixed(t *testing.T, e everyday, r record) {
	t.Helper()
	windows := map[int64][]answer{}
	for _, a := range r.answers {
		windows[a.window] = append(windows[a.window], a)
	}
	ids, end := slices.Sorted(maps.Keys(windows)), warm+e.windows()
	require.Greater(t, len(ids), end, "the traffic ended before the windows did")
	heard := func(i int) time.Duration {
		return slices.MinFunc(windows[ids[i]], func(a, b answer) int { return cmp.Compare(a.at, b.at) }).at
	}
	s.Calls += between(r.calls, heard(warm), heard(end))
	for _, id := range ids[warm:end] {
		s.Windows, s.Tokens = s.Windows+1, s.Tokens+e.limit
		first := true
		used := truth(windows[id], math.MaxInt64, func(a answer, spent int64) {
			s.refuse(a, spent, e.limit, first)
			first = false
		})
		require.LessOrEqual(t, used, e.limit, "over the limit")
		s.Used += used
		s.sum(e, windows[id])
	}
}

// remembers is how long a token of a rolling limit counts after it was spent: for a window since
// the end of its slice, of which there are twenty in a window.
func remembers(window time.Duration) time.Duration { return window + window/20 }

// addRolling adds a record by time. What a window is to a fixed limit is here each length of
// the window since the beginning.
func (s *sums) addRolling(t *testing.T, e everyday, r record) {
	t.Helper()
	begin, end := warm*e.window, time.Duration(warm+e.windows())*e.window
	s.Calls += between(r.calls, begin, end)
	s.Windows, s.Tokens = s.Windows+int64(e.windows()), s.Tokens+int64(e.windows())*e.limit
	last := time.Duration(-1)
	truth(r.answers, remembers(e.window), func(a answer, spent int64) {
		if begin <= a.at && a.at < end {
			s.refuse(a, spent, e.limit, a.at/e.window != last)
			last = a.at / e.window
		}
	})
	counted := slices.DeleteFunc(slices.Clone(r.answers), func(a answer) bool { return a.at < begin || a.at >= end })
	for _, a := range counted {
		if a.allowed {
			s.Used += a.tokens
		}
	}
	s.sum(e, counted)
	if e.used == 0 {
		require.LessOrEqual(t, most(r.answers, e.window), e.limit, "over the limit")
	}
}

// most returns the most tokens that were surely spent in an interval of the window's length: those
// whose request came and was answered in it. It looks at intervals that end with an answer.
func most(answers []answer, window time.Duration) (most int64) {
	var spent []answer // in the order of the answers
	for _, a := range answers {
		if a.allowed {
			spent = append(spent, a)
		}
	}
	slices.SortStableFunc(spent, func(a, b answer) int { return cmp.Compare(a.at, b.at) })
	first, sum := 0, int64(0)
	for _, end := range spent {
		for sum += end.tokens; end.at-spent[first].at >= window; first++ {
			sum -= spent[first].tokens
		}
		if sum <= most {
			continue
		}
		surely := sum
		for _, a := range spent[first:] {
			if a.at >= end.at {
				break
			}
			if end.at-a.asked >= window {
				surely -= a.tokens
			}
		}
		most = max(most, surely)
	}
	return most
}

// between returns how many of the sorted times are in [begin, end).
func between(times []time.Duration, begin, end time.Duration) int64 {
	i, _ := slices.BinarySearch(times, begin)
	j, _ := slices.BinarySearch(times, end)
	return int64(j - i)
}

// refuse adds a refusal, while so much counted as spent. A refusal of n tokens is true if fewer
// are left, and the limit counts as spent then.
func (s *sums) refuse(a answer, spent, limit int64, first bool) {
	if spent+a.tokens <= limit {
		s.Needless++
	}
	if first {
		share := float64(min(spent+a.tokens-1, limit)) / float64(limit)
		s.Refusing, s.First, s.Worst = s.Refusing+1, s.First+share, min(s.Worst, share)
	}
}

func (s *sums) sum(e everyday, answers []answer) {
	roundTrip := 2*e.away + 3*lanePeriod // at most
	for _, a := range answers {
		if a.tokens < 0 {
			continue
		}
		s.Requests++
		if a.waited {
			s.Waited++
		}
		s.Longest = max(s.Longest, a.took())
		if a.took() > roundTrip {
			s.Late++
		}
	}
}

// truth calls refused for each refusal, in order, with the tokens that counted as spent then, and
// returns how many do at the end. It is kind to the limiters, because nobody knows when
// between its request and its answer a token is spent: it counts from the request until it has
// been remembered since the answer, and a refusal or a refund is judged at its answer.
func truth(answers []answer, remembered time.Duration, refused func(a answer, spent int64)) (spent int64) {
	order := func(a answer) (time.Duration, int) {
		switch {
		case a.tokens < 0:
			return a.at, 2
		case a.allowed:
			return a.asked, 0
		}
		return a.at, 1
	}
	sorted := slices.SortedFunc(slices.Values(answers), func(a, b answer) int {
		i, m := order(a)
		j, n := order(b)
		return cmp.Or(cmp.Compare(i, j), cmp.Compare(m, n), cmp.Compare(a.tokens, b.tokens))
	})
	counting := slices.SortedFunc(slices.Values(answers), func(a, b answer) int { return cmp.Compare(a.since, b.since) })
	for _, a := range sorted {
		at, _ := order(a)
		for len(counting) > 0 && at-counting[0].since > remembered {
			if counting[0].allowed {
				spent -= counting[0].tokens
			}
			counting = counting[1:]
		}
		if a.allowed {
			spent += a.tokens
		} else {
			refused(a, spent)
		}
	}
	return spent
}
