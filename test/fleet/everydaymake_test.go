package fleet

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	chosen    = flag.String("everyday", "3/60/bursts,20/60/random", "make the table of everyday limits: all, or the rows that match `patterns` such as 20/60,3/*/bursts")
	seed      = flag.Uint64("seed", 1, "`seed` of all randomness")
	seeds     = flag.Uint64("seeds", 3, "how many `seeds` a row of everyday limits is the mean of")
	blocksOf  = flag.String("policies", "", "only blocks whose name begins with one of these `names`, such as default,rest")
	committed = flag.String("against", "../results/everyday.txt", "compare with the table in this `file`")
	margin    = flag.Float64("margin", 0.05, "mark changes by more than this `part`")
	keep      = flag.String("keep", "", "write the table, of everyday or rolling limits, into this `file`")
)

// TestEveryday measures limits as most people have them: some tokens a user, behind a
// balancer over some processes. Nothing may be admitted over the limit, and counts must
// balance. The rest is figures, which stand beside those of the committed table.
//
//	make everyday                                                  # all of it
//	go test -run=TestEveryday -everyday='20/60,3/*/bursts' -policies=default,exact
func TestEveryday(t *testing.T) {
	begin := time.Now()
	all := chosenBlocks(t)
	measureAll(t, all)
	file, err := os.ReadFile(*committed)
	if err != nil && *keep == "" {
		require.NoError(t, err)
	}
	then, now := parse(string(file)), map[string]block{}
	head := fmt.Sprintf(everydayHeading, demanded, *seeds, *seed)
	alone := head
	fmt.Print(head, "In brackets: the committed table, ! = by more than the margin.\n")
	for _, b := range all {
		now[b.name] = b
		fmt.Print(b.text(then[b.name], *margin))
		alone += b.text(block{}, 0)
	}
	fmt.Print(verdict(now, then))
	fmt.Fprintf(os.Stderr, "in %v\n", time.Since(begin).Round(time.Second))
	if *keep != "" {
		require.NoError(t, os.WriteFile(*keep, []byte(alone+verdict(now, now)), 0o666))
	}
}

// chosenBlocks are the parts of the table that the flags ask for.
func chosenBlocks(t *testing.T) (all []block) {
	for _, b := range blocks() {
		if *chosen != "all" {
			b.names = matching(b.names, strings.Split(*chosen, ",")...)
		}
		for name := range strings.SplitSeq(*blocksOf, ",") {
			if strings.HasPrefix(b.name, name) && len(b.names) > 0 {
				all = append(all, b)
				break
			}
		}
	}
	require.NotEmpty(t, all, "-everyday=%s -policies=%s: no such rows", *chosen, *blocksOf)
	return all
}

// measureRow measures a row of a block. Rows at rest have a visit of so many requests.
func measureRow(t *testing.T, b block, row string, visit int) sums {
	name, resting := strings.CutPrefix(b.name, "rest-")
	p := policyOf(name)
	if !resting {
		return everydayOf(t, row).measure(t, p, *seed, *seeds, nil)
	}
	parts := strings.Split(row, "/")
	limit, err := strconv.ParseInt(parts[0], 10, 64)
	require.NoError(t, err)
	window, err := time.ParseDuration(parts[1])
	require.NoError(t, err)
	roundTrip, err := time.ParseDuration(parts[2])
	require.NoError(t, err)
	return idle(limit, window, roundTrip/2, visit).measure(t, p, *seed, *seeds, nil)
}

func policyOf(name string) policy {
	for _, p := range policies {
		if p.name == name {
			return p
		}
	}
	panic("no policy " + name)
}

// measureAll fills the blocks.
func measureAll(t *testing.T, all []block) {
	for _, b := range all {
		for _, row := range b.names {
			if !strings.HasPrefix(b.name, "rest-") {
				b.rows[row] = measureRow(t, b, row, 0).figures()
				continue
			}
			for _, visit := range visits {
				b.rows[row] = append(b.rows[row], measureRow(t, b, row, visit).rest()...)
			}
			rounded(restColumns, b.rows[row])
		}
	}
}
