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
		"":                                 "want a command: demo, load, inspect, watch, reset, tune, version or help",
		"lod":                              "no such command: lod: want demo, load, inspect",
		"redis://u:" + canary + "@h load":  "no such command: want demo",
		"version now":                      "want no argument beside",
		"demo -duration 1ms":               "-duration",
		"demo " + canary:                   "want no argument beside",
		"load -bogus":                      "no such flag: -bogus",
		"load -redis://u:" + canary + "@h": "no such flag",
		"load -stroe=redis://:" + canary:   "no such flag: -stroe",
		"load -store":                      "-store needs a value",
		"load -limit redis://:" + canary:   "bad value for flag -limit",
		"load -limit 0":                    "-limit: want 1 or more",
		"load -limit 9007199254740992":     "bad limit",
		"load -window 1us":                 "bad limit",
		"load -window " + canary:           "bad value for flag -window",
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
		"load -format " + canary:           "-format",
		"load " + canary:                   "want no argument beside",
		"load -store redis://h -prefix {":  "prefix",
		"load -store redis://h -store redis://h:6379": "twice",
		"inspect k":                                                        "-store",
		"inspect -store redis://h":                                         "want one argument beside",
		"inspect -store redis://h a b":                                     "want one argument beside",
		"inspect -store redis://h -limit 0 k":                              "-limit",
		"inspect -store redis://h -format x k":                             "-format",
		"inspect -store redis://h -prefix { k":                             "prefix",
		"inspect -store redis://h -name a\x1fb k":                          "bad value for flag -name",
		"inspect -store redis://h -name " + strings.Repeat("n", 65) + " k": "bad value for flag -name",
		"inspect -store memory k":                                          "memory store holds nothing",
		"inspect -store memory -store redis://h k":                         "memory store holds nothing",
		"inspect -store redis://h -store redis://h k":                      "bad value for flag -store: the same store twice",
		"watch k":               "-store",
		"watch -store memory k": "memory store holds nothing",
		"reset -store redis://127.0.0.1:1 k -window -1s":        "bad value for flag -window: bad limit: a window of -1s, want 1ms to",
		"reset -store redis://127.0.0.1:1 k -window 0s":         "bad value for flag -window: bad limit: a window of 0s",
		"inspect -store redis://h -top 0":                       "bad value for flag -top: want 1",
		"inspect -store redis://h -top 3 -name n":               "want -top or -name, not both",
		"inspect -store redis://h -top 3 k":                     "want no argument beside",
		"reset -calendar=" + canary + " k":                      "bad value for flag -calendar",
		"inspect -store redis://h " + strings.Repeat("k", 5000): "bad key",
	} {
		o := invoke(t.Context(), strings.Fields(args)...)
		require.Equal(t, exitUsage, o.status, args)
		o.requireOneLine(t)
		require.Contains(t, o.stderr, want, args)
		require.NotContains(t, o.stderr+o.stdout, canary, args)
		require.Empty(t, o.stdout, args)
	}
}

// What is typed may hold the words of package flag's errors, or stand where a flag should.
func TestFlagErrorsRepeatNoValue(t *testing.T) {
	for arg, want := range map[string]string{
		"-calendar=a for -" + canary:  "reservoir: bad value for flag -calendar: want true or false\n",
		"-keys=a for -" + canary:      "reservoir: bad value for flag -keys: want a whole number\n",
		"-x for flag -" + canary:      "reservoir: no such flag\n",
		"---x for flag -" + canary:    "reservoir: no such flag\n",
		"-trace hidden ---x":          "reservoir: no such flag\n",
		"-trace hidden -=x":           "reservoir: no such flag\n",
		"-trace hidden --=x":          "reservoir: no such flag\n",
		"-trace":                      "reservoir: flag -trace needs a value\n",
		"-policies= -seed":            "reservoir: flag -seed needs a value\n",
		"-calendar -name":             "reservoir: flag -name needs a value\n",
		"-seed x --bogus=hidden":      "reservoir: bad value for flag -seed: want a whole number\n",
		"--bogus=hidden -seed":        "reservoir: no such flag: -bogus\n",
		"-keys=a for flag -" + canary: "reservoir: bad value for flag -keys: want a whole number\n",
		"-duration 5":                 "reservoir: bad value for flag -duration: want a duration with a unit, such as 5s or 1m30s\n",
		"-duration five":              "reservoir: bad value for flag -duration: want a duration with a unit, such as 5s or 1m30s\n",
		"-rate 5/s":                   "reservoir: bad value for flag -rate: want a number\n",
		"-format=x":                   "reservoir: bad value for flag -format: want text or json\n",
	} {
		args := []string{"tune", arg}
		if strings.HasPrefix(arg, "-calendar") {
			args[0] = "reset"
		}
		if !strings.Contains(arg, "for") {
			args = append(args[:1], strings.Fields(arg)...)
		}
		o := invoke(t.Context(), args...)
		require.Equal(t, exitUsage, o.status, arg)
		require.Equal(t, want, o.stderr, arg)
	}
}

// Flags stand before and after operands, and after a -- there are none.
func TestFlagsStandAnywhere(t *testing.T) {
	for args, want := range map[string][]string{
		"-a 1 k -b 2":        {"k"},
		"k -a 1 -b 2":        {"k"},
		"-a 1 -b 2 -- k":     {"k"},
		"k -b 2 -a 1 l m":    {"k", "l", "m"},
		"-b 2 -a 1 -- -a -b": {"-a", "-b"},
		"-a 1 -b=2 -q -- -k": {"-k"},
		"-a 1 k -b 2 -- -l":  {"k", "-l"},
	} {
		f := newFlags("test", "")
		a, b := f.Int("a", 0, ""), f.String("b", "", "")
		f.Bool("q", false, "")
		f.want = len(want)
		require.NoError(t, f.parse(strings.Fields(args), io.Discard), args)
		require.Equal(t, want, f.operands, args)
		require.Equal(t, 1, *a, args)
		require.NotEmpty(t, *b, args)
		require.True(t, f.given("a") && f.given("b"), args)
	}
}
