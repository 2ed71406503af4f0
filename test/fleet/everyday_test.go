package fleet

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
)

// everyday is a row of the table: some processes that share a limit as most people have them.
// Its name is processes/limit/shape, and then the window if that is not a minute, and how far
// away the store is, one way, if that is not a millisecond: 20/1000/bursts/1s/25ms.
type everyday struct {
	name      string
	processes int
	limit     int64
	window    time.Duration
	away      time.Duration
	manner
	rests bool // it measures what processes hold at rest, see idle
}

// manner is how requests come to processes: in runs of so many at one process and then at
// another, or at a random process each. They come at random times, or a run at one instant.
type manner struct {
	run       int
	scattered bool
	atOnce    bool

	sizes []int64 // tokens of a request, each as likely; nil = one token
	used  int64   // what a request turns out to have used, settled somewhat later; 0 = all
	moves bool    // nine in ten requests come to a tenth of the processes, and then to the next tenth
	near  bool    // every other request comes to process 0, which alone is a millisecond away from the store
	pause bool    // requests come for 1.3 windows, then none for 1.7
}

var manners = map[string]manner{
	"random": {run: 1, scattered: true},
	"bursts": {run: 10, atOnce: true},
	"crowds": {run: 10, atOnce: true, scattered: true},
	"sticky": {run: 20}, // a client keeps a process for a while
	"mixed":  {run: 1, scattered: true, sizes: []int64{1, 2, 5, 10}},
	"large":  {run: 1, scattered: true, sizes: []int64{1, 1, 1, 50}},
	"settle": {run: 1, scattered: true, sizes: []int64{10}, used: 3},
	"moves":  {run: 1, moves: true},
	"near":   {run: 1, near: true, scattered: true},
	"pauses": {run: 1, scattered: true, pause: true},
}

// policy is how limiters fetch tokens for a limit.
type policy struct {
	name, what string
	option     reservoir.Option
	rolls      bool
}

var (
	byDefault  = reservoir.WithBatch(1, 0)
	exactly    = reservoir.WithFixedBatch(1)
	directly   = reservoir.WithDirect()
	theDefault = policy{"default", "fixed windows, batches as by default", byDefault, false}
	policies   = []policy{
		theDefault,
		{"exact", "fixed windows, Fixed(1): batches of what callers need", exactly, false},
		{"direct", "fixed windows, WithDirect", directly, false},
		{"rolling", "rolling limits, batches as by default", byDefault, true},
		{"rolling-exact", "rolling limits, Fixed(1)", exactly, true},
		{"rolling-direct", "rolling limits, WithDirect", directly, true},
	}
)

// classic are the rows whose calls are summed, the first 84 of the table.
func classic() (names []string) {
	for _, n := range []int{3, 10, 20, 50} {
		for _, l := range []int{10, 60, 300, 1000, 5000} {
			for _, m := range []string{"random", "bursts", "crowds", "sticky"} {
				names = append(names, fmt.Sprintf("%d/%d/%s", n, l, m))
			}
		}
	}
	return append(names, "200/6000/random", "200/6000/sticky", "1000/100000/random", "1000/100000/sticky")
}

// further are the rows of what the classic ones lack.
var further = []string{
	"3/60/mixed", "3/300/mixed", "20/300/mixed", "20/1000/mixed", "20/5000/mixed",
	"3/300/large", "3/1000/large", "20/1000/large", "20/5000/large",
	"3/300/settle", "20/300/settle", "20/1000/settle", "20/5000/settle",
	"10/300/moves", "20/1000/moves", "50/5000/moves", "20/1000/moves/10s",
	"3/60/pauses", "20/300/pauses", "20/1000/pauses",
	"3/100/near/1s/10ms", "3/100/near/1s/20ms", "10/1000/near/1s/10ms", "10/1000/near/1s/20ms",
	"3/100/near/10s/10ms", "3/100/near/10s/20ms", "10/1000/near/10s/10ms", "10/1000/near/10s/20ms",
	"3/10/random/1s", "3/10/bursts/1s", "3/10/sticky/1s", "20/10/random/1s", "20/10/bursts/1s", "20/10/sticky/1s",
	"3/300/random/1s/25ms", "20/1000/random/1s/25ms", "20/1000/bursts/1s/25ms", "20/1000/crowds/1s/25ms", "20/1000/sticky/1s/25ms",
}

// rowsOf returns the rows of a policy. Default and exact need have all, because the one is
// judged by the other. Direct callers get exactly what they ask for, whatever the limit, so
// there is no need for many rows. Rolling limits have those in which windows matter.
func rowsOf(p policy) []string {
	some := []string{"3/60/*", "20/60/*", "3/300/*", "20/300/*"}
	switch p.name {
	case "default", "exact":
		return slices.Concat(classic(), further)
	case "direct":
		return slices.Concat(matching(classic(), some...), matching(further, "3/*", "*/10/*/1s", "20/300/*", "20/1000/mixed", "20/1000/large"))
	case "rolling", "rolling-exact":
		return slices.Concat(matching(classic(), append(some, "3/1000/*", "20/1000/*", "20/5000/random")...), further)
	}
	return matching(slices.Concat(classic(), further), "3/60/*", "20/300/random", "20/300/bursts", "*/10/*/1s")
}

