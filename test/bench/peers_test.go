package bench

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// size is how much is measured: how often, how long, and how many keys.
type size struct {
	runs        int // over all scenarios, of which the tables have the lowest and highest
	rounds      int // of a run
	every       int // at least one in so many requests is timed, if not 0
	goroutines  int // at most, if not 0
	slice, warm time.Duration
	idleKeys    int

	window             time.Duration // of shared loads; 0 leaves them as they are
	windows, processes int           // of shared loads, at most
	minutes            int           // that count of each case; 0 = as short as a shared load
}

var sizes = map[string]size{
	"tiny":  {runs: 1, rounds: 1, every: 3, goroutines: 16, slice: 3 * time.Millisecond, idleKeys: 2_000, window: 200 * time.Millisecond, windows: 1, processes: 2},
	"quick": {runs: 1, rounds: 3, slice: 100 * time.Millisecond, warm: 200 * time.Millisecond, idleKeys: 100_000, window: 4 * time.Second, windows: 2, processes: 20, minutes: 1},
	"full":  {runs: 5, rounds: 2, slice: 400 * time.Millisecond, warm: 300 * time.Millisecond, idleKeys: 1_000_000, minutes: 3},
}

var (
	sizeFlag  = flag.String("size", "tiny", "measure as much as `size` says: tiny, quick or full")
	scenarioF = flag.String("scenarios", "", "run only the scenarios that match `regexp`")
	peerFlag  = flag.String("peers", "", "run only the peers that match `regexp`")
	dirFlag   = flag.String("results", "", "write the tables into `dir`")
)

// TestPeers sets all peers side by side and prints what they did. In its usual
// size it proves no more than that all of them work; it never fails for a time.
func TestPeers(t *testing.T) {
	size, ok := sizes[*sizeFlag]
	require.True(t, ok, "-size=%s: want tiny, quick or full", *sizeFlag)
	d := newDriver(t, size)
	res := results{runs: size.runs, shares: sharedLoads(t, size)}
	for run := range size.runs {
		for _, s := range chosen(t) {
			if size.goroutines > 0 {
				s.goroutines = min(s.goroutines, size.goroutines)
			}
			progress("%s: run %d of %d, %d rounds of %d …", s.title, run+1, size.runs, d.rounds, len(s.kinds))
			got, err := d.run(t.Context(), s)
			require.NoError(t, err, s.name)
			res.add(got)
		}
	}
	res.memory = weighed(t, size.idleKeys)
	report(t, res, d)
	for _, l := range slices.Concat(res.groups...) {
		requireServed(t, l)
	}
}

func progress(format string, args ...any) {
	if *sizeFlag != "tiny" {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
	}
}

// sharedLoads runs the shared loads that the flags ask for.
func sharedLoads(t *testing.T, size size) (all []sharedGroup) {
	names, err := regexp.Compile(*scenarioF)
	require.NoError(t, err)
	for _, s := range shares() {
		if !names.MatchString(s.name) {
			continue
		}
		if size.window != 0 {
			s = s.scaled(size.window, size.windows, size.processes)
		}
		progress("%v: %d windows …", s, s.warm+s.windows)
		all = append(all, requireBounded(t, run(t, s))...)
	}
	return all
}

// requireBounded fails if a window of a user had more tokens than the limit.
func requireBounded(t *testing.T, groups []sharedGroup) []sharedGroup {
	for _, g := range groups {
		for _, l := range g.lines {
			require.LessOrEqual(t, l.over, int64(0), "%s: %s: above the limit", g.name, l.name)
		}
	}
	return groups
}

// weighed is the memory of idle keys, if the flags ask for it.
func weighed(t *testing.T, n int) (all []memoryLine) {
	names, err := regexp.Compile(*scenarioF)
	require.NoError(t, err)
	if !names.MatchString("memory") {
		return nil
	}
	for _, k := range idleKinds {
		m, err := weigh(t.Context(), k, n)
		require.NoError(t, err)
		all = append(all, m)
	}
	return all
}

// report prints the tables and writes the file. The usual size goes through all
// of it too, and keeps nothing.
func report(t *testing.T, r results, d *driver) {
	dir, text := *dirFlag, tables(r, d)+verdict(r)
	if dir == "" {
		dir = t.TempDir()
	}
	if *sizeFlag != "tiny" {
		fmt.Print(text)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "peers.txt"), []byte(text), 0o666))
}

// newDriver starts a Redis, and a proxy that makes it seem further away.
func newDriver(t *testing.T, size size) *driver {
	server := redistest.Start(t)
	admin := server.Client()
	far := redistest.NewProxy(t, server.Addr())
	far.Delay(farDelay)
	return &driver{
		rounds: size.rounds, every: cmp.Or(size.every, math.MaxInt), slice: size.slice, warm: size.warm,
		near: connected(t, server.Addr()), far: connected(t, far.Addr()), count: server.Calls, busy: server.Busy,
		flush: func() error { return admin.FlushDB(context.Background()).Err() },
	}
}

func connected(t testing.TB, addr string) *rig {
	r := newRig(addr)
	t.Cleanup(func() { require.NoError(t, r.close()) })
	return r
}

// chosen are the scenarios and kinds that the flags ask for.
func chosen(t *testing.T) (some []scenario) {
	names, err := regexp.Compile(*scenarioF)
	require.NoError(t, err)
	peers, err := regexp.Compile(*peerFlag)
	require.NoError(t, err)
	for _, s := range scenarios() {
		var kinds []kind
		for _, k := range s.kinds {
			if peers.MatchString(k.name) {
				kinds = append(kinds, k)
			}
		}
		if s.kinds = kinds; len(kinds) > 0 && names.MatchString(s.name) {
			some = append(some, s)
		}
	}
	return some
}

// requireServed checks the counts: a benchmark of something else than was meant
// would look as good as any.
func requireServed(t *testing.T, l *line) {
	for _, s := range slices.Concat(l.runs...) {
		what := l.scenario.name + ": " + l.kind.name
		require.Positive(t, s.good, what)
		require.GreaterOrEqual(t, s.asked, int64(l.scenario.goroutines), what)
		require.NoError(t, s.err, what)
		require.Equal(t, s.asked, s.good, "%s: answered otherwise", what)
		if l.kind.calls {
			require.GreaterOrEqual(t, s.commands, s.good, "%s: commands", what)
		}
	}
}
