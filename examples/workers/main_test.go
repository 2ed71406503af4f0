package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// api is an external API. It counts its limit over a sliding window, which is the
// strictest way.
type api struct {
	limit  int
	window time.Duration

	mu      sync.Mutex
	gate    chan struct{} // closed: requests are answered; nil: too
	came    []time.Time   // of those served, in order
	items   map[string]int
	refused int
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	now, gate := time.Now(), a.gate
	if n := len(a.came); n >= a.limit && now.Sub(a.came[n-a.limit]) < a.window {
		a.refused++
		a.mu.Unlock()
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	a.came = append(a.came, now)
	a.items[path.Base(r.URL.Path)]++
	a.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

func (a *api) served() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.came)
}

// close makes requests wait until the returned function is called.
func (a *api) close() (open func()) {
	gate := make(chan struct{})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gate = gate
	return sync.OnceFunc(func() { close(gate) })
}

func serve(t *testing.T, limit int, window time.Duration) (*api, string) {
	a := &api{limit: limit, window: window, items: map[string]int{}}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	return a, server.URL + "/items/"
}

// process is a run of the program in this process, with pipes as in one of its own.
type process struct {
	in       *os.File
	out, log *bufio.Reader
	signal   func()
	end      chan error
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = r.Close(), w.Close() })
		return r, w
	}
	in, jobs := pipe()
	out, done := pipe()
	log, said := pipe()
	p := &process{jobs, bufio.NewReader(out), bufio.NewReader(log), cancel, make(chan error, 1)}
	go func() {
		err := run(ctx, args, in, done, said)
		_, _ = done.Close(), said.Close()
		p.end <- err
	}()
	return p
}

// give writes a job for each number from the first to the last.
func (p *process) give(t *testing.T, first, last int) {
	t.Helper()
	for i := first; i <= last; i++ {
		_, err := fmt.Fprintln(p.in, i)
		require.NoError(t, err)
	}
}

// done reads the lines of n jobs and requires that all jobs were done.
func (p *process) done(t *testing.T, n int) {
	t.Helper()
	for range n {
		line, err := p.out.ReadString('\n')
		require.NoError(t, err)
		require.Regexp(t, "^done ", line)
	}
}

// charged returns what the store holds for the API's limit.
func charged(t *testing.T, server *redistest.Server) int {
	t.Helper()
	n, err := server.Client().Get(t.Context(), "workers:{api}:360s").Int()
	require.NoError(t, err)
	return n
}

// Two processes of four workers each run at full speed through several windows.
func TestNeverRefused(t *testing.T) {
	const jobs = 120 // each
	server := redistest.Start(t)
	a, url := serve(t, 100, 500*time.Millisecond)
	var all []*process
	for i := range 2 {
		p := start(t, "-api", url, "-redis", "redis://"+server.Addr(),
			"-limit", "100", "-window", "500ms", "-workers", "4", "-processes", "2")
		p.give(t, i*jobs, (i+1)*jobs-1)
		require.NoError(t, p.in.Close())
		all = append(all, p)
	}
	for _, p := range all {
		p.done(t, jobs)
		require.NoError(t, <-p.end)
	}
	require.Zero(t, a.refused)
	require.Len(t, a.items, 2*jobs)
	require.Equal(t, 2*jobs, a.served(), "each once")
}

// A signal comes while all workers wait for responses. They await these and begin no
// other job, and the store is charged exactly the requests that were sent.
func TestGracefulShutdown(t *testing.T) {
	const before, workers = 50, 8
	server := redistest.Start(t)
	a, url := serve(t, 1_000_000, time.Hour)
	p := start(t, "-api", url, "-redis", "redis://"+server.Addr(), "-limit", "1000000", "-patience", "1m")
	p.give(t, 1, before)
	p.done(t, before)

	open := a.close()
	defer open()
	p.give(t, before+1, before+20)
	require.Eventually(t, func() bool { return a.served() == before+workers }, 20*time.Second, time.Millisecond)
	require.Greater(t, charged(t, server), before+workers, "there is stock to hand back")
	p.signal()
	line, err := p.log.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "stopping\n", line)
	open()
	p.done(t, workers)
	rest, err := io.ReadAll(p.out)
	require.NoError(t, err)
	require.Empty(t, rest)
	require.NoError(t, <-p.end, "all that was begun is done")
	require.NoError(t, p.in.Close()) // a read of the input goes on until then
	require.Equal(t, before+workers, a.served())
	require.Equal(t, before+workers, charged(t, server))
}

