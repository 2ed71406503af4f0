package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

var rolls = allRolls()

// allRolls are the rows, each with its bars. Where a figure has none, it says what the others cost.
func allRolls() (all []roll) {
	row := func(processes int, limit int64, what string, play func(*stage), bars ...rollBar) *roll {
		name := fmt.Sprintf("%d × %s: %s", processes, table.Commas(limit/int64(processes)), what)
		if limit%int64(processes) != 0 {
			name = fmt.Sprintf("%d share %s: %s", processes, table.Commas(limit), what)
		}
		all = append(all, roll{name: name, processes: processes, limit: limit, play: play, bars: bars})
		return &all[len(all)-1]
	}

	// Overload comes back with a period of 1.05 T, so it is measured for 21 T.
	for _, f := range []struct {
		processes int
		limit     int64
		calls     float64
	}{{8, 60_000, 0.0035}, {100, 60_000, 0.035}, {20, 1200, 0.55}} {
		row(f.processes, f.limit, "overload", steady(demand{load: 1.5, until: 31}, 10),
			atLeast("most", 1, "%"), atLeast("share", 0.94, "%"), atMost("calls", f.calls, "%"), atLeast("Jain", 0.98, ""))
	}
	row(3, 180, "overload", steady(demand{load: 1.5, until: 31}, 10), atLeast("most", 1, "%"), rollBar{figure: "share", unit: "%"}, rollBar{figure: "calls", unit: "%"})
	row(8, 1200, "overload, a short run", steady(demand{load: 1.5, until: 4}, 2), atLeast("share", 0.91, "%"), atMost("calls", 0.3, "%")).quick = true

	// Below the limit.
	for _, f := range []struct {
		processes int
		limit     int64
		load      float64
		calls     float64
	}{{8, 60_000, 0.5, 0.0006}, {8, 60_000, 0.7, 0.0008}, {8, 60_000, 0.9, 0.004}, {100, 60_000, 0.5, 0.008}, {100, 60_000, 0.7, 0.012}, {100, 60_000, 0.9, 0.06}} {
		bars := []rollBar{atMost("calls", f.calls, "%"), atMost("waits", 0.0002, "%"), atMost("free", 0.0005, "%")}
		if f.load > 0.8 {
			bars[1].sign = ""
		}
		row(f.processes, f.limit, fmt.Sprint(f.load, " L"), steady(demand{load: f.load, until: 10}, 4), bars...)
	}
	for _, f := range []struct {
		processes int
		limit     int64
	}{{20, 1200}, {3, 180}} {
		row(f.processes, f.limit, "0.9 L", steady(demand{load: 0.9, until: 14}, 4), atMost("free", 0.02, "%"), rollBar{figure: "calls", unit: "%"}, rollBar{figure: "waits", unit: "%"}).runs = 10
	}
	row(8, 1200, "half of L, a short run", steady(demand{load: 0.5, until: 4}, 2), atMost("calls", 0.06, "%"), atMost("free", 0, "%")).quick = true

	// Refusals.
	for _, load := range []float64{10, 100} {
		row(8, 60, fmt.Sprintf("%v times the demand", load), steady(demand{load: load, until: 8}, 4), atMost("calls in T", 80, ""), rollBar{figure: "share", unit: "%"}).quick = true
	}
	for _, direct := range []bool{false, true} {
		r := row(8, 60, map[bool]string{false: "1,000 callers in 20 s on a used-up key", true: "1,000 callers at once on a used-up key, direct"}[direct], usedUp, atMost("calls in all", 20, ""))
		r.direct = direct
		r.quick = true
	}

	// Settling.
	for _, f := range []struct {
		processes int
		limit     int64
	}{{8, 60_000}, {3, 6000}} {
		for _, used := range []int64{10, 2} {
			for _, d := range []demand{{after: time.Second / 2, atLatest: 10 * time.Second}, {after: time.Second}} {
				d.load, d.until, d.reserve, d.used = 1.5, 25, 20, used
				delay := "after 0.5 to 10 s"
				if d.atLatest == 0 {
					delay = "after 1 s"
				}
				row(f.processes, f.limit, fmt.Sprintf("settle 20 to %d %s", used, delay), steady(d, 4),
					atLeast("÷ exact", map[int64]float64{10: 0.95, 2: 0.7}[used], "%"), rollBar{figure: "share", unit: "%"}, rollBar{figure: "calls", unit: "%"})
			}
		}
	}
	row(3, 1200, "settle 20 to 2 after 1 s, a short run", steady(demand{load: 1.5, until: 8, reserve: 20, used: 2, after: time.Second}, 3), atLeast("÷ exact", 0.7, "%")).quick = true

	// Demand that moves.
	for _, limit := range []int64{1000, 9000, 60_000} {
		for _, f := range []struct{ load, bar float64 }{{1.2, 0.02}, {3, 0.07}} {
			r := row(9, limit, fmt.Sprintf("demand of %v L moves from 9 to 2", f.load), moving(f.load), atMost("unspent", f.bar, "%"), rollBar{figure: "worst unspent", unit: "%"})
			r.runs, r.quick = 5, limit == 1000 && f.load > 2
		}
	}

	// Small limits, seen by one caller.
	for _, direct := range []bool{false, true} {
		for _, processes := range []int{1, 3} {
			how := map[bool]string{false: "", true: ", direct"}[direct]
			r := row(processes, 1, "one token a second, callers that Wait"+how, oneToken, atMost("windows a token", 1.10, ""))
			r.name, r.window, r.direct = fmt.Sprintf("%d: one token a second, callers that Wait%s", processes, how), time.Second, direct
			r.quick = true
			for _, limit := range []int64{3, 10} {
				r = row(processes, limit, "", afterRetry, atMost("refused again", 0, "%"))
				r.name, r.window, r.direct = fmt.Sprintf("%d: %d a second, after RetryAfter%s", processes, limit, how), time.Second, direct
				r.quick = processes == 1
			}
		}
	}

	// Fairness.
	for _, processes := range []int{8, 100} {
		row(processes, 60_000, "on and off", steady(demand{kind: onOff, load: 1.5, until: 25}, 4), atLeast("Jain", map[int]float64{8: 0.85, 100: 0.92}[processes], ""), rollBar{figure: "share", unit: "%"})
		row(processes, 60_000, "zipf", steady(demand{kind: zipf, load: 1.5, until: 25}, 4), atLeast("share", 0.9, "%"), rollBar{figure: "Jain"})
	}

	far := row(8, 1000, "a second, 60 ms away", steady(demand{load: 1.5, until: 52}, 10), atLeast("share", 0.9, "%"), rollBar{figure: "calls", unit: "%"})
	far.window, far.trip = time.Second, 60*time.Millisecond

	for _, load := range []float64{0.5, 0.7, 0.9, 1.5} {
		r := row(8, 60_000, fmt.Sprintf("one killed at %v L", load), killed(load), atMost("lost", 0.035, "%"), atMost("back", 1.5, "T"), rollBar{figure: "worst lost", unit: "%"}, rollBar{figure: "worst back", unit: "T"})
		r.runs = 8
	}
	return all
}

