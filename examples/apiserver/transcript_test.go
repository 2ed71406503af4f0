package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/program"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// varies matches what differs from run to run: clocks, and Remaining and Used while a
// batch is in flight. Other tests show that these are right.
var varies = regexp.MustCompile(`(?m)(Date: |Reset: |"reset":|Remaining: |Used: |"remaining":|"used":|;r=|;t=|Retry-After: )(?:[A-Z][a-z]{2}, )?[^;,}\n]+`)

// The transcript in README.md is what the commands print, all against one server.
func TestTranscript(t *testing.T) {
	program.RequireTranscript(t, start(t).url, varies)
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
