package memcachestore

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
)

const (
	addrVariable = "RESERVOIR_TEST_MEMCACHED" // makes a process of this test binary a child
	sharedKey    = "user:42 of \x00 both"
)

var sharedLimit = reservoir.Limit{Tokens: 20_000, Window: time.Hour}

// TestProcesses: two processes share a limit: together they admit what the store has
// charged, one by batches and one call by call, and both know the same reset.
func TestProcesses(t *testing.T) {
	if addr := os.Getenv(addrVariable); addr != "" {
		child(t, addr, os.Getenv("RESERVOIR_TEST_DIRECT") != "")
		return
	}
	addr := start(t).Addr()
	children := []*peer{spawn(t, addr, ""), spawn(t, addr, "direct")}
	for _, c := range children {
		c.read("ready")
	}
	for _, c := range children {
		_, err := io.WriteString(c.in, "go\n")
		require.NoError(t, err)
	}
	var allowed, reset [2]int64
	for i, c := range children {
		c.read("%d allowed until %d", &allowed[i], &reset[i])
		require.NoError(t, c.cmd.Wait())
		require.Positive(t, allowed[i])
	}
	require.Equal(t, reset[0], reset[1])
	state, err := over(t, addr).Check(t.Context(), sharedKey, backend.Limit(sharedLimit))
	require.NoError(t, err)
	require.Equal(t, backend.Window(reset[0]), state.Window)
	require.Equal(t, sharedLimit.Tokens-allowed[0]-allowed[1], state.Remaining)
}

// child admits what it can, up to half of the limit.
func child(t *testing.T, addr string, direct bool) {
	opts := []reservoir.Option{reservoir.WithFetchTimeout(10 * time.Second)}
	most := int64(9000)
	if direct {
		opts, most = append(opts, reservoir.WithDirect()), 500
	}
	l, err := reservoir.New(over(t, addr), sharedLimit, opts...)
	require.NoError(t, err)
	fmt.Println("ready")
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	require.NoError(t, err)
	var allowed int64
	var last reservoir.Result
	for range most {
		last, err = l.Allow(t.Context(), sharedKey)
		require.NoError(t, err)
		if last.Allowed {
			allowed++
		}
	}
	require.NoError(t, l.Close(t.Context()))
	fmt.Printf("%d allowed until %d\n", allowed, last.Reset.UnixMilli())
}

// peer is another process, run by this test binary.
type peer struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func spawn(t *testing.T, addr, direct string) *peer {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProcesses$") // killed with the test
	cmd.Env = append(os.Environ(), addrVariable+"="+addr, "RESERVOIR_TEST_DIRECT="+direct)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return &peer{t, cmd, in, bufio.NewReader(out)}
}

// read expects a line of this form, which may come after others of package testing.
func (p *peer) read(format string, to ...any) {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	require.NoError(p.t, err)
	n, err := fmt.Sscanf(line, format, to...)
	require.NoError(p.t, err, line)
	require.Equal(p.t, len(to), n)
}
