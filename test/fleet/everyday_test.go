package fleet

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
)

var (
	chosen = flag.String("everyday", "", "print the table of everyday limits: `rows` such as 20/60/sticky, 20/*/*, 7/90/bursts25, or all, or scenes")
	seed   = flag.Uint64("seed", 1, "`seed` of all randomness")
	seeds  = flag.Uint64("seeds", 3, "how many `seeds` a row of everyday limits is the mean of")
	window = flag.Duration("window", time.Minute, "`length` of the window of everyday limits")
	tokens = flag.Int64("tokens", 1, "`tokens` that a request for an everyday limit takes")
	demand = flag.Float64("demand", 1.5, "demand for everyday limits, in `limits` per window")
)

// TestEveryday measures limits as most people have them: some tokens a user, behind a
// balancer over some processes. Nothing may be admitted over the limit, and in the scenes no
// less than that; the rest is not asserted. This prints rows of the table:
//
//	go test -run=TestEveryday -everyday='20/60/sticky,3/*/*' -seeds=3
//
// A row is processes/limit/shape, with a shape of manners. A number after the shape is how
// many requests a run has. Other flags are -window and -demand; -everyday=scenes prints
// what a few events do.
func TestEveryday(t *testing.T) {
	if *chosen == "" {
		for _, name := range []string{"3/60/random", "3/60/bursts", "20/60/sticky", "20/300/crowds"} {
			everydayOf(t, name).measure(t, 1, adaptively)
		}
		playScenes(t, false)
		return
	}
	if *chosen != "scenes" {
		fmt.Printf(everydayHeading, *window, *demand, *seeds, *seed)
		missed := map[string]int{}
		for _, name := range everydayNames(*chosen) {
			row := everydayOf(t, name)
			fmt.Println(row.line(row.measure(t, *seeds, adaptively), row.measure(t, *seeds, reservoir.WithDirect()), missed))
		}
		fmt.Println("rows that miss a bar:", missed)
	}
	if *chosen == "all" || *chosen == "scenes" {
		playScenes(t, true)
	}
}

var adaptively = reservoir.WithBatch(reservoir.Adaptive(1, 0))

// everyday is a row of the table.
type everyday struct {
	name      string
	processes int
	limit     int64
	manner
}

// manner is how requests come to processes: in runs of so many at one process and then at
// another, or at a random process each. They come at random times, or a run at one instant.
type manner struct {
	run       int
	scattered bool
	atOnce    bool
}

var manners = map[string]manner{
	"random": {run: 1, scattered: true},
	"bursts": {run: 10, atOnce: true},
	"crowds": {run: 10, atOnce: true, scattered: true},
	"sticky": {run: 20}, // a client keeps a process for a while
}

// everydayNames returns the names of the rows that match the list of patterns, and those
// of the list that are no row of the table.
func everydayNames(list string) (names []string) {
	var all []string
	for _, n := range []int{3, 10, 20, 50} {
		for _, l := range []int{10, 60, 300, 1000, 5000} {
			for _, m := range []string{"random", "bursts", "crowds", "sticky"} {
				all = append(all, fmt.Sprintf("%d/%d/%s", n, l, m))
			}
		}
	}
	all = append(all, "200/6000/random", "200/6000/sticky", "1000/100000/random", "1000/100000/sticky")
	for pattern := range strings.SplitSeq(list, ",") {
		before := len(names)
		for _, name := range all {
			if ok, _ := path.Match(pattern, name); ok || pattern == "all" {
				names = append(names, name)
			}
		}
		if len(names) == before {
			names = append(names, pattern)
		}
	}
	return names
}

// everydayOf returns the row of that name.
func everydayOf(t *testing.T, name string) everyday {
	t.Helper()
	e, shape := everyday{name: name}, ""
	_, err := fmt.Sscanf(strings.ReplaceAll(name, "/", " "), "%d %d %s", &e.processes, &e.limit, &shape)
	require.NoError(t, err, "-everyday=%s: want processes/limit/shape", name)
	kind := strings.TrimRight(shape, "0123456789")
	e.manner = manners[kind]
	require.NotZero(t, e.run, "-everyday=%s: want random, bursts, crowds or sticky", name)
	_, _ = fmt.Sscan(shape[len(kind):], &e.run) // there may be no number
	return e
}

const (
	warm    = 1  // windows that do not count
	counted = 10 // windows that do, see windows

	apart     = time.Millisecond       // one way to the store
	roundTrip = 2*apart + 3*lanePeriod // at most
)

// windows is how many count: fewer where each has so many requests that more show nothing new.
func (e everyday) windows() int {
	if e.limit > 10_000 {
		return counted / 4
	}
	return counted
}

// traffic makes the requests of somewhat more windows than the row has, because each
// window opens at a request.
func (e everyday) traffic(seed uint64) sim.Traffic {
	gap := float64(*window) * float64(*tokens) / (*demand * float64(e.limit))
	if e.atOnce {
		gap *= float64(e.run)
	}
	length := time.Duration(warm+e.windows()+1)**window + time.Duration(30*gap)
	return e.manner.traffic(e.processes, gap, length, seed)
}

