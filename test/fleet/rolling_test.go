package fleet

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

var rollingRows = flag.String("rolling", "", "measure all rolling limits, or those whose names contain one of these `parts`, such as 'settle;9 to 2'")

const rollingHeading = `Rolling limits, each with its bar. The limiters are real, the clock is virtual, the network takes 1 ms there
and back where nothing else is said, and who is refused does not come again. L is the limit, T its window.
The same seed gives the same table. Seed %d.

most       the most tokens spent in any interval of T, of L, by the list of all admissions: never above 100 %%
share      tokens spent, of L for each T
calls      store calls, of the requests admitted; where it says so, in each T
waits      requests that wait for the store, of all
free       requests refused while L would not have been exceeded by what was spent in 1.05 T, of all
÷ exact    tokens used, of those that a list of all admissions would allow for the same requests
unspent    of L, at the first refusal
Jain       of what each process was admitted in a T, of its demand
lost       of L: what a killed process held. back: when all of L is free again, with no demand since
`

// roll is a row: a fleet that shares a rolling limit.
type roll struct {
	name      string
	quick     bool // it is one of the ordinary tests
	processes int
	limit     int64
	window    time.Duration // 0 = a minute
	trip      time.Duration // there and back; 0 = a millisecond
	direct    bool
	runs      uint64 // with a seed each, 0 = one; a figure is their mean
	play      func(*stage)
	bars      []rollBar
}

// rollBar is a bar for a figure. A sign of "" is none.
type rollBar struct {
	figure, sign string
	bar          float64
	unit         string // "%" = the figure is a share
}

func atMost(figure string, bar float64, unit string) rollBar {
	return rollBar{figure, "≤", bar, unit}
}
func atLeast(figure string, bar float64, unit string) rollBar {
	return rollBar{figure, "≥", bar, unit}
}

func (b rollBar) met(v float64) bool {
	const rounding = 1e-9
	switch b.sign {
	case "≤":
		return v <= b.bar+rounding
	case "≥":
		return v >= b.bar-rounding
	}
	return true
}

// cells are the figure, its value, and its bar with a mark.
func (b rollBar) cells(v float64) []string {
	text := func(v float64) string {
		if b.unit == "%" {
			return fmt.Sprintf("%.4g %%", 100*v)
		}
		return strings.TrimSpace(fmt.Sprintf("%.4g %s", v, b.unit))
	}
	if b.sign == "" {
		return []string{b.figure, text(v), ""}
	}
	return []string{b.figure, text(v), b.sign + " " + text(b.bar) + " " + mark[b.met(v)]}
}

// TestRolling measures rolling limits. Without a flag it is a part of the rows, and a missed bar fails.
//
//	make rolling                                    # all rows
//	go test -run=TestRolling -rolling='settle;9 to 2'
func TestRolling(t *testing.T) {
	cells := [][]string{{"", "most", "", "", "bar"}}
	for _, r := range rolls {
		if !r.chosen(*rollingRows) {
			continue
		}
		begin := time.Now()
		figures := r.measure(t, *seed)
		assert.LessOrEqual(t, figures["most"], 1.0, "%s: over the limit", r.name)
		for i, b := range r.bars {
			v, ok := figures[b.figure]
			require.True(t, ok, "%s: no figure %s", r.name, b.figure)
			if *rollingRows == "" {
				assert.True(t, b.met(v), "%s: %v", r.name, b.cells(v))
			}
			head := []string{r.name, fmt.Sprintf("%.2f %%", 100*figures["most"])}
			if i > 0 {
				head = []string{"", ""}
			}
			cells = append(cells, append(head, b.cells(v)...))
		}
		if *rollingRows != "" {
			fmt.Fprintf(os.Stderr, "%s: %v\n", r.name, time.Since(begin).Round(time.Millisecond))
		}
	}
	require.Greater(t, len(cells), 1, "-rolling=%s: no such rows", *rollingRows)
	text := fmt.Sprintf(rollingHeading, *seed) + "\n" + table.Text(cells, false)
	if *rollingRows != "" {
		fmt.Print(text)
	}
	if *keep != "" {
		require.NoError(t, os.WriteFile(*keep, []byte(text), 0o666))
	}
}

