package fleet

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/chance"
)

var (
	part  = flag.String("fleet", "", "simulate `part` of the table: bars, sizes or all")
	among = flag.String("rules", "direct,fixed,ladder,adaptive", "simulate these `rules`")
	seed  = flag.Uint64("seed", 1, "`seed` of all randomness")
	dir   = flag.String("results", "", "write fleet.txt and fleet.svg into `dir`")
)

// simulate runs a fleet. It depends on seed alone.
func simulate(t *testing.T, s scenario, r rule, seed uint64) (o outcome) {
	t.Helper()
	defer chance.Seed(seed)()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // one order of events
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	var err error
	synctest.Test(t, func(*testing.T) { o, err = run(s, r, seed) })
	require.NoError(t, err)
	require.Zero(t, o.over, "%s: tokens over the limit", r.name)
	return o
}

// TestFleet prints the table. It does not fail where a bar is missed: the marks
// say that.
func TestFleet(t *testing.T) {
	if *part == "" {
		t.Skip("takes minutes: ask for it by -fleet, as make fleet does")
	}
	var groups []group
	for _, g := range []group{
		{"bars", "Shapes of demand", "shape of demand (of 100 processes)", shapes},
		{"sizes", "Sizes of fleet and window, zipf 1.2", "processes × window (zipf 1.2)", sizes()},
	} {
		if *part == "all" || *part == g.part {
			groups = append(groups, g)
		}
	}
	require.NotEmpty(t, groups, "-fleet=%s: want bars, sizes or all", *part)

	var text strings.Builder
	say := func(s string) { fmt.Print(s); text.WriteString(s) }
	all := map[string]results{}
	say(fmt.Sprintf(heading, *seed))
	for _, r := range rules {
		if !strings.Contains(*among, r.name) {
			continue
		}
		all[r.name] = results{}
		for _, g := range groups {
			fill(t, all[r.name], g.rows, r)
			say(table(r, g.title, g.rows, all[r.name]))
		}
	}
	if *dir != "" {
		require.NoError(t, os.MkdirAll(*dir, 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(*dir, "fleet.txt"), []byte(text.String()), 0o666))
		require.NoError(t, os.WriteFile(filepath.Join(*dir, "fleet.svg"), chart(groups, all, *seed), 0o666))
	}
}

// fill simulates what the rows need and res does not have.
func fill(t *testing.T, res results, rows []row, r rule) {
	for _, line := range rows {
		if _, ok := res[line.scenario]; !ok {
			res[line.scenario] = simulate(t, line.scenario, r, *seed)
		}
	}
}