// traffic makes the requests of a time. The mean gap is between requests or, if a run comes at
// once, between runs.
func (m manner) traffic(processes int, gap float64, length time.Duration, seed uint64) sim.Traffic {
	r := random(seed, 2)
	t := sim.Traffic{Tokens: *tokens, Keys: []string{"shared"}, Processes: processes, Length: length}
	last := make([]time.Duration, processes)
	process := 0
	for at, i := 0.0, 0; time.Duration(at) < length; i++ {
		switch {
		case m.scattered:
			process = r.IntN(processes)
		case i%m.run == 0:
			process = (process + 1 + r.IntN(processes-1)) % processes
		}
		if !m.atOnce || i%m.run == 0 {
			at += r.ExpFloat64() * gap
		}
		last[process] = lane(process).next(max(time.Duration(at), last[process]+1), request)
		t.Requests = append(t.Requests, sim.Request{At: last[process], Process: int32(process)})
	}
	slices.SortFunc(t.Requests, func(a, b sim.Request) int { return cmp.Compare(a.At, b.At) })
	return t
}

// answer is what one request got.
type answer struct {
	at, took time.Duration
	allowed  bool
}

// play makes the requests of t and returns the outcome, and the answers by window.
func play(t *testing.T, traffic sim.Traffic, l reservoir.Limit, o reservoir.Option, seed uint64) (sim.Outcome, map[int64][]answer) {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	r := replayOf(traffic, l, o, apart, seed)
	answers := map[int64][]answer{}
	r.Answered = func(q sim.Request, r reservoir.Result, took time.Duration) {
		id := r.Reset.UnixMilli()
		answers[id] = append(answers[id], answer{q.At + took, took, r.Allowed})
	}
	total, err := r.Run(context.Background())
	require.NoError(t, err) // of tokens over the limit, too
	require.Zero(t, total.Errors)
	return total, answers
}

// truth is how true the refusals of a window are.
type truth struct {
	first    int64 // tokens that were spent when a request was first refused; -1 = none was
	needless int64 // requests refused while tokens enough were unspent
	spent    int64
}

// truthOf returns the truth of a window's answers, and sorts them. The order of answers at
// one instant is random, so refusals count as the last of these.
func truthOf(answers []answer, limit int64) truth {
	order := map[bool]int{true: 0, false: 1}
	slices.SortFunc(answers, func(a, b answer) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(order[a.allowed], order[b.allowed]))
	})
	w := truth{first: -1}
	for _, a := range answers {
		if a.allowed {
			w.spent += *tokens
			continue
		}
		if w.first < 0 {
			w.first = w.spent
		}
		if w.spent+*tokens <= limit {
			w.needless++
		}
	}
	return w
}

// Two of four are admitted. The refusal at 2 is needless, and that at 3 is true, though it was
// answered before the last token was.
func TestTruth(t *testing.T) {
	answers := []answer{{at: 2, allowed: false}, {at: 1, allowed: true}, {at: 3, allowed: false}, {at: 3, allowed: true}}
	require.Equal(t, truth{first: 1, needless: 1, spent: 2}, truthOf(answers, 2))
	require.Equal(t, truth{first: -1, spent: 1}, truthOf([]answer{{at: 1, allowed: true}}, 2))
}

// sums are the figures of a row over its seeds and windows.
type sums struct {
	windows, refusing         int64 // windows in all, and with a refusal
	first, worst              float64
	requests, needless, calls int64
	waited, late              int64 // for a round trip at least, and for longer
	longest                   time.Duration
}

func (e everyday) measure(t *testing.T, seeds uint64, o reservoir.Option) (s sums) {
	t.Helper()
	s.worst = 1
	for i := range seeds {
		total, answers := play(t, e.traffic(*seed+i), reservoir.Limit{Tokens: e.limit, Window: *window}, o, *seed+i)
		all := slices.DeleteFunc(total.Windows, func(w *sim.Window) bool { return w.Requests == 0 })
		end := warm + e.windows()
		require.Greater(t, len(all), end, "the traffic ended before the windows did")
		s.calls += all[end].Calls - all[warm].Calls
		for _, w := range all[warm:end] {
			s.windows, s.requests, s.waited = s.windows+1, s.requests+w.Requests, s.waited+w.Waited
			s.add(answers[int64(w.ID)], e.limit)
		}
	}
	return s
}

// add adds the answers of a window.
func (s *sums) add(answers []answer, limit int64) {
	w := truthOf(answers, limit)
	s.needless += w.needless
	if w.first >= 0 {
		spent := sim.Ratio(w.first, limit)
		s.refusing, s.first, s.worst = s.refusing+1, s.first+spent, min(s.worst, spent)
	}
	for _, a := range answers {
		s.longest = max(s.longest, a.took)
		if a.took > roundTrip {
			s.late++
		}
	}
}
