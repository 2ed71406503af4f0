package main

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// A key's window is a fresh one, whatever its length, and others' are as they were.
func TestReset(t *testing.T) {
	server := redistest.Start(t)
	args := []string{"-store", "redis://" + server.Addr(), "-prefix", "p*:", "k"}
	look := func() (i inspection) {
		o := invoke(t.Context(), append([]string{"inspect", "-format", "json"}, args...)...)
		o.requireFine(t)
		require.NoError(t, json.Unmarshal([]byte(o.stdout), &i))
		return i
	}
	reset := func(more ...string) outcome {
		return invoke(t.Context(), append(append([]string{"reset", "-window", "1h"}, more...), args...)...)
	}
	o := reset()
	o.requireFine(t)
	require.Contains(t, o.stdout, "none is open")
	require.Contains(t, o.stdout, "need -name")

	charge(t, server, "", "k", 600)
	charge(t, server, "n", "k", 7)
	was := look()
	require.EqualValues(t, 600, was.Charged)
	o = reset("-limit", "10000")
	o.requireFine(t)
	require.Contains(t, o.stdout, "A fresh window is open. The old one had 600 charged.\n\nkey        k\ncharged    0, spent or held by a process\nremaining  10,000 of 10,000\nreset      ")
	now := look()
	require.True(t, now.Open)
	require.Zero(t, now.Charged)
	require.NotEqual(t, was.ResetMS, now.ResetMS)
	require.EqualValues(t, 7, chargedOf(t, invoke(t.Context(), append([]string{"inspect", "-format", "json", "-name", "n"}, args...)...)), "that of another limit")

	charge(t, server, "", "k", 9_999) // which the old window would not have had
	client := server.Client()
	due := backend.Window(time.Now().Add(30 * time.Minute).Truncate(time.Second).UnixMilli())
	_, err := redisstore.New(client, redisstore.WithPrefix("p*:")).Take(t.Context(),
		backend.TakeRequest{Key: "monthly", Limit: backend.Limit(reservoir.PerHour(10)), End: due, Tokens: 10})
	require.NoError(t, err)
	args[len(args)-1] = "monthly"
	require.EqualValues(t, due, look().ResetMS)
	o = reset("-calendar", "-format", "json")
	o.requireFine(t)
	next := inspection{}
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &next))
	require.Zero(t, next.Charged)
	require.EqualValues(t, due-1, next.ResetMS, "it ends when the one before would have")

	end := strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10) // as another program opens a window
	require.NoError(t, client.MSet(t.Context(), "p*:{theirs}", 5, "p*:{theirs}:exp", end).Err())
	args[len(args)-1] = "theirs"
	require.EqualValues(t, 5, look().Charged)
	reset().requireFine(t)
	require.Zero(t, look().Charged)
	is := look()
	o = reset("-window", "1m")
	require.Equal(t, outcome{exitUsage, "", "reservoir: bad value for flag -window: the open window's length is 1h0m0s\n"}, o)
	require.Equal(t, is.ResetMS, look().ResetMS)
	charge(t, server, "", "theirs", 600) // of an hour's limit, as that window

	server.Kill()
	o = reset()
	require.Equal(t, exitFailure, o.status)
	o.requireOneLine(t)
}

// What a running process holds of the old window counts in no other.
func TestResetUnderLoad(t *testing.T) {
	server := redistest.Start(t)
	store := "redis://" + server.Addr()
	ended := make(chan outcome)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		ended <- invoke(ctx, append(strings.Fields("load -key k -limit 20000 -window 10s -rate 20000 -duration 1h -n 2 -format json -store"), store)...)
	}()
	spentAll := func() bool { // by requests, and not only taken by the process
		is := contents(t, server, "k")
		return is.Used == 20_000 && is.Idle == 0
	}
	eventually(t, "the limit is used up", spentAll)
	o := invoke(t.Context(), "reset", "-store", store, "-window", "10s", "k")
	o.requireFine(t)
	eventually(t, "a probe finds the fresh window, which is used up too", spentAll)
	stop()
	r := (<-ended).report(t)
	requireBalance(t, r)
	sums := spent(r)
	require.GreaterOrEqual(t, len(sums), 2)
	requireWithin(t, 20_000, sums)
	require.Greater(t, r.Allowed, int64(10_000), "after the reset there was more")
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
	return i.Charged
}
