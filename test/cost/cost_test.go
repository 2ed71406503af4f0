// Package cost compares what this tree costs with what another commit does, in one run: the
// server's work for a statement, the bytes of a key, allocations and latency.
//
// Each side is a program of its own, which package driver is, built in this tree and in a
// temporary tree of the other commit. So the two may differ in protocol, names and scripts.
// They take turns over one Redis, and ratios are of one round, so other work on the machine
// slows both. Peers run in this tree's driver.
//
//	make cost                      # beside the last tag, or the commit in flag -against
//	make cost SIZE=quick AGAINST=bd98f23
package cost

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/test/cost/driver"
)

var (
	sizeFlag = flag.String("size", "tiny", "measure as much as `size` says: tiny, quick or full")
	against  = flag.String("against", "", "compare with this `commit`; by default the last tag or, without one, "+firstJudged)
	part     = flag.String("part", "", "measure only what matches `regexp`")
	results  = flag.String("results", "", "write cost.txt into `dir`")
	remark   = flag.String("remark", "", "a `sentence` for the head of the table")
)

const firstJudged = "bd98f23" // the commit that the first changes after this judge are compared with

// size is how much is measured. Statements have many short turns, so that few of these meet other
// work of the machine.
type size struct {
	turns, statements int           // of a statement: turns, and the requests of one
	rounds            int           // of a load
	slice             time.Duration // of a round of a load
	callers           []int
	delays            []time.Duration // of a round trip
}

var (
	allCallers = []int{1, 64, 512}
	allDelays  = []time.Duration{0, time.Millisecond, 40 * time.Millisecond}
	sizes      = map[string]size{
		"tiny":  {1, 64, 1, 5 * time.Millisecond, []int{16}, allDelays[:1]},
		"quick": {15, 200, 3, 80 * time.Millisecond, allCallers, allDelays},
		"full":  {45, 200, 7, 200 * time.Millisecond, allCallers, allDelays},
	}
)

const asDriver = "RESERVOIR_COST_DRIVER"

func TestMain(m *testing.M) {
	if os.Getenv(asDriver) == "" {
		redistest.Main(m)
		return
	}
	if err := driver.Serve(os.Stdin, os.Stdout); err != nil {
		panic(err)
	}
}

// TestCost prints the table. In its usual size it compares this tree with itself, and shows
// that each job does what its name says.
func TestCost(t *testing.T) {
	size, ok := sizes[*sizeFlag]
	require.True(t, ok, "-size=%s: want tiny, quick or full", *sizeFlag)
	b := newBench(t, size)
	begin := time.Now()
	b.this = start(t, "this", b.program(t))
	other := "this tree, again"
	if *sizeFlag == "tiny" {
		b.other = start(t, "other", exec.Command(executable(t)))
	} else {
		other = commit(t)
		b.other = start(t, "other", build(t, worktree(t, other)))
	}
	b.run(t)
	text := b.text(other)
	if *sizeFlag == "tiny" {
		b.requireSense(t)
		return
	}
	text += fmt.Sprintf("\nIn %v.\n", time.Since(begin).Round(time.Second))
	fmt.Print(text)
	if *results != "" {
		require.NoError(t, os.WriteFile(filepath.Join(*results, "cost.txt"), []byte(text), 0o666))
	}
}

// bench has both sides and what they measured.
type bench struct {
	size
	server      *redistest.Server
	ways        map[time.Duration]string // addresses, by delay
	this, other *side
	rows        []*row
}

// row is one measurement.
type row struct {
	name        string
	job         driver.Job
	peer        bool // it uses nothing of the library, and has no other side
	this, other []driver.Figures
}

func newBench(t *testing.T, s size) *bench {
	b := &bench{size: s, server: redistest.Start(t), ways: map[time.Duration]string{}}
	for _, d := range s.delays {
		b.ways[d] = b.server.Addr()
		if d > 0 {
			p := redistest.NewProxy(t, b.server.Addr())
			p.Delay(d)
			b.ways[d] = p.Addr()
		}
	}
	for _, what := range statements {
		b.add(&row{name: what.name, job: driver.Job{What: what.name, N: s.statements}, peer: what.peer})
	}
	for _, d := range s.delays {
		for _, callers := range s.callers {
			for _, keys := range []string{"one", "each", "new"} {
				for _, kind := range []string{"default", "direct", "go-redis", "rueidis"} {
					j := driver.Job{Way: b.ways[d], Kind: kind, Keys: keys, Callers: callers, Slice: max(s.slice, 12*d)}
					b.add(&row{name: loadName(d, callers, keys, kind), job: j, peer: strings.HasSuffix(kind, "redis") || kind == "rueidis"})
				}
			}
		}
	}
	return b
}

