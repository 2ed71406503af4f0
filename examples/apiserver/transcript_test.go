package main

import (
	"flag"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/transcript"
)

var update = flag.Bool("update", false, "write what the commands of README.md print into it")

// varies matches what differs from run to run: clocks, and Remaining and Used while a
// batch is in flight. Other tests show that these are right.
var varies = regexp.MustCompile(`(?m)(Date: |Reset: |"reset":|Remaining: |Used: |"remaining":|"used":|;r=|;t=|Retry-After: )(?:[A-Z][a-z]{2}, )?[^;,}\n]+`)

// The transcript in README.md is what the commands print, all against one server.
func TestTranscript(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Log("there is no curl: nothing to compare with")
		return
	}
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	p := start(t)
	host := strings.TrimPrefix(p.url, "http://")
	got := transcript.Rerun(readme, func(command string) string {
		out, err := transcript.Shell(t.Context(), strings.ReplaceAll(command, "localhost:8080", host))
		require.NoError(t, err, command)
		return strings.ReplaceAll(out, host, "localhost:8080")
	})
	if *update {
		require.NoError(t, os.WriteFile("README.md", got, 0o644))
		return
	}
	require.Equal(t, varies.ReplaceAllString(string(readme), "$1*"), varies.ReplaceAllString(string(got), "$1*"))
}

// The program accepts the command lines in README.md.
func TestReadmeFlags(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	starts := regexp.MustCompile(`(?m)^go run ./examples/apiserver ([^#\n]*)#`).FindAllSubmatch(readme, -1)
	require.Len(t, starts, 3)
	server := redistest.Start(t)
	for _, args := range starts {
		start(t, strings.Fields(strings.ReplaceAll(string(args[1]), "localhost:6379", server.Addr()))...)
	}
}
