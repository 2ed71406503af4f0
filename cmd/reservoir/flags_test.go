package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// canary stands for a password. It must come back from nowhere.
const canary = "Canary7"

func TestUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"":                                 "want a command: demo, load, inspect, reset, tune, version or help",
		"lod":                              "no such command: want demo, load, inspect",
		"redis://u:" + canary + "@h load":  "no such command: want demo",
		"version now":                      "want no argument after",
		"demo -duration 1ms":               "-duration",
		"demo " + canary:                   "want no argument after",
		"load -bogus":                      "flag provided but not defined: -bogus",
		"load -redis://u:" + canary + "@h": "a URL stands where none is wanted",
		"load -stroe=redis://:" + canary:   "flag provided but not defined: -stroe",
		"load -store":                      "flag needs an argument: -store",
		"load -limit redis://:" + canary:   "a URL stands where none is wanted",
		"load -limit 0":                    "-limit: want 1 or more",
		"load -limit 9007199254740992":     "bad limit",
		"load -window 1us":                 "bad limit",
		"load -n 0":                        "-n",
		"load -n 11 -limit 10":             "the limit of 10 tokens",
		"load -keys 0":                     "-keys",
		"load -keys 2 -key a":              "not both",
		"load -key=":                       "bad key",
		"load -workers 0":                  "-workers",
		"load -zipf 1":                     "-zipf",
		"load -zipf NaN":                   "-zipf",
		"load -zipf 2 -key a":              "-zipf: want 0, or above 1 with several -keys",
		"load -prefix p:":                  "-prefix: want none, because no -store is a Redis",
		"load -prefix p: -store memory":    "-prefix: want none",
		"load -rate -1":                    "-rate",
		"load -rate NaN":                   "-rate",
		"load -rate Inf":                   "-rate",
		"load -requests -1":                "-requests",
		"load -duration 0s":                "-duration",
		"load -batch 0":                    "-batch",
		"load -batch " + canary:            "-batch",
		"load -format x":                   `invalid value "x" for flag -format: want text or json`,
		"load " + canary:                   "want no argument after",
		"load -store redis://h -prefix {":  "prefix",
		"load -store redis://h -store redis://h:6379": "twice",
		"inspect k":                                                        "-store",
		"inspect -store redis://h":                                         "want one argument after",
		"inspect -store redis://h a b":                                     "want one argument after",
		"inspect -store redis://h -limit 0 k":                              "-limit",
		"inspect -store redis://h -format x k":                             "-format",
		"inspect -store redis://h -prefix { k":                             "prefix",
		"inspect -store redis://h -name a\x1fb k":                          "bad value for flag -name",
		"inspect -store redis://h -name " + strings.Repeat("n", 65) + " k": "bad value for flag -name",
		"inspect -store memory k":                                          "memory store holds nothing",
		"inspect -store memory -store redis://h k":                         "memory store holds nothing",
		"inspect -store redis://h -store redis://h k":                      "bad value for flag -store: the same store twice",
		"reset -store redis://127.0.0.1:1 -window -1s k":                   "bad value for flag -window: bad limit: a window of -1s, want 1ms to",
		"reset -store redis://127.0.0.1:1 -window 0s k":                    "bad value for flag -window: bad limit: a window of 0s",
		"reset -calendar=x k":                                              "for -calendar",
		"load -window redis://u:" + canary + "@h":                          "a URL stands where none is wanted",
		"inspect k -store redis://u:" + canary + "@h":                      "flags stand before other arguments: reservoir inspect -store URL",
		"inspect -store redis://h k -":                                     "flags stand before",
		"inspect -store redis://h -- -k -l":                                "want one argument after",
		"inspect -store redis://h " + strings.Repeat("k", 5000):            "bad key",
	} {
		o := invoke(t.Context(), strings.Fields(args)...)
		require.Equal(t, exitUsage, o.status, args)
		o.requireOneLine(t)
		require.Contains(t, o.stderr, want, args)
		require.NotContains(t, o.stderr+o.stdout, canary, args)
		require.Empty(t, o.stdout, args)
	}
}

// After -- a key may begin with a dash.
func TestKeysWithADash(t *testing.T) {
	for args, want := range map[string]string{"-a 1 k": "k", "-a=1 -- -k": "-k", "-a 1 -- --": "--"} {
		f := newFlags("test", "")
		a := f.Int("a", 0, "")
		f.want = 1
		require.NoError(t, f.parse(strings.Fields(args), io.Discard), args)
		require.Equal(t, want, f.Arg(0))
		require.Equal(t, 1, *a)
		require.True(t, f.given("a"))
	}
}
