// Mutants puts known bugs into a copy of the library, one after the other, and
// expects of each that the test which is there to find it does fail.
//
// A mutant is a file NN-name.patch in this directory: a header, then a unified
// diff of a few lines.
//
//	Bug: what somebody could plausibly write, and the law that it breaks
//	Killed by: the package and the test, as ". TestX" or "./sharding TestX/part -race"
//
// It is killed when that test fails by what it asserts. That it does not build,
// or hangs until it is timed out, is no proof that anybody noticed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

func main() {
	only := flag.String("only", "", "run the mutants whose file names begin with one of these, comma-separated; empty = all")
	workers := flag.Int("workers", runtime.NumCPU(), "mutants at a time, each in a copy of its own")
	limit := flag.Duration("timeout", 2*time.Minute, "of one test")
	verbose := flag.Bool("v", false, "print what the tests say")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ok, err := run(ctx, *only, *workers, *limit, *verbose)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
	}
	if !ok || err != nil {
		stop()
		os.Exit(1)
	}
}

// run runs the mutants and reports whether all were killed. The working directory
// is this one, in the tree that is copied.
func run(ctx context.Context, only string, workers int, limit time.Duration, verbose bool) (bool, error) {
	mutants, err := load(".", only)
	if err != nil {
		return false, err
	}
	scratch, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(scratch)
	lanes := make([]lane, min(max(workers, 1), len(mutants)))
	for i := range lanes {
		lanes[i] = lane{dir: filepath.Join(scratch, fmt.Sprint(i)), limit: limit}
		if err := copyTree("..", lanes[i].dir); err != nil {
			return false, err
		}
	}
	fmt.Printf("%d mutants; first their tests without them\n", len(mutants))
	if err := lanes[0].healthy(ctx, mutants); err != nil {
		return false, err
	}
	begin := time.Now()
	results := share(ctx, mutants, lanes, func(l lane, m mutant) result {
		r := l.try(ctx, m)
		fmt.Printf("%-40s %-14s %5.1f s\n", m.name, r.verdict, r.took.Seconds())
		if verbose || r.verdict != killed {
			fmt.Println(r.output)
		}
		return r
	})
	return table(results, time.Since(begin)), ctx.Err()
}

// share gives the mutants to the lanes, each as it becomes free, until ctx ends.
// The results have the order of the mutants.
func share(ctx context.Context, mutants []mutant, lanes []lane, try func(lane, mutant) result) []result {
	results := make([]result, len(mutants))
	next := make(chan int)
	var wg sync.WaitGroup
	for _, l := range lanes {
		wg.Go(func() {
			for i := range next {
				results[i] = try(l, mutants[i])
			}
		})
	}
	for i, m := range mutants {
		results[i] = result{mutant: m, verdict: untried}
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	return results
}

// table prints the results and reports whether all mutants were killed.
func table(results []result, took time.Duration) bool {
	count := map[verdict]int{}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nmutant\tresult\tseconds\tkilled by\tbug")
	for _, r := range results {
		count[r.verdict]++
		fmt.Fprintf(w, "%s\t%s\t%.1f\t%s %s\t%s\n", r.name, r.verdict, r.took.Seconds(), r.pkg, r.test, r.bug)
	}
	w.Flush()
	fmt.Printf("\n%d of %d killed in %v\n", count[killed], len(results), took.Round(time.Second))
	return count[killed] == len(results)
}

// verdict is what has become of a mutant.
type verdict string

const (
	untried  verdict = "NOT TRIED" // somebody has ended the run
	killed   verdict = "killed"
	survived verdict = "SURVIVED"
	misfit   verdict = "DOES NOT APPLY"
	unbuilt  verdict = "DOES NOT BUILD"
	hung     verdict = "HANGS"
	elsehow  verdict = "FAILS OTHERWISE" // not in the test that is named
)

type result struct {
	mutant
	verdict verdict
	took    time.Duration
	output  string
}

// lane is a copy of the tree, for one mutant at a time.
type lane struct {
	dir   string
	limit time.Duration
}

// healthy runs the tests that are to fail, on the tree as it is: one that fails
// anyway kills nothing.
func (l lane) healthy(ctx context.Context, mutants []mutant) error {
	tests := map[string][]string{}
	for _, m := range mutants {
		if first, _, _ := strings.Cut(m.test, "/"); !slices.Contains(tests[m.pkg], first) {
			tests[m.pkg] = append(tests[m.pkg], first)
		}
	}
	for pkg, names := range tests {
		out, err := l.test(ctx, "-timeout=5m", "-run=^("+strings.Join(names, "|")+")$", pkg)
		if err != nil {
			return fmt.Errorf("without any mutant: %w\n%s", err, out)
		}
	}
	return nil
}

// try applies m, runs its test, and takes m back.
func (l lane) try(ctx context.Context, m mutant) (r result) {
	begin := time.Now()
	r.mutant = m
	defer func() { r.took = time.Since(begin) }()
	if out, err := apply(l.dir, m); err != nil {
		r.verdict, r.output = misfit, out
		return r
	}
	args := []string{"-timeout=" + l.limit.String(), "-run=" + m.pattern()}
	if m.race {
		args = append(args, "-race")
	}
	out, err := l.test(ctx, append(args, m.pkg)...)
	r.output, r.verdict = out, judge(out, err, m.test)
	if ctx.Err() != nil {
		r.verdict = untried
	}
	if out, err := apply(l.dir, m, "--reverse"); err != nil {
		r.verdict, r.output = misfit, out
	}
	return r
}

// judge tells from what go test said whether the test has noticed the bug.
func judge(out string, err error, test string) verdict {
	first, _, _ := strings.Cut(test, "/")
	switch {
	case err == nil:
		return survived
	case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
		return unbuilt
	case strings.Contains(out, "panic: test timed out"):
		return hung
	case strings.Contains(out, "--- FAIL: "+first):
		return killed
	}
	return elsehow
}

// test runs go test. Nearly all of a mutant's time is compiling and linking: the
// paths are trimmed, so that the copies share what is compiled, and what only
// debuggers and vet need is left out.
func (l lane) test(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"test", "-trimpath", "-vet=off", "-ldflags=-s -w", "-count=1"}, args...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = l.dir
	// So that the test's children, such as servers, end with it: go test passes
	// an interrupt on, and kills only who does not obey.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// apply puts m into the tree at dir. Neither line numbers nor all of the lines
// around a change need be right.
func apply(dir string, m mutant, options ...string) (string, error) {
	args := append([]string{"apply", "--recount", "-C1"}, options...)
	cmd := exec.Command("git", append(args, m.path)...)
	cmd.Dir = dir
	cmd.Env = append(outside(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// outside is the environment without what git tells the hooks that it runs.
func outside() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GIT_") })
}

// copyTree copies the files of from that git knows.
func copyTree(from, to string) error {
	cmd := exec.Command("git", "ls-files", "-z")
	cmd.Dir, cmd.Env = from, outside()
	list, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		err := copyFile(filepath.Join(from, name), filepath.Join(to, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) { // deleted, and not committed yet
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
		return err
	}
	return os.WriteFile(to, data, info.Mode().Perm())
}
