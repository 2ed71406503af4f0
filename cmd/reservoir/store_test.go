package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/redisstore"
)

func TestStoresAreNamedWithoutCredentials(t *testing.T) {
	for s, want := range map[string]string{
		"redis://u:p@h":                    "h:6379",
		"rediss://u:p@h:1/2":               "h:1/2",
		"unix://u:p@/run/s?db=2":           "/run/s/2",
		"redis-cluster://u:p@a:1?addr=b:2": "a:1,b:2",
		"redis-sentinel://s:q@a/3?master_name=m&addr=b:2&username=u&password=p": "a:26379,b:2/m/3",
	} {
		o, err := redisstore.Options(s)
		require.NoError(t, err, s)
		require.Equal(t, want, nameOf(o), s)
	}
}

// An address that is no store's is a usage error, which keeps the password that may be in it.
func TestMalformedAddresses(t *testing.T) {
	for _, store := range []string{"", "redis", "http://u:%@h", "redis://u:%@h:port", "redis://u:%@h/0?x=%", "redis://u:%/x@h", "redis-cluster://u:%@a:1,b", "redis-sentinel://h?password=%"} {
		for _, command := range []string{"load", "inspect"} {
			o := invoke(t.Context(), slices.DeleteFunc([]string{command, "-store", strings.ReplaceAll(store, "%", canary), "k"}, func(s string) bool { return command == "load" && s == "k" })...)
			require.Equal(t, exitUsage, o.status, store)
			o.requireOneLine(t)
			require.Contains(t, o.stderr, "bad value for flag -store: want redis://", store)
			require.NotContains(t, o.stdout+o.stderr, canary, store)
		}
	}
}

// An interrupted command reports how much it has not done.
func TestInterrupts(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	o := invoke(ctx, strings.Fields("load -rate 0.01 -workers 2 -requests 1000")...)
	o.requireFine(t)
	require.Contains(t, o.stdout, "stopped      early: 999 of 1,000 calls were not made\n")
	o = invoke(ctx, strings.Fields("load -duration 1h -format json")...)
	require.Regexp(t, `^59m5\S+s of 1h0m0s were not run|1h0m0s of 1h0m0s were not run$`, o.report(t).NotRun)
	require.NotContains(t, invoke(t.Context(), strings.Fields("load -requests 10")...).stdout, "stopped")
	o = invoke(ctx, "tune")
	require.Equal(t, "reservoir: stopped after 0 of 7 policies\n", o.stderr)
}