func (r roll) chosen(parts string) bool {
	switch parts {
	case "":
		return r.quick
	case "all":
		return true
	}
	return slices.ContainsFunc(strings.Split(parts, ";"), func(part string) bool { return strings.Contains(r.name, part) })
}

// TestRollingJudge: the judge sees what is over, and what an interval has forgotten is not. One of two processes has a store of its own,
// so that each spends the limit.
func TestRollingJudge(t *testing.T) {
	apart := roll{processes: 2, limit: 10, play: func(s *stage) {
		require.NoError(t, s.limiters[1].Close(context.Background()))
		other := testnet.Far(0)
		l, err := reservoir.New(other.Port(1, 0), reservoir.PerMinute(10).Rolling())
		require.NoError(t, err)
		s.limiters[1] = l
		for process := range 2 {
			for range 11 {
				s.ask(process, 1)
			}
		}
	}}
	require.InDelta(t, 2, apart.measure(t, 1)["most"], 0)

	s := spends{window: 10}
	s.add(0, 0, 3)
	first := s.add(2, 0, 4)
	s.add(9, 1, 2)
	require.EqualValues(t, 9, s.most)
	require.EqualValues(t, 6, s.sumAt(10))
	s.settle(first, 1)
	require.EqualValues(t, 3, s.sumAt(11))
	require.EqualValues(t, 2, s.sumAt(12))
	s.settle(first, 0)
	require.EqualValues(t, 2, s.sumAt(12))
	require.EqualValues(t, 9, s.most)
	tokens, requests := s.between(2, 10)
	require.Equal(t, []int64{2, 2}, []int64{tokens, requests})
}

// measure plays a row and returns the means of its figures over its runs, but the worst of "most".
func (r roll) measure(t *testing.T, seed uint64) map[string]float64 {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r.window, r.trip, r.runs = cmp.Or(r.window, time.Minute), cmp.Or(r.trip, time.Millisecond), cmp.Or(r.runs, 1)
	means := map[string]float64{}
	for i := range r.runs {
		s := &stage{roll: r, seed: seed + i, figures: map[string]float64{}}
		s.spent, s.counting, s.exact = spends{window: r.window}, spends{window: remembers(r.window)}, spends{window: r.window}
		func() {
			defer chance.Seed(s.seed)()
			cryptotest.SetGlobalRandom(t, s.seed)
			synctest.Test(t, s.run)
		}()
		means["most"] = max(means["most"], float64(s.spent.most)/float64(r.limit))
		for name, v := range s.figures {
			means[name] += v / float64(r.runs)
			means["worst "+name] = max(means["worst "+name], v)
		}
	}
	return means
}

// stage is one run of a row.
type stage struct {
	roll
	seed     uint64
	t        *testing.T
	net      *testnet.Network
	begin    time.Time
	limiters []*reservoir.Limiter
	figures  map[string]float64
	asking   sync.WaitGroup
	refusal  func() // is called at each, with the lock

	mu sync.Mutex // guards the fields below
	spent,
	counting, // the same, each token for as long as it may count
	exact spends // what a list of all admissions allows
	asked, waited, refused, free int64
	counts                       bool // the time has come from which requests count
}

func (s *stage) run(t *testing.T) {
	s.t, s.begin = t, time.Now()
	s.net = testnet.Far(0)
	s.net.Travel = func(who int, leg testnet.Leg) time.Duration {
		event := map[testnet.Leg]time.Duration{testnet.Going: reach, testnet.Coming: reply, testnet.Message: message}[leg]
		return lane(who).next(s.now()+s.trip/2, event) - s.now()
	}
	for i := range s.processes {
		s.limiters = append(s.limiters, s.limiter(i))
	}
	s.play(s)
	s.asking.Wait()
	for _, l := range s.limiters {
		ctx, cancel := context.WithTimeout(context.Background(), s.window)
		_ = l.Close(ctx) // a killed one cannot
		cancel()
	}
}

func (s *stage) limiter(who int) *reservoir.Limiter {
	option := byDefault
	if s.direct {
		option = directly
	}
	l, err := reservoir.New(s.net.Port(who, 0), reservoir.Limit{Tokens: s.limit, Window: s.window}.Rolling(), option)
	require.NoError(s.t, err)
	return l
}

