package transcript

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Shell runs a command of a document, without proxies, and returns what it prints. It
// fails t if the command fails.
func Shell(t *testing.T, command string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
	cmd.Env = append(os.Environ(), "http_proxy=", "HTTP_PROXY=", "ALL_PROXY=", "all_proxy=")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err, command)
	return strings.ReplaceAll(string(out), "\r", "")
}
