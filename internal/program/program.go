// Package program lets a test run the program under test as a process of its own: the
// test binary, with the race detector, becomes the program.
package program

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const asProgram = "RESERVOIR_TEST_AS_PROGRAM=1"

// Main is the TestMain of the program. It runs main in a process that has Environ, and
// all tests otherwise.
func Main(m *testing.M, main func()) {
	name, value, _ := strings.Cut(asProgram, "=")
	if os.Getenv(name) == value {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// Environ is the environment in which the test binary becomes the program.
func Environ() []string { return append(os.Environ(), asProgram) }

// Path returns the path of the test binary.
func Path(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

// Command returns a command that runs the program with args. At the end of the test the
// program gets SIGTERM; then its own processes must have ended and its files be gone.
func Command(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), Path(t), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(Environ(), "TMPDIR="+dir)
	cmd.Stderr = os.Stderr
	t.Cleanup(func() { requireNothingLeft(t, dir) })
	return cmd
}

// requireNothingLeft requires that no process and no file is in dir.
func requireNothingLeft(t testing.TB, dir string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, files)
	processes, err := filepath.Glob("/proc/[0-9]*/cwd")
	require.NoError(t, err)
	for _, link := range processes {
		if at, err := os.Readlink(link); err == nil { // otherwise it has just ended
			require.False(t, strings.HasPrefix(at, dir), link)
		}
	}
}
