package main

import (
	"bufio"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-reservoir/reservoir/internal/transcript"
)

// asProgram in the environment makes the test binary the program itself: a real
// process, with the race detector.
const asProgram = "CLUSTER_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// program is the program in a process of its own, whose servers keep their files
// in a directory of the test.
func program(t *testing.T) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it stops its servers
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+t.TempDir())
	cmd.Stderr = os.Stderr
	t.Cleanup(func() { requireNothingLeft(t, cmd) })
	return cmd
}

// requireNothingLeft looks for servers and files of the program.
func requireNothingLeft(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	dir := cmd.Environ()[len(cmd.Environ())-1][len("TMPDIR="):]
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, files)
	processes, err := filepath.Glob("/proc/[0-9]*/cwd")
	require.NoError(t, err)
	for _, link := range processes {
		if at, err := os.Readlink(link); err == nil { // or it has just ended
			require.False(t, strings.HasPrefix(at, dir), link)
		}
	}
}

var update = flag.Bool("update", false, "write what the commands of README.md print into it")

func TestReadme(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	got := transcript.Rerun(readme, func(command string) string {
		require.Equal(t, "go run ./examples/cluster", command)
		out, err := program(t).Output()
		require.NoError(t, err)
		return string(out)
	})
	if *update {
		require.NoError(t, os.WriteFile("README.md", got, 0o644))
		return
	}
	total := map[string]int{}
	for _, r := range row.FindAllSubmatch(got, -1) {
		for _, n := range r[2:] {
			admitted, err := strconv.Atoi(string(n))
			require.NoError(t, err)
			total[string(r[1])] += admitted
		}
	}
	require.Equal(t, map[string]int{"anna": 100, "emma": 100, "hugo": 100, "max": 100, "ben": 100, "felix": 100}, total)
	require.Regexp(t, `user:anna   1 +0 +[1-9]`, string(got), "while its master is away")
	require.Equal(t, row.ReplaceAllString(string(readme), "*"), row.ReplaceAllString(string(got), "*"))
}

// row is a user and what the store and the policy admitted. On a busy machine a
// server may be silent for half a second, and a request left to the policy.
var row = regexp.MustCompile(`(?m)^  user:(\w+) +\w+ +(\d+) +(\d+)$`)

func TestInterrupted(t *testing.T) {
	t.Parallel()
	cmd := program(t)
	cmd.Stderr = nil
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReader(out).ReadString('\n') // all servers are up
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.Error(t, cmd.Wait())
}

func TestNoServer(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	require.ErrorContains(t, run(context.Background(), os.Stdout), "is redis-server installed?")
}
