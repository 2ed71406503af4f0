//go:build fleet

// The whole table takes a minute and asserts little, so it is no part of the
// ordinary tests: `make fleet` builds it in. rules_test.go has small fleets.

package fleet

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	part  = flag.String("fleet", "all", "simulate `part` of the table: bars, sizes or all")
	among = flag.String("rules", "direct,fixed,ladder,adaptive", "simulate these `rules`")
	dir   = flag.String("results", "", "write fleet.txt into `dir`")
)

// TestFleet prints the table. It does not fail where a bar is missed: the marks
// say that.
func TestFleet(t *testing.T) {
	var groups []group
	for _, g := range []group{
		{"bars", "Shapes of demand", shapes},
		{"sizes", "Sizes of fleet and window, zipf 1.2", sizes()},
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
			for _, line := range g.rows {
				all[r.name][line.name] = simulate(t, line.scenario, r, *seed)
			}
			say(tableOf(r, g.title, g.rows, all[r.name]))
		}
	}
	if *dir != "" {
		require.NoError(t, os.MkdirAll(*dir, 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(*dir, "fleet.txt"), []byte(text.String()), 0o666))
	}
}