// The program gives up jobs whose tokens are an hour away when patience ends, and charges
// nothing for them. Its input is unbuffered, so that the test sees when jobs begin.
func TestPatience(t *testing.T) {
	server := redistest.Start(t)
	a, url := serve(t, 100, time.Hour)
	ctx, signal := context.WithCancel(t.Context())
	in, jobs := io.Pipe()
	lines, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"-api", url, "-redis", "redis://" + server.Addr(),
			"-limit", "35", "-workers", "2", "-patience", "50ms"}, in, out, io.Discard)
		_ = out.Close()
	}()
	give := func(job string) {
		_, err := io.WriteString(jobs, job+"\n")
		require.NoError(t, err)
	}
	read := bufio.NewScanner(lines)
	for _, job := range []string{"1", "2", "3"} { // (35 - 2) / 11
		give(job)
		require.True(t, read.Scan())
		require.Equal(t, "done "+job, read.Text())
	}
	for _, job := range []string{"4", "5", "6"} { // the sixth is read when a worker has the fifth
		give(job)
	}
	signal()
	require.NoError(t, jobs.Close())
	var failed []string
	for read.Scan() {
		failed = append(failed, strings.Join(strings.Fields(read.Text())[:2], " "))
	}
	require.ElementsMatch(t, []string{"failed 4", "failed 5"}, failed)
	require.EqualError(t, <-ended, "2 jobs not done")
	require.Equal(t, 3, a.served())
	require.Equal(t, 3, charged(t, server))
}

// The program reports requests that the API refuses or that cannot be sent as not done.
func TestFailures(t *testing.T) {
	_, url := serve(t, 1, time.Hour)
	var out, log strings.Builder
	err := run(t.Context(), []string{"-api", url, "-workers", "1"}, strings.NewReader("1\n2\n%zz\n"), &out, &log)
	require.EqualError(t, err, "2 jobs not done")
	require.Regexp(t, "^done 1\nfailed 2 429 Too Many Requests\nfailed %zz parse .*\n$", out.String())
	require.Regexp(t, "^2 requests, ", log.String())
	for _, args := range [][]string{{"-redis", "nonsense"}, {"-limit", "18"}, {"-window", "0"}, {"-no"}} {
		require.Error(t, run(t.Context(), args, strings.NewReader(""), io.Discard, io.Discard), args)
	}
}

// Input that cannot be read to its end is an error, because later jobs were not seen.
func TestInputFails(t *testing.T) {
	_, url := serve(t, 10, time.Hour)
	for want, rest := range map[error]io.Reader{
		bufio.ErrTooLong:    strings.NewReader(strings.Repeat("9", 70_000) + "\n2\n"),
		io.ErrUnexpectedEOF: iotest.ErrReader(io.ErrUnexpectedEOF),
	} {
		var out strings.Builder
		err := run(t.Context(), []string{"-api", url}, io.MultiReader(strings.NewReader("1\n"), rest), &out, io.Discard)
		require.ErrorIs(t, err, want)
		require.Equal(t, "done 1\n", out.String())
	}
}

// The program accepts the command lines in README.md.
func TestReadmeFlags(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	starts := regexp.MustCompile(`(?m)^go run ./examples/workers (.*)$`).FindAllSubmatch(readme, -1)
	require.Len(t, starts, 4)
	for _, args := range starts[1:] { // the first asks for help
		require.NoError(t, run(t.Context(), strings.Fields(string(args[1])), strings.NewReader(""), io.Discard, io.Discard), string(args[1]))
	}
}
