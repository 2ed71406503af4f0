package reservoir_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The program in the README compiles, runs and admits.
func TestReadmeProgram(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindSubmatch(text)
	require.NotNil(t, block)
	require.LessOrEqual(t, strings.Count(string(block[1]), "\n"), 25)
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, block[1], 0o600))
	out, err := exec.Command("go", "run", file).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "true 59999 <nil>\n", string(out))
}
