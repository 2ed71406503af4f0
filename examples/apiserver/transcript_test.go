package main

import (
	"flag"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write what the commands of README.md print into it")

// block is a piece of README.md that shows commands, after "$ ", and what they
// print.
var block = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")

// varies is what differs from run to run: clocks, and Remaining and Used while a batch is on
// its way. That those are right is for the other tests to show.
var varies = regexp.MustCompile(`(?m)(Date: .*, |Reset: |"reset":|Remaining: |Used: |"remaining":|"used":|;r=|;t=|Retry-After: )[^;,}\n]+`)

// The transcript in README.md is what the commands print, in one go against one
// server.
func TestTranscript(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Log("there is no curl: nothing to compare with")
		return
	}
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	p := start(t)
	host := strings.TrimPrefix(p.url, "http://")
	got := block.ReplaceAllFunc(readme, func(b []byte) []byte {
		var out strings.Builder
		out.WriteString("```console\n")
		for _, command := range commands(string(b)) {
			out.WriteString("$ " + command + "\n" + shell(t, strings.ReplaceAll(command, "localhost:8080", host)))
		}
		return []byte(strings.ReplaceAll(out.String(), host, "localhost:8080") + "```")
	})
	if *update {
		require.NoError(t, os.WriteFile("README.md", got, 0o644))
		return
	}
	require.Equal(t, varies.ReplaceAllString(string(readme), "$1*"), varies.ReplaceAllString(string(got), "$1*"))
}

// The ways to start it that README.md names are understood.
func TestReadmeFlags(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	starts := regexp.MustCompile(`(?m)^go run ./examples/apiserver ([^#\n]*)#`).FindAllSubmatch(readme, -1)
	require.Len(t, starts, 4)
	for _, args := range starts {
		_, err := parse(strings.Fields(string(args[1])), io.Discard)
		require.NoError(t, err, string(args[1]))
	}
}

// commands are the lines after "$ ", with those that continue them.
func commands(block string) (all []string) {
	lines := strings.Split(block, "\n")
	for i := 0; i < len(lines); i++ {
		command, ok := strings.CutPrefix(lines[i], "$ ")
		if !ok {
			continue
		}
		for strings.HasSuffix(command, `\`) {
			i++
			command += "\n" + lines[i]
		}
		all = append(all, command)
	}
	return all
}

func shell(t *testing.T, command string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
	cmd.Env = append(os.Environ(), "http_proxy=", "HTTP_PROXY=", "ALL_PROXY=", "all_proxy=")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err, command)
	return strings.ReplaceAll(string(out), "\r", "")
}
