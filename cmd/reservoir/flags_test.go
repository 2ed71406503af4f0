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
		"":                                "want a command: load, inspect, reset, tune or help",
		"lod":                             "no such command: want load, inspect",
		"load -bogus":                     "flag provided but not defined: -bogus",
		"load -stroe=redis://:" + canary:  "flag provided but not defined: -stroe",
		"load -store":                     "flag needs an argument: -store",
		"load -limit redis://:" + canary:  "a URL stands where none is wanted",
		"load -limit 0":                   "-limit: want 1 or more",
		"load -limit 9007199254740992":    "bad limit",
		"load -n 0":                       "-n",
		"load -n 11 -limit 10":            "the limit of 10 tokens",
		"load -keys 2 -key a":             "not both",
		"load -key=":                      "bad key",
		"load -workers 0":                 "-workers",
		"load -zipf NaN":                  "-zipf",
		"load -prefix p:":                 "-prefix: want none, because the -store is no Redis",
		"load -rate NaN":                  "-rate",
		"load -requests -1":               "-requests",
		"load -duration 0s":               "-duration",
		"load -batch " + canary:           "-batch",
		"load -format x":                  `invalid value "x" for flag -format: want text or json`,
		"load -store redis://h -prefix {": "prefix",
		"inspect k":                       "-store",
		"inspect -store redis://h":        "want one argument after",
		"inspect -store redis://h -name a\x1fb k":                          "bad value for flag -name",
		"inspect -store redis://h -name " + strings.Repeat("n", 65) + " k": "bad value for flag -name",
		"inspect -store memory k":                                          "-store: want a Redis",
		"reset -store redis://127.0.0.1:1 -counter -1s k":                  "bad value for flag -counter: want a name as 60s",
		"reset -store redis://127.0.0.1:1 -counter 1m k":                   "bad value for flag -counter: want a name as 60s",
		"reset -store redis://127.0.0.1:1 -counter year@UTC k":             "bad value for flag -counter: want a name as 60s",
		"reset -store redis://127.0.0.1:1 -counter day@Local k":            "bad value for flag -counter: want a name as 60s",
		"inspect -store redis://127.0.0.1:1 -counter day@Nowhere/City k":   "bad value for flag -counter: want a name as 60s",
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
