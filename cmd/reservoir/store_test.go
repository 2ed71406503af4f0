package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/redisstore"
)

func TestStoresAreNamedWithoutCredentials(t *testing.T) {
	for s, want := range map[string]string{
		"redis://u:p@h":                "h:6379",
		"rediss://u:p@h:1/2":           "h:1/2",
		"redis-cluster://u:p@a:1,b:2":  "a:1,b:2",
		"redis-sentinel://u:p@a,b/m/3": "a:26379,b:26379/m/3",
	} {
		o, err := redisstore.Options(s)
		require.NoError(t, err, s)
		require.Equal(t, want, nameOf(o), s)
	}
}

// malformed addresses hold the canary where a password may have slipped to.
var malformed = []string{
	"", "Memory", "redis", "redis:", "redis:/h", "redis//:%@h", "http://u:%@h", "%", "%://h", "redis:u:%@h",
	"redis://", "redis:///", "redis://:%@", "redis://u:%@/0", "redis://u:%@h:port", "redis://u:%@h:0", "redis://u:%@h:65536",
	"redis://u:1/%@h", "redis://u:1/2%@h:6379/0", "redis://u:%/x@h:6379", "redis://u:1?%@/h", "redis://u:1#%", "redis://u:1?%",
	"redis://u:%zz%@h", "redis://%zz:%@h", "redis://u:%@h/db", "redis://u:%@h/-1", "redis://u:%@h/0/1", "redis://u:%@h/0?x=%",
	"redis://u:%@h1,h2", "redis://u:%@h 1", "redis://u:%@h\n", "redis://u:%@[::1", "redis://u:%@::1", "redis://u:%@[h]:1",
	"redis-cluster://u:%@a:1,", "redis-cluster://u:%@,", "redis-cluster://u:%@a:1,b:x", "redis-cluster://u:%@a/1", "redis-cluster://u:%@a:1,u:%@b:2",
	"rediss://u:%@h:1:2", "unix://%@/tmp/x", "redis://%@h", "redis://u%:@h", "redis://u:p@%@h",
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
			require.Contains(t, o.stderr, "bad value for flag -store", s)
			require.NotContains(t, o.stdout+o.stderr, canary, s)
		}
	}
}

// FuzzAddress holds a password between arbitrary text before an address.
func FuzzAddress(f *testing.F) {
	f.Add("redis://", "u:", "")
	f.Add("rediss://", ":", "/")
	f.Add("redis-cluster://", "u@", ",")
	f.Fuzz(func(t *testing.T, scheme, before, after string) {
		o, err := redisstore.Options(scheme + before + canary + after + "@host:1")
		if err != nil {
			require.NotContains(t, err.Error(), canary)
			return
		}
		require.Equal(t, "host:1", nameOf(o))
	})
}
