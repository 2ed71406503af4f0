package redistest

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

//go:embed testdata/clockshim.c
var clockShim []byte

// Clock is the clock of a server, which a test can set. Its methods are safe for concurrent use.
type Clock struct {
	t      testing.TB
	server *Server
	offset *os.File // eight bytes
}

// StartClocked is [Start] of a server whose clock can be set. It needs Linux and a C compiler.
func StartClocked(t testing.TB, args ...string) (*Server, *Clock) {
	t.Helper()
	dir := t.TempDir()
	source, lib, offset := filepath.Join(dir, "clockshim.c"), filepath.Join(dir, "clockshim.so"), filepath.Join(dir, "offset")
	check(t, os.WriteFile(source, clockShim, 0o600))
	if out, err := exec.CommandContext(t.Context(), "cc", "-O2", "-shared", "-fPIC", "-o", lib, source, "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("redistest: cc: %v: %s", err, out)
	}
	f, err := os.Create(offset)
	check(t, err)
	t.Cleanup(func() { _ = f.Close() })
	c := &Clock{t: t, offset: f}
	c.Set(0)
	c.server = StartEnv(t, []string{"LD_PRELOAD=" + lib, "REDISTEST_CLOCK=" + offset}, args...)
	return c.server, c
}

// Set sets the clock ahead of the machine's, from the server's next look at it on. It writes the bytes in place,
// which the server reads as one.
func (c *Clock) Set(ahead time.Duration) {
	c.t.Helper()
	_, err := c.offset.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead.Microseconds())), 0)
	check(c.t, err)
}

// Ahead returns how far the clock is ahead of the machine's, by the server's TIME. It is less by what the answer takes.
func (c *Clock) Ahead() time.Duration {
	c.t.Helper()
	at, err := c.server.admin.Time(c.t.Context()).Result()
	check(c.t, err)
	return time.Until(at)
}