func (s *stage) now() time.Duration { return time.Since(s.begin) }

func (s *stage) locked(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

// until sleeps until so many windows have gone by.
func (s *stage) until(windows float64) {
	time.Sleep(time.Duration(windows*float64(s.window)) - s.now())
}

// ask makes a request and judges its answer. It returns where the admission is in the list.
func (s *stage) ask(process int, tokens int64) (r reservoir.Result, i int) {
	s.locked(func() {
		if s.counts {
			s.asked++
		}
	})
	r, err := s.limiters[process].AllowN(context.Background(), "shared", tokens)
	return r, s.answered(process, tokens, r, err)
}

func (s *stage) answered(process int, tokens int64, r reservoir.Result, err error) (i int) {
	assert.NoError(s.t, err, s.name)
	s.locked(func() {
		if s.counts && r.Source != reservoir.Local {
			s.waited++
		}
		if err == nil && r.Allowed {
			i = s.spent.add(s.now(), process, tokens)
			s.counting.add(s.now(), process, tokens)
			return
		}
		if s.counts {
			s.refused++
			if s.counting.sumAt(s.now())+tokens <= s.limit {
				s.free++
			}
		}
		if s.refusal != nil {
			s.refusal()
		}
	})
	return i
}

// demand is requests to all processes at random times.
type demand struct {
	kind            kind          // nil = equal
	load            float64       // in limits for each window, by what requests turn out to use
	until           float64       // windows
	reserve, used   int64         // tokens; 0 = one, all of it
	after, atLatest time.Duration // it is settled
}

// come makes the requests of d, and returns when the last was made.
func (s *stage) come(d demand) {
	d.reserve = cmp.Or(d.reserve, 1)
	d.used = cmp.Or(d.used, d.reserve)
	if d.kind == nil {
		d.kind = equal
	}
	shape, end := d.kind(s.processes, random(s.seed, 0)), time.Duration(d.until*float64(s.window))
	var coming sync.WaitGroup
	for process := range s.processes {
		coming.Go(func() {
			r := random(s.seed, 1<<32+uint64(process))
			a := arrivals{shape, process, d.load * float64(s.limit) / float64(d.used) / s.window.Seconds(), r}
			for at, made := a.after(s.now()), time.Duration(0); at < end; at = a.after(at) {
				made = lane(process).next(max(at, made+1), asking)
				time.Sleep(made - s.now())
				settle := d.after
				if d.atLatest > d.after {
					settle += time.Duration(r.Int64N(int64(d.atLatest - d.after)))
				}
				s.asking.Go(func() { s.use(process, d, settle) })
				if d.used < d.reserve {
					s.asking.Go(func() { s.useExactly(d, settle) })
				}
			}
		})
	}
	coming.Wait()
}

// use makes a request, and settles it if it used less.
func (s *stage) use(process int, d demand, after time.Duration) {
	r, i := s.ask(process, d.reserve)
	if !r.Allowed || d.used == d.reserve {
		return
	}
	time.Sleep(lane(process).next(s.now()+after, asking) - s.now())
	s.locked(func() {
		s.spent.settle(i, d.used)
		s.counting.settle(i, d.used)
	})
	assert.NoError(s.t, s.limiters[process].Settle(context.Background(), r, d.used), s.name)
}

// useExactly makes the request to the list of all admissions.
func (s *stage) useExactly(d demand, after time.Duration) {
	i := -1
	s.locked(func() {
		if s.exact.sumAt(s.now())+d.reserve <= s.limit {
			i = s.exact.add(s.now(), 0, d.reserve)
		}
	})
	if i < 0 {
		return
	}
	time.Sleep(after)
	s.locked(func() { s.exact.settle(i, d.used) })
}

// steady measures a demand from a window on until its end.
func steady(d demand, from float64) func(*stage) {
	return func(s *stage) {
		s.asking.Go(func() {
			s.until(from)
			s.locked(func() { s.counts = true })
		})
		s.come(d)
		s.locked(func() { s.counts = false })
		s.asking.Wait()
		s.sum(time.Duration(from*float64(s.window)), time.Duration(d.until*float64(s.window)), d)
	}
}

// sum makes the figures of a time.
func (s *stage) sum(begin, end time.Duration, d demand) {
	windows := float64(end-begin) / float64(s.window)
	used, admitted := s.spent.between(begin, end)
	calls := 0.0
	for _, c := range s.net.Calls("") {
		if at := c.At.Sub(s.begin); begin <= at && at < end {
			calls++
		}
	}
	exact, _ := s.exact.between(begin, end)
	s.figures["share"] = float64(used) / float64(s.limit) / windows
	s.figures["calls"] = calls / float64(max(admitted, 1))
	s.figures["calls in T"] = calls / windows
	s.figures["waits"] = float64(s.waited) / float64(s.asked)
	s.figures["refused"] = float64(s.refused) / float64(s.asked)
	s.figures["free"] = float64(s.free) / float64(s.asked)
	s.figures["÷ exact"] = float64(used) / float64(max(exact, 1))
	s.figures["Jain"] = s.jain(begin, end, d)
}

// jain is the mean over the windows of (Σx)² ÷ nΣx², x being what a process was admitted of its demand.
func (s *stage) jain(begin, end time.Duration, d demand) float64 {
	if d.kind == nil {
		d.kind = equal
	}
	shape := d.kind(s.processes, random(s.seed, 0))
	mean, windows := 0.0, 0.0
	for ; begin+s.window <= end; begin += s.window {
		got := make([]float64, s.processes)
		for _, x := range s.spent.all {
			if begin <= x.at && x.at < begin+s.window {
				got[x.process] += float64(x.tokens)
			}
		}
		sum, squares := 0.0, 0.0
		for i, x := range got {
			x /= average(shape, i, s.window)
			sum, squares = sum+x, squares+x*x
		}
		mean, windows = mean+sum*sum/squares/float64(s.processes), windows+1
	}
	return mean / windows
}

// average is a process' mean share over a long time.
func average(of shape, i int, window time.Duration) (mean float64) {
	end := 100 * window
	for t := time.Duration(0); t < end; {
		share, until := of(i, t)
		until = min(until, end)
		mean += share * float64(until-t) / float64(end)
		t = until
	}
	return mean
}

// spends is a list of admissions in the order of time, with what was spent in the last window.
type spends struct {
	window    time.Duration
	all       []spend
	first     int // the first that counts
	sum, most int64
}

type spend struct {
	at      time.Duration
	tokens  int64
	process int
}

// sumAt is what was spent in the window until now.
func (s *spends) sumAt(now time.Duration) int64 {
	for ; s.first < len(s.all) && now-s.all[s.first].at >= s.window; s.first++ {
		s.sum -= s.all[s.first].tokens
	}
	return s.sum
}

func (s *spends) add(now time.Duration, process int, tokens int64) (i int) {
	s.sum = s.sumAt(now) + tokens
	s.most = max(s.most, s.sum)
	s.all = append(s.all, spend{now, tokens, process})
	return len(s.all) - 1
}

// settle corrects what was spent.
func (s *spends) settle(i int, used int64) {
	if i >= s.first {
		s.sum -= s.all[i].tokens - used
	}
	s.all[i].tokens = used
}

// between returns the tokens of [begin, end), and the number of their requests.
func (s *spends) between(begin, end time.Duration) (tokens, requests int64) {
	for _, x := range s.all {
		if begin <= x.at && x.at < end {
			tokens, requests = tokens+x.tokens, requests+1
		}
	}
	return tokens, requests
}

// onOff gives every process a fifth of the time, one after another.
func onOff(n int, _ *rand.Rand) shape {
	return func(i int, t time.Duration) (float64, time.Duration) {
		const step = 5 * time.Second
		at := (t + time.Duration(0.37*float64(i)*float64(step))) % (5 * step)
		if at < step {
			return 5 / float64(n), t + step - at
		}
		return 0, t + 5*step - at
	}
}

// movesTo gives all to the first two processes from a time on.
func movesTo(at time.Duration) kind {
	return func(n int, _ *rand.Rand) shape {
		return func(i int, t time.Duration) (float64, time.Duration) {
			switch {
			case t < at:
				return 1 / float64(n), at
			case i < 2:
				return 0.5, math.MaxInt64
			}
			return 0, math.MaxInt64
		}
	}
}