func loadName(delay time.Duration, callers int, keys, kind string) string {
	return fmt.Sprintf("%v away, %d callers, %s, %s", delay, callers, map[string]string{"one": "one key", "each": "a key each", "new": "new keys"}[keys], kind)
}

func (b *bench) add(r *row) {
	if regexp.MustCompile(*part).MatchString(r.name) {
		r.job.Server = b.server.Addr()
		b.rows = append(b.rows, r)
	}
}

// statements are the driver's jobs, in the order of the table.
var statements = []struct {
	name string
	peer bool
}{
	{"steady", false}, {"steady, 20 clients", false}, {"first contact", false}, {"opening", false}, {"refused", false},
	{"direct, hot", false}, {"direct, new", false}, {"no account, hot", false}, {"no account, new", false},
	{"RATE, hot", true}, {"RATE, new", true}, {"redis_rate, hot", true}, {"redis_rate, new", true}, {"EVALSHA of nothing", true},
	{"bytes, 1 client", false}, {"bytes, 20 clients", false},
}

// run measures all rows in each round. In every other round the other side goes first.
func (b *bench) run(t *testing.T) {
	measure := func(s *side, r *row) driver.Figures {
		f := s.do(t, r.job)
		require.Empty(t, f.Err, "%s: %s", s.name, r.name)
		b.server.Do("flushdb")
		return f
	}
	for round := range max(b.rounds, b.turns) {
		for _, r := range b.rows {
			if round >= b.times(r) {
				continue
			}
			if r.peer {
				r.this = append(r.this, measure(b.this, r))
				continue
			}
			f := make(map[*side]driver.Figures)
			for i := range 2 {
				s := []*side{b.this, b.other}[(i+round)%2]
				f[s] = measure(s, r)
			}
			r.this, r.other = append(r.this, f[b.this]), append(r.other, f[b.other])
		}
	}
}

// times is how often a row is measured: a load far away takes long, and other work matters less.
func (b *bench) times(r *row) int {
	switch {
	case r.job.What != "":
		return b.turns
	case r.job.Slice > b.slice:
		return (b.rounds + 1) / 2
	}
	return b.rounds
}

// side is a driver that runs.
type side struct {
	name string
	cmd  *exec.Cmd
	enc  *json.Encoder
	dec  *json.Decoder
}

func start(t *testing.T, name string, cmd *exec.Cmd) *side {
	s := &side{name: name, cmd: cmd}
	cmd.Env = append(os.Environ(), asDriver+"=1", "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		require.NoError(t, cmd.Wait())
	})
	s.enc, s.dec = json.NewEncoder(in), json.NewDecoder(out)
	return s
}

func (s *side) do(t *testing.T, j driver.Job) (f driver.Figures) {
	require.NoError(t, s.enc.Encode(j))
	if err := s.dec.Decode(&f); err != nil {
		require.NoError(t, errors.Join(err, io.ErrUnexpectedEOF), "%s: the driver has ended", s.name)
	}
	return f
}

func executable(t *testing.T) string {
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

// program is this tree's driver: this very program if little is measured, because to build another takes time.
func (b *bench) program(t *testing.T) *exec.Cmd {
	if *sizeFlag == "tiny" {
		return exec.Command(executable(t))
	}
	return build(t, filepath.Join("..", ".."))
}

// build builds the driver of the tree at root, which may be of another commit.
func build(t *testing.T, root string) *exec.Cmd {
	path := filepath.Join(t.TempDir(), "driver")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, "./cost/driver/main")
	cmd.Dir = filepath.Join(root, "test")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return exec.Command(path)
}

// commit is what this tree is compared with.
func commit(t *testing.T) string {
	if *against != "" {
		return *against
	}
	if tag, err := exec.Command("git", "describe", "--tags", "--abbrev=0").Output(); err == nil {
		return strings.TrimSpace(string(tag))
	}
	return firstJudged
}

