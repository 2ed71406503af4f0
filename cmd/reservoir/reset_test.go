package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// A key's windows are void, of whatever length and kind, or one of them, and others' are as they were.
func TestReset(t *testing.T) {
	server := redistest.Start(t)
	args := []string{"-store", "redis://" + server.Addr(), "-prefix", "p*:", "k"}
	look := func() map[string]int64 {
		o := invoke(t.Context(), append([]string{"inspect", "-format", "json"}, args...)...)
		o.requireFine(t)
		var i inspection
		require.NoError(t, json.Unmarshal([]byte(o.stdout), &i))
		charged := map[string]int64{}
		for _, c := range i.Counters {
			charged[c.Counter] = c.Charged
		}
		return charged
	}
	reset := func(more ...string) outcome {
		return invoke(t.Context(), append(append([]string{"reset"}, more...), args...)...)
	}
	o := reset()
	o.requireFine(t)
	require.Contains(t, o.stdout, "none is open")
	require.Contains(t, o.stdout, "-prefix and -name")
	require.NotContains(t, o.stdout, "Reset.")
	require.Contains(t, reset("-counter", "60s").stdout, "Reset. The key had:\n\nkey        k\nwindow     none is open", "it voids a counter without a window, too")

	charge(t, server, "", "k", 600)
	charge(t, server, "n", "k", 7)
	require.Equal(t, map[string]int64{"3600s": 600}, look())
	o = reset("-limit", "10000")
	o.requireFine(t)
	require.Contains(t, o.stdout, "Reset. The key had:\n\nkey        k\n\ncounter    3600s\ncharged    600, spent or held by a process\nremaining  9,400 of 10,000\nreset      ")
	require.Empty(t, look())
	require.EqualValues(t, 7, chargedOf(t, invoke(t.Context(), append([]string{"inspect", "-format", "json", "-name", "n"}, args...)...)), "that of another limit")

	charge(t, server, "", "k", 9_999) // which the old window would not have had
	client := server.Client()
	store := redisstore.New(client, redisstore.WithPrefix("p*:"))
	end := time.Now().Add(30 * time.Minute).UnixMilli()
	daily := backend.Limit{Tokens: 10, Window: 24 * time.Hour, Calendar: backend.Calendar{Period: backend.Day}}
	_, err := store.Sync(t.Context(), backend.Statement{Key: "k", Limit: daily, Begin: end - 24*3_600_000, End: end, Need: 10})
	require.NoError(t, err)
	_, err = store.Sync(t.Context(), backend.Statement{Key: "k", Limit: backend.Limit{Tokens: 10, Window: time.Minute}.Rolling(), Need: 8})
	require.NoError(t, err)
	require.NoError(t, client.MSet(t.Context(), "p*:{k}:60s", 5, "p*:{k}:60s:exp", time.Now().Unix()+50).Err()) // as another program opens a window
	all := map[string]int64{"3600s": 9_999, "day@UTC": 10, "60s:roll": 8, "60s": 5}
	require.Equal(t, all, look())
	for _, counter := range []string{"60s:roll", "day@UTC"} {
		reset("-counter", counter).requireFine(t)
		delete(all, counter)
		require.Equal(t, all, look())
	}
	reset().requireFine(t)
	require.Empty(t, look())

	server.Kill()
	o = reset()
	require.Equal(t, exitFailure, o.status)
	o.requireOneLine(t)
}

// charge spends n tokens of an hour's 10,000 and hands back what else was fetched.
func charge(t *testing.T, s *redistest.Server, name, key string, n int64, opts ...reservoir.Option) {
	t.Helper()
	client := s.Client()
	defer client.Close()
	l, err := reservoir.New(redisstore.New(client, redisstore.WithPrefix("p*:")), reservoir.PerHour(10_000), append(opts, reservoir.WithName(name), reservoir.WithFetchTimeout(10*time.Second))...)
	require.NoError(t, err)
	r, err := l.AllowN(t.Context(), key, n)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.NoError(t, l.Close(t.Context()))
}

func chargedOf(t *testing.T, o outcome) int64 {
	t.Helper()
	o.requireFine(t)
	var i inspection
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &i))
	require.Len(t, i.Counters, 1)
	return i.Counters[0].Charged
}