// usedUp has all processes use the limit up, and then 1,000 callers come, at one instant if they ask the store directly.
func usedUp(s *stage) {
	for process := range s.processes {
		for allowed := true; allowed; {
			var r, _ = s.ask(process, 1)
			allowed = r.Allowed
		}
	}
	time.Sleep(s.window / 10)
	before := len(s.net.Calls(""))
	for i := range 1000 {
		if !s.direct {
			time.Sleep(s.window / 3000)
		}
		s.asking.Go(func() { s.ask(i%s.processes, 1) })
	}
	s.asking.Wait()
	s.figures["calls in all"] = float64(len(s.net.Calls("")) - before)
}

// moving has all processes ask for 20 seconds of a cold minute, and then two alone.
func moving(load float64) func(*stage) {
	return func(s *stage) {
		moved := s.window / 3
		unspent := -1.0
		s.refusal = func() {
			if unspent < 0 && s.now() > moved {
				unspent = 1 - float64(s.spent.sumAt(s.now()))/float64(s.limit)
			}
		}
		s.come(demand{kind: movesTo(moved), load: load, until: 1})
		s.asking.Wait()
		require.GreaterOrEqual(s.t, unspent, 0.0, "nothing was refused")
		s.figures["unspent"] = unspent
	}
}

// oneToken has a caller at each process wait for a token, and then for the next, sixty in all.
func oneToken(s *stage) {
	const tokens = 60
	for process := range s.processes {
		s.asking.Go(func() {
			for range tokens / s.processes {
				r, err := s.limiters[process].WaitN(context.Background(), "shared", 1)
				s.answered(process, 1, r, err)
			}
		})
	}
	s.asking.Wait()
	first, last := s.spent.all[0].at, s.spent.all[len(s.spent.all)-1].at
	s.figures["windows a token"] = float64(last-first) / float64(s.window) / float64(len(s.spent.all)-1)
}

// afterRetry has a caller go from process to process until each refuses. It comes back to the last after
// RetryAfter.
func afterRetry(s *stage) {
	const rounds = 40
	again := 0.0
	for range rounds {
		var wait time.Duration
		for process := range s.processes {
			for allowed := true; allowed; {
				r, _ := s.ask(process, 1)
				allowed, wait = r.Allowed, r.RetryAfter
			}
		}
		time.Sleep(wait)
		if r, _ := s.ask(s.processes-1, 1); !r.Allowed {
			again++
		}
	}
	s.figures["refused again"] = again / rounds
}

// killed has a process end without a word, at some time after three windows, and all others close and leave.
func killed(load float64) func(*stage) {
	return func(s *stage) {
		end := 3 + random(s.seed, 4).Float64()
		s.come(demand{load: load, until: end})
		s.until(end)
		victim := int(s.seed) % s.processes
		lost := s.limiters[victim].Stats().Held
		s.net.Faults(func(c *testnet.Call) testnet.Fault {
			if c.Who == victim {
				return testnet.LoseRequest
			}
			return testnet.Fine
		})
		for i, l := range s.limiters {
			if i != victim {
				assert.NoError(s.t, l.Close(context.Background()))
			}
		}
		at, looker := s.now(), s.limiter(s.processes)
		for left := int64(0); left < s.limit; {
			time.Sleep(s.window / 100)
			r, err := looker.Check(context.Background(), "shared")
			require.NoError(s.t, err)
			left = r.Remaining
			require.Less(s.t, s.now()-at, 10*s.window)
		}
		s.figures["lost"] = float64(lost) / float64(s.limit)
		s.figures["back"] = float64(s.now()-at) / float64(s.window)
		assert.NoError(s.t, looker.Close(context.Background()))
	}
}
