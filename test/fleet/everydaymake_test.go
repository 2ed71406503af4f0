package fleet

import (
	"encoding/gob"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	chosen    = flag.String("everyday", "", "make the table of everyday limits: all, or the rows that match `patterns` such as 20/60,3/*/bursts; or play the scenes")
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
//	go test -run=TestEveryday -everyday=scenes                     # what a few events do
func TestEveryday(t *testing.T) {
	switch *chosen {
	case "":
		playScenes(t, false)
		return
	case "scenes":
		playScenes(t, true)
		return
	}
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

// job is the measurement of one row, for a process of its own: one simulation at a time can run
// in a process, because it has one thread and one seed.
type job struct {
	Block, Row  string
	Visit       int // of a row at rest
	Seed, Seeds uint64
}

// do measures a job.
func (j job) do(t *testing.T) sums {
	name, resting := strings.CutPrefix(j.Block, "rest-")
	p := policyOf(name)
	if !resting {
		return everydayOf(t, j.Row).measure(t, p, j.Seed, j.Seeds, nil)
	}
	var limit int64
	_, err := fmt.Sscanf(j.Row, "%d/", &limit)
	require.NoError(t, err)
	parts := strings.Split(j.Row, "/")
	window, err := time.ParseDuration(parts[1])
	require.NoError(t, err)
	roundTrip, err := time.ParseDuration(parts[2])
	require.NoError(t, err)
	return idle(limit, window, roundTrip/2, j.Visit).measure(t, p, j.Seed, j.Seeds, nil)
}

func policyOf(name string) policy {
	for _, p := range policies {
		if p.name == name {
			return p
		}
	}
	panic("no policy " + name)
}

// measureAll fills the blocks, in as many processes as there are processors.
func measureAll(t *testing.T, all []block) {
	jobs := make(chan job)
	var mu sync.Mutex
	results := map[job]sums{}
	var workers sync.WaitGroup
	for range runtime.NumCPU() {
		w := newWorker(t)
		workers.Go(func() {
			for j := range jobs {
				s := w.measure(j)
				mu.Lock()
				results[j] = s
				mu.Unlock()
			}
			w.end()
		})
	}
	each := func(do func(b block, row string, visit int)) {
		for _, b := range all {
			for _, row := range b.names {
				if !strings.HasPrefix(b.name, "rest-") {
					do(b, row, 0)
					continue
				}
				for _, visit := range visits {
					do(b, row, visit)
				}
			}
		}
	}
	jobOf := func(b block, row string, visit int) job { return job{b.name, row, visit, *seed, *seeds} }
	each(func(b block, row string, visit int) { jobs <- jobOf(b, row, visit) })
	close(jobs)
	workers.Wait()
	each(func(b block, row string, visit int) {
		s := results[jobOf(b, row, visit)]
		if visit == 0 {
			b.rows[row] = s.figures()
			return
		}
		if b.rows[row] = append(b.rows[row], s.rest()...); len(b.rows[row]) == len(restColumns) {
			rounded(restColumns, b.rows[row])
		}
	})
}

// worker is a process that measures jobs, by [TestWorker].
type worker struct {
	cmd *exec.Cmd
	enc *gob.Encoder
	dec *gob.Decoder
	in  io.Closer
	t   *testing.T
}

const asWorker = "RESERVOIR_EVERYDAY_WORKER"

func newWorker(t *testing.T) *worker {
	path, err := os.Executable()
	require.NoError(t, err)
	w := &worker{cmd: exec.CommandContext(t.Context(), path, "-test.run=^TestWorker$", "-test.timeout=0"), t: t}
	w.cmd.Env = append(os.Environ(), asWorker+"=1")
	w.cmd.Stderr = os.Stderr
	in, err := w.cmd.StdinPipe()
	require.NoError(t, err)
	out, reply, err := os.Pipe()
	require.NoError(t, err)
	w.cmd.ExtraFiles = []*os.File{reply} // because a test prints to its output
	require.NoError(t, w.cmd.Start())
	_ = reply.Close()
	w.enc, w.dec, w.in = gob.NewEncoder(in), gob.NewDecoder(out), in
	t.Cleanup(func() { _ = out.Close() })
	return w
}

// measure has the process measure j.
func (w *worker) measure(j job) (s sums) {
	if err := w.enc.Encode(j); err != nil {
		panic(err)
	}
	if err := w.dec.Decode(&s); err != nil {
		panic(fmt.Sprintf("%s %s: %v", j.Block, j.Row, err))
	}
	return s
}

func (w *worker) end() {
	_ = w.in.Close()
	if err := w.cmd.Wait(); err != nil {
		panic(err)
	}
}

// TestWorker measures what its parent says, if it has one.
func TestWorker(t *testing.T) {
	if os.Getenv(asWorker) == "" {
		return
	}
	dec, enc := gob.NewDecoder(os.Stdin), gob.NewEncoder(os.NewFile(3, "reply"))
	for {
		var j job
		if err := dec.Decode(&j); err == io.EOF {
			return
		} else if err != nil {
			require.NoError(t, err)
		}
		require.NoError(t, enc.Encode(j.do(t)))
	}
}
