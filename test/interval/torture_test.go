package interval_test

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/test/interval"
)

var (
	long = flag.Duration("torture", 0, "how `long` TestTorture runs; by default each fault happens once")
	each = flag.Duration("each", 20*time.Second, "how `long` it attacks one server")
	seed = flag.Uint64("seed", 1, "of the faults and of the load")
	many = flag.Int("processes", 0, "how many use one server at a time; 0 = the seed draws 2 to 6")
)

func TestMain(m *testing.M) {
	logging.Disable() // faults are expected
	if ran() {
		return
	}
	redistest.Main(m)
}

// TestTorture has real processes spend tokens of one server while every kind of fault happens, and judges every
// interval. A fixed limit under the rule for a rolling one has to fail.
func TestTorture(t *testing.T) {
	t.Parallel()
	sums, seen, controls := make(map[string]*sum), make(map[string]int64), 0
	if *long == 0 {
		x := start(t, brief(*seed))
		x.await("limits are used up, and a fixed one is none that rolls", x.reached)
		x.attack(0)
		controls += x.check(sums, seen)
	}
	for s, end := *seed, time.Now().Add(*long); time.Now().Before(end); s++ {
		t.Run(fmt.Sprint("seed ", s), func(t *testing.T) {
			x := start(t, full(s))
			x.calm = 10 // in which limits are used up
			x.attack(*each)
			controls += x.check(sums, seen)
		})
	}
	t.Logf("seed %d%s", *seed, summary(sums, seen, controls))
	require.Positive(t, controls, "a fixed limit under the rule for a rolling one")
	for what, n := range seen {
		require.Positive(t, n, "never happened: %s", what)
	}
}

// reached reports whether limits were used up, windows ended, and the control fails.
func (x *run) reached() bool {
	full := 0
	for i, v := range x.judge() {
		if v.Most < 0.9 || !x.plan.Series[i].Limit.Rolls && v.Windows < 3 {
			return false
		}
		full += v.Full
	}
	return full > 0 && x.control() > 0
}

// control returns 1 if the fixed limit breaks the promise of a rolling one.
func (x *run) control() int {
	h := x.histories()[0]
	h.Rolling = true
	return min(len(interval.Judge(h).Over), 1)
}

// check ends the processes, judges, adds to the sums, and returns what control does.
func (x *run) check(sums map[string]*sum, seen map[string]int64) int {
	x.t.Helper()
	x.stop()
	x.faults(seen)
	if found := x.report(sums); found != "" {
		x.t.Errorf("seed %d: a promise is broken:%s", x.plan.Seed, found)
	}
	return x.control()
}

// summary has a line for each series and one for the faults.
func summary(sums map[string]*sum, seen map[string]int64, controls int) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		fmt.Fprintf(&b, "\n%s: %v", name, sums[name])
	}
	fmt.Fprintf(&b, "\ncontrol failed %d times; faults:", controls)
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		fmt.Fprintf(&b, " %s %d,", name, seen[name])
	}
	return strings.TrimSuffix(b.String(), ",")
}

// TestSabotageIsFound has processes admit one token more than they were granted, each time.
func TestSabotageIsFound(t *testing.T) {
	t.Parallel()
	p := brief(*seed)
	p.Skew = 1
	x := start(t, p)
	for i, s := range p.Series[:2] {
		x.await(s.Name+": the excess is found", func() bool { return len(x.judge()[i].Over) > 0 })
	}
	x.stop()
}
