package transcript

import (
	"context"
	"os"
	"os/exec"
	"strings"
)

// Shell runs a command of a document, without proxies, and returns what it prints.
func Shell(ctx context.Context, command string) (string, error) {
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Env = append(os.Environ(), "http_proxy=", "HTTP_PROXY=", "ALL_PROXY=", "all_proxy=")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.ReplaceAll(string(out), "\r", ""), err
}