// worktree checks a commit out into a temporary directory and copies the driver into it.
func worktree(t *testing.T, commit string) string {
	dir := filepath.Join(t.TempDir(), "tree")
	git := func(args ...string) {
		out, err := exec.Command("git", args...).CombinedOutput()
		require.NoError(t, err, "git %v: %s", args, out)
	}
	git("worktree", "add", "--detach", dir, commit)
	t.Cleanup(func() { git("worktree", "remove", "--force", dir) })
	to := filepath.Join(dir, "test", "cost", "driver")
	require.NoError(t, os.RemoveAll(to))
	require.NoError(t, os.CopyFS(to, os.DirFS("driver")))
	adapt(t, dir)
	return dir
}

// adapt changes what has been renamed since the commit.
func adapt(t *testing.T, dir string) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	if slices.ContainsFunc(files, func(path string) bool {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return strings.Contains(string(text), "func WithFixedBatch(")
	}) {
		return
	}
	path := filepath.Join(dir, "test", "cost", "driver", "exact.go")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	text = []byte(strings.ReplaceAll(string(text), "WithFixedBatch(1)", "WithBatch(reservoir.Fixed(1))"))
	require.NoError(t, os.WriteFile(path, text, 0o666))
}

// requireSense checks that the jobs have measured what they are named after.
func (b *bench) requireSense(t *testing.T) {
	for _, r := range b.rows {
		for _, f := range slices.Concat(r.this, r.other) {
			require.Positive(t, f.Requests, r.name)
			switch {
			case strings.HasPrefix(r.name, "bytes"):
				require.Greater(t, f.Bytes, 100.0, r.name)
			case r.job.What != "":
				require.EqualValues(t, f.Requests, b.statements, r.name)
				require.GreaterOrEqual(t, f.Calls, f.Requests, r.name)
				require.Less(t, f.Calls, 3*f.Requests, r.name)
				require.Positive(t, f.CPU, r.name)
				require.Equal(t, r.name == "EVALSHA of nothing", f.Inner == 0, r.name)
			default:
				require.Positive(t, f.P50, r.name)
				require.GreaterOrEqual(t, f.P99, f.P50, r.name)
				if r.peer {
					require.GreaterOrEqual(t, f.Calls, f.Requests, r.name)
				}
			}
		}
	}
}

const heading = `What a call costs, here and at %s: %s, %d cores; %d turns of a statement, %d of a load.
%sEach figure is the median of the turns; a ratio is the median of the ratios of one turn each.

`

// text writes the tables.
func (b *bench) text(other string) string {
	head := *remark
	if head != "" {
		head += "\n"
	}
	text := fmt.Sprintf(heading, other, runtime.Version(), runtime.NumCPU(), b.turns, b.rounds, head)
	text += `Statements, over one connection pool by 16 callers, each on its key. server: CPU time of Redis' main thread for a request,
with all that reading and writing takes; script: how long the scripts ran, by INFO commandstats; calls: scripts for a request;
inner: redis.calls of a script.

` + table.Text(b.statementRows(), false)
	if rows := b.sizeRows(); len(rows) > 1 {
		text += "\nBytes of a key of 20 bytes (MEMORY USAGE of all that a counter has).\n\n" + table.Text(rows, false)
	}
	if rows := b.loadRows(); len(rows) > 1 {
		text += "\nLoads. ÷ go-redis: requests a second, by those of EVALSHA of GitHub's RATE by go-redis.\n\n" + table.Text(rows, false)
	}
	return text
}

func (b *bench) statementRows() [][]string {
	rows := [][]string{{"", "server", "there", "ratio", "script", "there", "ratio", "calls", "there", "inner", "there"}}
	for _, r := range b.rows {
		if r.job.What == "" || r.this[0].Calls == 0 {
			continue
		}
		cpu := figure(func(f driver.Figures) float64 { return float64(f.CPU) / float64(f.Requests) })
		busy := figure(func(f driver.Figures) float64 { return float64(f.Busy) / float64(f.Requests) })
		calls := figure(func(f driver.Figures) float64 { return float64(f.Calls) / float64(f.Requests) })
		inner := figure(func(f driver.Figures) float64 { return float64(f.Inner) / float64(f.Calls) })
		rows = append(rows, slices.Concat([]string{r.name}, r.cells(cpu, nanoseconds, true), r.cells(busy, nanoseconds, true), r.cells(calls, table.Digits, false), r.cells(inner, table.Digits, false)))
	}
	return rows
}

