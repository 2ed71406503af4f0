package redistest

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDaemon(t *testing.T) {
	var pids []int
	d := startDaemon(t, func(port int) *exec.Cmd {
		return exec.Command("redis-server", "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "")
	}, func(addr string, pid int) bool {
		if !answers(addr, pid) {
			return false
		}
		pids = append(pids, pid)
		return true
	})
	first := d.Addr()
	require.True(t, strings.HasPrefix(first, "127.0.0.1:"))
	d.Restart()
	require.Equal(t, first, d.Addr())
	require.Len(t, pids, 2)
	require.NotEqual(t, pids[0], pids[1])
	require.True(t, answers(first, pids[1]))
	d.Kill()
	require.False(t, answers(first, pids[1]))
	d.Kill() // it is gone already
}
