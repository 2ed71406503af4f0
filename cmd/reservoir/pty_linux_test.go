package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// onTerminal runs the command on a terminal of so many columns and returns what that shows.
// The command runs in this process: what signals do to one of its own,
// TestSignalsEndALoadCleanly tells.
func onTerminal(t *testing.T, columns uint16, args ...string) string {
	t.Helper()
	t.Setenv("TERM", "xterm")
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	defer ours.Close()
	require.NoError(t, unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(int(ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}))
	theirs, err := os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	go func() {
		run(t.Context(), args, theirs, theirs)
		_ = theirs.Close()
	}()
	shown, some := "", make([]byte, 4096)
	for {
		n, err := ours.Read(some)
		if err != nil { // nobody has the other side any more
			break
		}
		shown += string(some[:n])
	}
	return strings.ReplaceAll(shown, "\r\n", "\n")
}

// Nothing is wider than a narrow terminal, and nothing is lost for that.
func TestNarrowTerminal(t *testing.T) {
	server := redistest.Start(t)
	store := "redis://" + server.Addr()
	invoke(t.Context(), "load", "-store", store, "-window", "1h", "-requests", "1000").requireFine(t)
	words := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	for args, want := range map[string]string{
		"help":                             "replay a traffic under each batch policy and recommend one",
		"lod":                              "want demo, load, inspect",
		"load -h":                          "for several shards, which share the keys",
		"tune -h":                          "stranding:share (WithStranding)",
		"load -requests 100 -key k -store": "the most spent here in one",
		"inspect -store":                   "given back",
		"tune -seed 1 -rate 1500 -limit 1000 -duration 2s": "Recommended: adaptive",
		"demo -duration 100ms":                             "no window goes over its limit",
		"load -store redis://nowhere.invalid -requests 10": "no such host",
	} {
		line := strings.Fields(args)
		if line[len(line)-1] == "-store" {
			line = append(line, store)
		}
		if line[0] == "inspect" {
			line = append(line, "key-0")
		}
		for _, columns := range []uint16{40, 132} {
			shown := onTerminal(t, columns, line...)
			require.Contains(t, words(shown), want, args)
			for text := range strings.Lines(shown) {
				require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(text, "\n")), int(columns)+bar(text), "%s\n%s", args, shown)
			}
		}
	}
}

// What takes a while is followed on a terminal, in as many columns as that has.
func TestProgressOnATerminal(t *testing.T) {
	for args, want := range map[string]string{
		"load -duration 500ms -window 1h":            "load: [0-9,]+ requests, [0-9]+ store c",
		"load -requests 900 -rate 2000":              ` *[0-9]+ %  load: [0-9]+`,
		"demo -duration 400ms":                       ` *[0-9]+ %  with batches:`,
		"tune -seed 1 -duration 3s -policies direct": ` *[0-9]+ %  direct`,
	} {
		shown := onTerminal(t, 42, strings.Fields(args)...)
		require.Regexp(t, `\r\x1b\[K`+want, shown, args)
		for _, text := range strings.Split(shown, "\r\x1b[K") {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.Split(text, "\n")[0]), 42, args)
		}
	}
}

// bar is how much longer a line is than it looks, for progress that was drawn over.
func bar(text string) int {
	if strings.ContainsAny(text, "\r\x1b") {
		return 1 << 20
	}
	return 0
}
