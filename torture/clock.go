package torture

import (
	_ "embed" // the shim
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

//go:embed testdata/clockshim.c
var clockShim []byte

const (
	preload  = "LD_PRELOAD"
	clockEnv = "TORTURE_CLOCK"
)

// environment guards this process' own environment, by which a server is given
// its clock: others that start meanwhile would get it too.
var environment sync.RWMutex

// clock is the time of day as the servers that started with it see it.
type clock struct {
	t    testing.TB
	path string // of the file that holds the offset
	lib  string
}

// newClock compiles the shim.
func newClock(t testing.TB) *clock {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "clockshim.c")
	c := &clock{t: t, path: filepath.Join(dir, "offset"), lib: filepath.Join(dir, "clockshim.so")}
	require.NoError(t, os.WriteFile(source, clockShim, 0o600))
	out, err := exec.CommandContext(t.Context(), "cc", "-O2", "-shared", "-fPIC", "-o", c.lib, source, "-ldl").CombinedOutput()
	require.NoError(t, err, "cc: %s", out)
	c.set(0)
	return c
}

// set moves the clock to so much ahead of the machine's. The write is of eight
// bytes in place, which a server that reads them sees as one.
func (c *clock) set(ahead time.Duration) {
	c.t.Helper()
	f, err := os.OpenFile(c.path, os.O_WRONLY|os.O_CREATE, 0o600)
	require.NoError(c.t, err)
	defer f.Close()
	_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead.Microseconds())), 0)
	require.NoError(c.t, err)
}

// under runs start, which is to start servers by this clock.
func (c *clock) under(start func()) {
	environment.Lock()
	defer environment.Unlock()
	for name, value := range map[string]string{preload: c.lib, clockEnv: c.path} {
		require.NoError(c.t, os.Setenv(name, value))
		defer os.Unsetenv(name)
	}
	start()
}

// plainly runs start, which is to start servers by the machine's clock.
func plainly(start func()) {
	environment.RLock()
	defer environment.RUnlock()
	start()
}
