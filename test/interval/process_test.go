package interval_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
)

// processEnv holds the plan of a process, and so makes it one.
const processEnv = "RESERVOIR_INTERVAL"

// callers is how many goroutines of a process ask for one key.
const callers = 2

// plan is what the runner hands to a process.
type plan struct {
	Seed      uint64
	Index     int // how many processes were started before
	Processes int // at the same time
	Addr      string
	Timeout   time.Duration // of a fetch
	Series    []series
	Journal   string // path
	Board     string // path
	Skew      int64  // a deliberate bug; see skewed
}

// series is one key and its limit.
type series struct {
	Name   string
	Limit  reservoir.Limit
	Other  int64 // tokens that it has in turns with those of Limit; 0 = it does not change
	Resets bool
}

// board has what the runner tells all processes: the tokens of each series now.
type board struct{ tokens [maxSeries]atomic.Int64 }

// demand is how many times each limit all processes ask for.
const demand = 1.6

// each returns the mean number of tokens of a request.
func (s series) each() int64 { return max(s.Limit.Tokens/20, 1) }

// pause returns the mean time between two requests of a caller.
func (p *plan) pause(s series) time.Duration {
	return time.Duration(float64(s.Limit.Window) * float64(p.Processes*callers) * float64(s.each()) / (demand * float64(s.Limit.Tokens)))
}

// ran is the main function of such a process, and reports whether this is one. It spends
// until a SIGTERM.
func ran() bool {
	text, ok := os.LookupEnv(processEnv)
	if !ok {
		return false
	}
	var p plan
	must(0, json.Unmarshal([]byte(text), &p))
	j, b := shared[journal](p.Journal), shared[board](p.Board)
	o := must(redisstore.Options("redis://" + p.Addr))
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolSize = 2*p.Timeout, 2*p.Timeout, 2*p.Timeout, 16
	var store backend.Store = redisstore.New(redis.NewUniversalClient(o))
	if p.Skew != 0 {
		store = skewed{store, p.Skew}
	}
	finish, end := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer end()
	rng := rand.New(rand.NewPCG(p.Seed, 0))
	var wg sync.WaitGroup
	var spenders []*spender
	for i, s := range p.Series {
		l := must(reservoir.New(store, s.Limit, p.options(i, b)...))
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*p.Timeout)
			defer cancel()
			_ = l.Close(ctx) // fails in a fault
		}()
		spenders = append(spenders, &spender{plan: &p, series: s, index: i, limiter: l, journal: j})
	}
	for _, s := range spenders {
		for range callers {
			mine := *s
			mine.rng = rand.New(rand.NewPCG(rng.Uint64(), 0))
			wg.Go(func() { mine.live(finish) })
		}
	}
	two := both{group: reservoir.NewGroup(spenders[0].limiter, spenders[1].limiter)}
	for i := range two.of {
		two.of[i] = spenders[i]
		two.of[i].rng = rand.New(rand.NewPCG(rng.Uint64(), 0))
	}
	wg.Go(func() { two.live(finish) })
	wg.Wait()
	return true
}

// options are those of one series in one process: processes that count one limit in different ways.
func (p *plan) options(i int, b *board) []reservoir.Option {
	list := []reservoir.Option{
		reservoir.WithFetchTimeout(p.Timeout),
		reservoir.WithLimits(func(string) reservoir.Limit {
			l := p.Series[i].Limit
			l.Tokens = b.tokens[i].Load()
			return l
		}),
	}
	switch (p.Index + i) % 4 {
	case 1:
		list = append(list, reservoir.WithDirect())
	case 2:
		list = append(list, reservoir.WithFixedBatch(max(p.Series[i].Limit.Tokens/10, 2)), reservoir.WithIdle(p.Series[i].Limit.Window/2))
	case 3:
		if p.Index%2 == 1 {
			list = append(list, reservoir.WithMaxKeys(0))
		}
	}
	return list
}

