package main

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/placement"
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

// malformed addresses hold the canary where a password may have slipped to.
var malformed = []string{
	"", "Memory", "redis", "redis:", "redis:/h", "redis//:%@h", "http://u:%@h", "%", "%://h", "redis:u:%@h",
	"redis://", "redis:///", "redis://:%@", "redis://u:%@/0", "redis://u:%@h:port",
	"redis://u:1/%@h", "redis://u:1/2%@h:6379/0", "redis://u:%/x@h:6379", "redis://u:1?%@/h", "redis://u:1#%", "redis://u:1?%",
	"redis://u:%zz%@h", "redis://%zz:%@h", "redis://u:%@h/db", "redis://u:%@h/-1", "redis://u:%@h/0/1", "redis://u:%@h/0?x=%",
	"redis://u:%@h1,h2", "redis://u:%@h 1", "redis://u:%@h\n", "redis://u:%@[::1",
	"redis-cluster://u:%@a:1,", "redis-cluster://u:%@,", "redis-cluster://u:%@a:1?addr=b:x:%", "redis-cluster://u:%@a/1", "redis-cluster://u:%@a:1,u:%@b:2",
	"redis-sentinel://h?master_name=m&username=u&password=%#", "redis-sentinel://h?master_name=m&db=%", "redis-sentinel://h?password=%",
	"rediss://u:%@h:1:2", "unix://%@/tmp/x", "unix://u:%@h/tmp/x", "redis://%@h", "redis://u%:@h", "redis://u:p@%@h",
}

func TestMalformedAddressesKeepTheirPasswords(t *testing.T) {
	for _, m := range malformed {
		s := strings.ReplaceAll(m, "%@", canary+"@")
		s = strings.ReplaceAll(s, "%", canary)
		s = strings.ReplaceAll(s, canary+"zz", "%zz")
		for _, args := range [][]string{{"load", "-store", s}, {"inspect", "-store", s, "k"}, {"load", "-store", "memory", "-store", s}} {
			o := invoke(t.Context(), args...)
			require.Equal(t, exitUsage, o.status, s)
			o.requireOneLine(t)
			require.Contains(t, o.stderr, "bad value for flag -store: want redis://", s)
			require.NotContains(t, o.stdout+o.stderr, canary, s)
		}
	}
}

// FuzzAddress holds a password between arbitrary text before an address.
func FuzzAddress(f *testing.F) {
	f.Add("redis://", "u:", "")
	f.Add("rediss://", ":", "/")
	f.Add("redis-cluster://", "u@", ",")
	f.Add("redis-sentinel://", "h?master_name=m&password=", "")
	f.Fuzz(func(t *testing.T, scheme, before, after string) {
		o, err := redisstore.Options(scheme + before + canary + after + "@host:1")
		if err != nil {
			require.NotContains(t, err.Error(), canary)
			return
		}
		require.Equal(t, "host:1", nameOf(o))
	})
}

func TestLimiterKeys(t *testing.T) {
	for _, name := range []string{"", "n", "per second"} {
		for _, key := range []string{"k", "\x1f", "\x1fk", "k\x1f\x1f", "a\x1fb", "\x1f\x1f\x1f"} {
			full, err := storeKey(name, key)
			require.NoError(t, err)
			gotName, gotKey := placement.Split(full)
			require.Equal(t, [2]string{name, key}, [2]string{gotName, gotKey})
		}
	}
}

// A store that is away, or hangs, ends a load before it begins, and not by -duration.
func TestADeadStoreEndsALoadAtOnce(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	require.NoError(t, err)
	defer l.Close()
	for _, store := range []string{"redis://127.0.0.1:1", "redis://" + l.Addr().String()} {
		begin := time.Now()
		o := invoke(t.Context(), "load", "-duration", "1h", "-store", store)
		require.Equal(t, exitFailure, o.status)
		o.requireOneLine(t)
		require.Contains(t, o.stderr, strings.TrimPrefix(store, "redis://")+": check: ")
		require.Empty(t, o.stdout, "nothing was begun")
		require.Less(t, time.Since(begin), time.Minute)
	}
}

// What an interrupt leaves out is told.
func TestInterruptsTellWhatWasNotRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	o := invoke(ctx, strings.Fields("load -rate 0.01 -workers 2 -requests 1000")...)
	o.requireFine(t)
	require.Contains(t, o.stdout, "stopped      early: 999 of 1,000 calls were not made\n")
	o = invoke(ctx, strings.Fields("load -duration 1h -format json")...)
	require.Regexp(t, `^59m59\.9\d*s of 1h0m0s were not run|1h0m0s of 1h0m0s were not run$`, o.report(t).NotRun)
	require.NotContains(t, invoke(t.Context(), strings.Fields("load -requests 10")...).stdout, "stopped")
	o = invoke(ctx, "tune")
	require.Equal(t, "reservoir: stopped before any of 8 policies was replayed\n", o.stderr)
}
