package memcachestore_test

import (
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/memcachestore"
)

// TestReadme: the program in the README is the Example, and the Example works.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(readme)
	require.NotNil(t, block)
	body := regexp.MustCompile(`(?s)func Example\(\) \{\n(.*?)\n\}`).FindSubmatch(source)
	require.NotNil(t, body)
	require.Equal(t, unindent(string(body[1])), strings.TrimSpace(string(block[1])))

	t.Setenv("MEMCACHED", memcachestore.Start(t).Addr())
	require.Equal(t, "true 4999 <nil>\n", printed(t, Example))
}

func unindent(text string) string { return strings.ReplaceAll("\n"+text, "\n\t", "\n")[1:] }

// printed is what f writes to the standard output.
func printed(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	stdout := os.Stdout
	os.Stdout = w
	f()
	os.Stdout = stdout
	require.NoError(t, w.Close())
	out, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(out)
}