// skewed is a broken store, whose process admits more than it was granted.
type skewed struct {
	backend.Store
	by int64 // tokens per grant
}

func (s skewed) Sync(ctx context.Context, q backend.Statement) (backend.Reply, error) {
	reply, err := s.Store.Sync(ctx, q)
	if reply.Grant > 0 {
		if reply.Grant += s.by; len(reply.Grants) > 0 {
			reply.Grants[0].Tokens += s.by
		}
	}
	return reply, err
}

// spender is a caller of one key.
type spender struct {
	*plan
	series
	index   int
	limiter *reservoir.Limiter
	journal *journal
	rng     *rand.Rand

	slot   *entry    // of the next call
	window int64     // of the last result
	since  time.Time // when that was first seen; of a rolling limit, when it last changed its speed
	phase  time.Duration
	speed  float64
	later  func() // settles a result
}

func (s *spender) count(w what) { s.journal.counts[s.index][w].Add(1) }

// next returns the entry of the next call.
func (s *spender) next() *entry {
	if s.slot == nil {
		s.slot = s.journal.entry(s.index)
	}
	return s.slot
}

// live makes requests until finish ends, and now and then resets the key or has all processes ask for its limit.
func (s *spender) live(finish context.Context) {
	pause := s.pause(s.series)
	seldom := float64(pause) / float64(s.Limit.Window) / float64(s.Processes*callers) // once or twice in a window, all together
	for finish.Err() == nil {
		s.adapt()
		if !s.rest(finish, time.Duration(s.rng.ExpFloat64()*float64(pause)/s.speed)) {
			continue
		}
		n := min(1+s.rng.Int64N(2*s.each()), s.Limit.Tokens)
		for range 3 {
			r := s.request(finish, n)
			if r.Allowed || r.Remaining < 1 || r.Remaining >= n {
				break
			}
			n = r.Remaining // otherwise the last tokens, too few for most requests, would hide a small excess
		}
		if s.rng.Float64() > seldom {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
		if s.Resets {
			e := s.journal.entry(s.index)
			e.reset.Store(1)
			e.begin.Store(now())
			err := s.limiter.Reset(ctx, s.Name)
			e.end.Store(now())
			if err == nil {
				s.count(reset)
			}
		}
		if s.Other != 0 && s.limiter.Refresh(ctx, s.Name) == nil {
			s.count(refreshed)
		}
		cancel()
	}
}

const slow, fast = 0.15, 6

// adapt sets the speed. Callers of a fixed limit spend where that is weak: in every other window most in the last
// quarter, and in the others at once. Those of a rolling limit change their speed at random.
func (s *spender) adapt() {
	length := s.Limit.Window
	switch past := time.Since(s.since); {
	case !s.Limit.Rolls && s.window/length.Milliseconds()%2 == 0 && past < length*3/4:
		s.speed = slow
	case !s.Limit.Rolls:
		s.speed = fast
	case past > s.phase:
		s.since, s.phase = time.Now(), time.Duration(s.rng.ExpFloat64()*float64(length)/2)
		s.speed = []float64{slow, 1, fast}[s.rng.IntN(3)]
	}
}

// rest waits for a random time, and reports whether all of that has passed: after an eighth of the window the speed
// may have changed. Because exponential times have no memory, another one may be drawn then.
func (s *spender) rest(finish context.Context, d time.Duration) bool {
	most := s.Limit.Window / 8
	select {
	case <-time.After(min(d, most)):
		return d <= most
	case <-finish.Done():
		return false
	}
}

// request makes one call.
func (s *spender) request(finish context.Context, n int64) reservoir.Result {
	ctx, cancel, ask := context.Background(), func() {}, s.limiter.AllowN
	waits := s.rng.IntN(4) == 0
	if waits {
		ctx, cancel = context.WithTimeout(finish, time.Duration(s.rng.Int64N(int64(s.Limit.Window))))
		ask = s.limiter.WaitN
	}
	e := s.next()
	e.begin.Store(now())
	r, err := ask(ctx, s.Name, n)
	end := now()
	cancel()
	if s.ended(err, r.Allowed, r.Source) {
		s.slot = nil
		e.admitted(r, n, s.named(r), end)
		if waits {
			s.count(waited)
		}
		s.settle(e, n, func(used int64) { _ = s.limiter.Settle(context.Background(), r, used) })
	}
	if w := r.Reset.UnixMilli(); err == nil && !s.Limit.Rolls && w != s.window {
		s.window, s.since = w, time.Now()
	}
	return r
}

// ended counts a call, and reports whether its tokens were charged.
func (s *spender) ended(err error, allowed bool, source reservoir.Source) bool {
	s.count(called)
	switch {
	case err != nil:
		s.count(failed)
		return false
	case !allowed:
		s.count(refused)
		return false
	case source == reservoir.Direct:
		s.count(direct)
	case source == reservoir.Local:
		s.count(local)
	}
	return source != reservoir.Fallback
}

// named returns the name of the window of a result.
func (s *spender) named(r reservoir.Result) int64 {
	if s.Limit.Rolls {
		return 0
	}
	return r.Reset.UnixMilli()
}

// admitted completes the entry of a call that was admitted.
func (e *entry) admitted(r reservoir.Result, n, window, end int64) {
	e.source.Store(int64(r.Source))
	e.tokens.Store(n)
	e.window.Store(window)
	e.end.Store(end)
}

// givesBack notes that some tokens go back from now on. A process that is killed in it has given nothing back.
func (e *entry) givesBack(n int64) {
	e.backAt.Store(now())
	e.back.Store(n)
}

// settle settles one request of four, at once or after the next one that is admitted.
func (s *spender) settle(e *entry, n int64, to func(used int64)) {
	if s.later != nil {
		s.later()
		s.later = nil
	}
	var used int64
	var w what
	switch d := s.rng.IntN(100); {
	case d < 16:
		used, w = 0, refunded
	case d < 24:
		used, w = s.rng.Int64N(n), settledBelow
	case d < 25: // seldom, because debt leaves less to spend
		used, w = n+1+s.rng.Int64N(s.each()), settledAbove
	default:
		return
	}
	do := func() {
		if used < n {
			e.givesBack(n - used)
		}
		to(used)
		s.count(w)
	}
	if s.rng.IntN(2) == 0 {
		do()
	} else {
		s.later = do
	}
}

// both asks for tokens of two keys together, a fixed limit's and a rolling one's.
type both struct {
	of    [2]*spender
	group *reservoir.Group
}

func (b *both) live(finish context.Context) {
	first := b.of[0]
	for finish.Err() == nil {
		if !first.rest(finish, time.Duration(first.rng.ExpFloat64()*float64(first.pause(first.series)))) {
			continue
		}
		var cost []int64
		var keys []string
		var entries []*entry
		for _, s := range b.of {
			cost, keys, entries = append(cost, 1+s.rng.Int64N(2*s.each())), append(keys, s.Name), append(entries, s.next())
		}
		for _, e := range entries {
			e.begin.Store(now())
		}
		r, err := b.group.AllowEach(context.Background(), cost, keys...)
		end := now()
		settles := first.rng.IntN(4) == 0
		for i, s := range b.of {
			if err != nil || !r.Allowed {
				s.ended(err, false, r.Source)
				continue
			}
			one := r.Of(i)
			s.ended(nil, true, one.Source)
			s.slot = nil
			s.count(grouped)
			entries[i].admitted(one, cost[i], s.named(one), end)
			if settles {
				entries[i].givesBack(cost[i])
				s.count(refunded)
			}
		}
		if settles && err == nil && r.Allowed {
			_ = b.group.Settle(context.Background(), r, []int64{0, 0})
		}
	}
}
