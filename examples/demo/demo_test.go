package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// asDemo is set for processes of this test's own program that shall be the demo, and its workers.
const asDemo = "RESERVOIR_TEST_AS_DEMO"

func TestMain(m *testing.M) {
	if os.Getenv(asDemo) != "" {
		main()
		os.Exit(0)
	}
	redistest.Main(m)
}

// demo returns a command that runs the demo, and a check that it has left nothing.
func demo(t *testing.T, args ...string) (cmd *exec.Cmd, requireNothingLeft func()) {
	t.Helper()
	file, err := os.Executable()
	require.NoError(t, err)
	scratch := t.TempDir()
	cmd = exec.CommandContext(t.Context(), file, args...)
	cmd.Env = append(os.Environ(), asDemo+"=1", "GORACE=atexit_sleep_ms=0", "TMPDIR="+scratch)
	return cmd, func() {
		t.Helper()
		require.Eventually(t, func() bool { return len(processesOf(t, scratch)) == 0 }, 20*time.Second, 5*time.Millisecond, "processes are left")
		left, err := os.ReadDir(scratch)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// processesOf lists the processes that have a directory in their environment, or work in it, as
// redis-server does, which overwrites its environment. It needs /proc.
func processesOf(t *testing.T, dir string) (pids []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	require.NotEmpty(t, all)
	for _, process := range all {
		environ, _ := os.ReadFile(process + "/environ") // it may have just ended
		cwd, _ := os.Readlink(process + "/cwd")
		if bytes.Contains(environ, []byte(dir)) || strings.HasPrefix(cwd, dir) {
			pids = append(pids, filepath.Base(process))
		}
	}
	return pids
}

// requireShown checks a whole run: what it printed into a file, and what it recorded. Each
// fault has happened, and has the effect that it must have.
func requireShown(t *testing.T, out string, r record) {
	t.Helper()
	for line := range strings.Lines(out) {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 80, line)
	}
	for _, want := range []string{
		`(?m)^ +[\d.]+ s +[\d,]+ +[\d,]+ +0 +[\d,]+  █{20}  10,000$`, // a window that is used to the last token
		`→ process 2 is killed \(signal: killed\) with [\d,]+ tokens in its memory\n`,
		`→ Redis is killed: processes admit what they hold, then get errors\n`,
		`(?m) no window: Redis is away$`,
		`→ Redis is back, with its data\n`,
		`in each window, and count in\n`,
		`waited for Redis \(\d+\.\d\d % while it was up\)\.`,
		`requests made [\d,]+ Redis calls: \d+\.\d\d for 100 requests`,
		`The most that any window admitted: 10,000 of 10,000\.`,
		`The killed process held [\d,]+ tokens, [\d.]+ % of a limit\.`,
		`Redis was away for [\d.]+ s, and [\d.]+ s later each process admitted again\.`,
		`; [\d,]+ got the failure\npolicy's answer, by default an error\.`,
	} {
		require.Regexp(t, want, out)
	}

	require.Equal(t, "signal: killed", r.Killed)
	require.EqualValues(t, limit, r.Most)
	var sum counts
	add := func(c counts) { sum = sum.minus(counts{}.minus(c)) }
	for _, s := range r.Samples {
		for i, c := range s.Processes {
			add(c)
			if i == victim && s.At > r.KilledAt+1.5 {
				require.Zero(t, c, "after its end, at %v", s.At)
			}
		}
	}
	require.Equal(t, r.Total, sum)
	require.Equal(t, sum.Requests, sum.Admitted+sum.Refused+sum.Failed)
	require.Positive(t, sum.Refused)
	require.Less(t, sum.Calls, sum.Requests/10)
	require.Greater(t, r.Away.Failed, r.Away.Requests/4, "Redis was away, and the tokens in memory were few")
	require.Positive(t, r.Away.Requests-r.Away.Failed, "they were served")
	require.Greater(t, r.AdmittedAt, r.UpAt)
	require.Greater(t, r.UpAt, r.DownAt)
}

func runWhole(t *testing.T, env ...string) (out string, r record) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "record.json")
	cmd, requireNothingLeft := demo(t, "-for", "5s", "-record", file)
	cmd.Env = append(cmd.Env, env...)
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, string(said))
	requireNothingLeft()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &r))
	requireShown(t, string(said), r)
	return string(said), r
}

func TestDemo(t *testing.T) {
	out, r := runWhole(t)
	require.Contains(t, out, "redis-server ")
	require.Contains(t, out, "Redis itself counted ")
	require.Greater(t, r.Counted, r.Total.Calls/2, "calls in the outage do not arrive")
	require.Less(t, r.Counted, r.Total.Calls+20, "the killed process could not tell of its last ones")
}

// Without a redis-server the demo shows the same on an embedded one.
func TestDemoWithoutRedis(t *testing.T) {
	bin := t.TempDir()
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		files, _ := os.ReadDir(dir) // it may not exist
		for _, f := range files {
			if !regexp.MustCompile(`^(redis|valkey)-server`).MatchString(f.Name()) {
				_ = os.Symlink(filepath.Join(dir, f.Name()), filepath.Join(bin, f.Name())) // the first of a name counts
			}
		}
	}
	out, r := runWhole(t, "PATH="+bin)
	require.Contains(t, out, "an embedded server (no redis-server is installed)")
	require.Zero(t, r.Counted)
}

// Ctrl-C ends everything soon, with a summary.
func TestDemoIsStopped(t *testing.T) {
	cmd, requireNothingLeft := demo(t, "-for", "20s")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var shown strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); shown.WriteString(lines.Text() + "\n") {
		if strings.Contains(lines.Text(), "is killed (signal: killed)") {
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
		}
	}
	require.NoError(t, cmd.Wait(), shown.String())
	requireNothingLeft()
	require.Contains(t, shown.String(), "The killed process held ")
	require.Regexp(t, `It was stopped after [4-9]\.\d s`, shown.String())
}

// Even if the demo is killed, its workers and its server end, and their files go.
func TestDemoIsKilled(t *testing.T) {
	cmd, requireNothingLeft := demo(t, "-for", "1h")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = out.Read(make([]byte, 10)) // the head, when all processes are there
	require.NoError(t, err)
	const itself, workers, keeperAndServer = 1, processes, 2
	require.Len(t, processesOf(t, strings.TrimPrefix(cmd.Env[len(cmd.Env)-1], "TMPDIR=")), itself+workers+keeperAndServer)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	requireNothingLeft()
}

func TestDemoUsage(t *testing.T) {
	for args, want := range map[string]string{"-for 1s": "want -for of 3s to 1h", "x": "no argument", "-bogus": "-bogus"} {
		cmd, requireNothingLeft := demo(t, strings.Fields(args)...)
		out, err := cmd.CombinedOutput()
		require.Error(t, err, args)
		require.Contains(t, string(out), want)
		requireNothingLeft()
	}
}