func (b *bench) sizeRows() [][]string {
	rows := [][]string{{"", "here", "there", "ratio"}}
	for _, r := range b.rows {
		if r.job.What == "" || r.this[0].Calls > 0 {
			continue
		}
		rows = append(rows, append([]string{r.name}, r.cells(func(f driver.Figures) float64 { return f.Bytes }, table.Digits, true)...))
	}
	return rows
}

func (b *bench) loadRows() [][]string {
	rows := [][]string{{"", "requests/s", "there", "ratio", "÷ go-redis", "p50", "there", "ratio", "p99", "there", "allocs", "there", "calls", "there"}}
	for _, r := range b.rows {
		if r.job.What != "" {
			continue
		}
		rate := figure(func(f driver.Figures) float64 { return float64(f.Requests) / f.Elapsed.Seconds() })
		p50 := figure(func(f driver.Figures) float64 { return float64(f.P50) })
		p99 := figure(func(f driver.Figures) float64 { return float64(f.P99) })
		allocs := figure(func(f driver.Figures) float64 { return f.Allocs })
		calls := figure(func(f driver.Figures) float64 { return float64(f.Calls) / float64(f.Requests) })
		whole := func(v float64) string { return table.Commas(int64(v)) }
		bare := "–"
		if i := slices.IndexFunc(b.rows, func(o *row) bool {
			j := r.job
			j.Kind = "go-redis"
			return o.job == j
		}); i >= 0 {
			bare = table.Digits(median(ratios(r.this, b.rows[i].this, rate)))
		}
		rows = append(rows, slices.Concat([]string{r.name}, r.cells(rate, whole, true), []string{bare}, r.cells(p50, nanoseconds, true),
			r.cells(p99, nanoseconds, false), r.cells(allocs, table.Digits, false), r.cells(calls, table.Digits, false)))
	}
	return rows
}

// figure is one number of a measurement.
type figure func(driver.Figures) float64

// cells are the medians here and there, and their ratio if wanted.
func (r *row) cells(of figure, write func(float64) string, ratio bool) []string {
	all := func(f []driver.Figures) (values []float64) {
		for _, v := range f {
			values = append(values, of(v))
		}
		return values
	}
	cells := []string{write(median(all(r.this))), "–"}
	if ratio {
		cells = append(cells, "–")
	}
	if len(r.other) > 0 {
		cells[1] = write(median(all(r.other)))
		if ratio {
			cells[2] = fmt.Sprintf("%.2f", median(ratios(r.this, r.other, of)))
		}
	}
	return cells
}

// ratios are those of each round.
func ratios(a, b []driver.Figures, of figure) (all []float64) {
	for i := range min(len(a), len(b)) {
		all = append(all, of(a[i])/of(b[i]))
	}
	return all
}

func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

func nanoseconds(v float64) string { return table.Duration(time.Duration(v)) }

// The median of ratios is not the ratio of medians: a round that was slow for both sides counts
// as any other.
func TestRatios(t *testing.T) {
	f := func(cpu ...time.Duration) (all []driver.Figures) {
		for _, d := range cpu {
			all = append(all, driver.Figures{CPU: d})
		}
		return all
	}
	of := func(f driver.Figures) float64 { return float64(f.CPU) }
	r := row{this: f(10, 200, 30), other: f(20, 400, 30)}
	require.Equal(t, []string{"30.0", "30.0", "0.50"}, r.cells(of, table.Digits, true)[:3])
	require.InDelta(t, 1.5, median([]float64{2, 1}), 1e-9)
}

// TestRateIsTheOther: the driver is built in the tree of another commit, so it has GitHub's script as a copy.
func TestRateIsTheOther(t *testing.T) {
	of, err := os.ReadFile("../../backend/redisstore/testdata/rate.lua")
	require.NoError(t, err)
	is, err := os.ReadFile("driver/rate.lua")
	require.NoError(t, err)
	require.Equal(t, string(of), string(is))
}
