package main

import (
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/program"
)

func TestMain(m *testing.M) { program.Main(m, main) }

func TestReadme(t *testing.T) {
	t.Parallel()
	was, now := program.Readme(t, func(command string) string {
		require.Equal(t, "go run ./examples/cluster", command)
		out, err := program.Command(t).Output()
		require.NoError(t, err)
		return string(out)
	})
	total := map[string]int{}
	for _, r := range row.FindAllStringSubmatch(now, -1) {
		for _, n := range r[2:] {
			admitted, err := strconv.Atoi(n)
			require.NoError(t, err)
			total[r[1]] += admitted
		}
	}
	require.Equal(t, map[string]int{"anna": 100, "emma": 100, "hugo": 100, "max": 100, "ben": 100, "felix": 100}, total, now)
	require.Regexp(t, `user:anna   1 +0 +[1-9]`, now, "while its master is away")
	require.Equal(t, row.ReplaceAllString(was, "*"), row.ReplaceAllString(now, "*"))
}

// row is a user and what the store and the policy admitted. On a busy machine a server
// may be silent for half a second, so that the policy decides a request.
var row = regexp.MustCompile(`(?m)^  user:(\w+) +\w+ +(\d+) +(\d+)$`)

func TestInterrupted(t *testing.T) {
	t.Parallel()
	program.RequireInterruptible(t) // when all servers are up
}

func TestNoServer(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	cmd := program.Command(t)
	cmd.Stderr = nil
	_, err := cmd.Output()
	var failed *exec.ExitError
	require.ErrorAs(t, err, &failed)
	require.Regexp(t, `^cluster: .*redis-server is not installed.*\n$`, string(failed.Stderr))
}