// matching returns the names that match one of the patterns.
func matching(names []string, patterns ...string) (some []string) {
	for _, name := range names {
		if slices.ContainsFunc(patterns, func(pattern string) bool {
			depth := strings.Count(pattern, "/")
			head := strings.SplitAfterN(name, "/", depth+2) // a pattern matches what a name begins with
			ok, _ := path.Match(pattern, strings.TrimSuffix(strings.Join(head[:min(depth+1, len(head))], ""), "/"))
			return ok
		}) {
			some = append(some, name)
		}
	}
	return some
}

// everydayOf returns the row of that name. A number after the shape is how many requests a
// run has.
func everydayOf(t *testing.T, name string) everyday {
	t.Helper()
	e := everyday{name: name, window: time.Minute, away: time.Millisecond}
	parts := strings.Split(name, "/")
	require.GreaterOrEqual(t, len(parts), 3, "%s: want processes/limit/shape/window/distance", name)
	_, err := fmt.Sscan(strings.Join(parts[:2], " "), &e.processes, &e.limit)
	require.NoError(t, err, name)
	for i, d := range parts[3:] {
		*[]*time.Duration{&e.window, &e.away}[i], err = time.ParseDuration(d)
		require.NoError(t, err, name)
	}
	shape := strings.TrimRight(parts[2], "0123456789")
	e.manner = manners[shape]
	require.NotZero(t, e.run, "%s: no such shape", name)
	_, _ = fmt.Sscan(parts[2][len(shape):], &e.run) // there may be no number
	return e
}

// idle returns the row of what a process holds at rest after a visit: so many requests at one
// instant, to each of five processes four times a window.
func idle(limit int64, window, away time.Duration, visit int) everyday {
	return everyday{
		name: fmt.Sprintf("%d/%v/%v", limit, window, 2*away), processes: 5, limit: limit, window: window, away: away,
		manner: manner{run: visit, atOnce: true}, rests: true,
	}
}

const (
	demanded = 1.5 // limits per window
	warm     = 1   // windows that do not count
)

// windows is how many count: more of short windows with few requests, and fewer of windows
// with so many that more show nothing new.
func (e everyday) windows() int {
	switch {
	case e.limit > 10_000:
		return 2
	case e.window < 10*time.Second && e.limit <= 1000:
		return 40
	}
	return 10
}

// requests makes the requests of somewhat more windows than the row has, because each
// window opens at a request.
func (e everyday) requests(seed uint64) []request {
	net := e.size()
	if e.used > 0 {
		net = float64(e.used)
	}
	gap := float64(e.window) * net / (demanded * float64(e.limit))
	switch {
	case e.rests:
		gap = float64(e.window) / float64(4*e.processes)
	case e.atOnce:
		gap *= float64(e.run)
	}
	length := time.Duration(warm+e.windows()+1)*e.window + time.Duration(30*gap)
	if e.pause {
		length *= 3
	}
	return e.manner.requests(e.processes, e.window, gap, length, seed)
}

// size is the mean of the requests' tokens.
func (m manner) size() float64 {
	if m.sizes == nil {
		return 1
	}
	sum := int64(0)
	for _, n := range m.sizes {
		sum += n
	}
	return float64(sum) / float64(len(m.sizes))
}

// request is one request.
type request struct {
	at      time.Duration
	process int
	tokens  int64
	used    int64 // what is settled later; -1 = nothing is
}

// requests makes the requests of a time. The mean gap is between requests or, if a run comes at
// once, between runs.
func (m manner) requests(processes int, window time.Duration, gap float64, length time.Duration, seed uint64) (all []request) {
	r := random(seed, 2)
	last := make([]time.Duration, processes)
	process, at := 0, 0.0 // pauses do not count in at
	now := func() time.Duration {
		if !m.pause {
			return time.Duration(at)
		}
		return time.Duration(at + 1.7*float64(window)*math.Floor(at/(1.3*float64(window))))
	}
	for i := 0; now() < length; i++ {
		switch {
		case m.near && r.IntN(2) == 0:
			process = 0
		case m.moves:
			process = hot(r.IntN, processes, int(12*now()/window))
		case m.scattered:
			process = r.IntN(processes)
		case i%m.run == 0:
			process = (process + 1 + r.IntN(processes-1)) % processes
		}
		if !m.atOnce || i%m.run == 0 {
			at += r.ExpFloat64() * gap
		}
		last[process] = lane(process).next(max(now(), last[process]+1), asking)
		q := request{at: last[process], process: process, tokens: 1, used: -1}
		if m.sizes != nil {
			q.tokens = m.sizes[r.IntN(len(m.sizes))]
		}
		if m.used > 0 {
			q.used = m.used
		}
		all = append(all, q)
	}
	slices.SortFunc(all, func(a, b request) int { return cmp.Compare(a.at, b.at) })
	return all
}

// hot returns one of a tenth of the processes, nine times of ten. Which tenth follows from turn.
func hot(intN func(int) int, processes, turn int) int {
	tenth := max(processes/10, 1)
	if intN(10) == 0 {
		return intN(processes)
	}
	return (turn*tenth + intN(tenth)) % processes
}
