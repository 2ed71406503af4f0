package main

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestLoadOnRedis(t *testing.T) {
	server := redistest.Start(t)
	for _, flags := range []string{"-batch adaptive", "-batch direct", "-batch ladder", "-batch 100", "-n 7", "-keys 50 -zipf 1.2", "-prefix rl:"} {
		args := "load -limit 500 -window 100ms -duration 800ms -format json -store redis://" + server.Addr() + "/3 " + flags
		r := invoke(t.Context(), strings.Fields(args)...).report(t)
		requireBalance(t, r)
		requireFewErrors(t, r, flags)
		require.NotEmpty(t, r.Windows, flags)
		requireWithin(t, 500, spent(r), flags)
		require.Equal(t, server.Addr()+"/3", r.Store)
	}
	o := invoke(t.Context(), "load", "-requests", "1", "-store", "redis://"+server.Addr())
	o.requireFine(t)
	require.NotContains(t, o.stdout, "in this process")
}

func TestInspect(t *testing.T) {
	server := redistest.Start(t)
	store := "redis://" + server.Addr()
	r := invoke(t.Context(), strings.Fields("load -prefix p: -limit 5000 -window 1h -requests 1234 -format json -store "+store)...).report(t)

	o := invoke(t.Context(), "inspect", "-store", store, "-prefix", "p:", "-limit", "5000", "key-0")
	require.Equal(t, exitOK, o.status, o.stderr)
	require.Contains(t, o.stdout, "counter    3600s\ncharged    1,234, spent or held by a process\nremaining  3,766 of 5,000\nreset      ")
	require.Contains(t, o.stdout, ", in 59m")
	require.Regexp(t, `(?m)^client +share +charged +idle\n[A-Z0-9.]+ +100 % +1,234 +[0-9,]+\n\nclient: a limiter of a process; charged: `, o.stdout)
	require.NotContains(t, o.stdout, "httplimit")

	o = invoke(t.Context(), "inspect", "-store", store, "-prefix", "p:", "-limit", "5000", "-format", "json", "key-0")
	require.Equal(t, exitOK, o.status, o.stderr)
	var i inspection
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &i))
	require.Len(t, i.Counters, 1)
	c := i.Counters[0]
	require.Equal(t, "3600s", c.Counter)
	require.EqualValues(t, 1234, c.Charged)
	require.EqualValues(t, 3766, *c.Remaining)
	require.Equal(t, r.Windows[0].Reset, c.ResetMS)
	reset, err := time.Parse(time.RFC3339, c.Reset)
	require.NoError(t, err)
	require.Equal(t, c.ResetMS, reset.UnixMilli())
	require.Equal(t, []account{{c.Clients[0].Client, 1234, 0, 1}}, c.Clients)

	for _, args := range [][]string{{"key-1"}, {"-format", "json", "key-1"}, {"key-0"}} {
		o = invoke(t.Context(), append([]string{"inspect", "-store", store}, args...)...)
		require.Equal(t, exitOK, o.status, o.stderr)
		require.Regexp(t, `none is open|"counters": \[\]`, o.stdout)
	}
	direct := redisstore.New(server.Client())
	for _, l := range []backend.Limit{{Tokens: 10, Window: time.Hour}, {Tokens: 10, Window: time.Minute}} { // two counters
		_, err := direct.Sync(t.Context(), backend.Statement{Key: "d", Limit: l, Need: 1})
		require.NoError(t, err)
	}
	rolling := backend.Limit{Tokens: 10, Window: time.Minute}.Rolling()
	for _, q := range []backend.Statement{{Need: 3}, {Client: "a.1", Life: 1, Seq: 1, Want: 4, Need: 1, Hints: backend.Hints{Exact: true}}} {
		q.Key, q.Limit = "d", rolling
		_, err := direct.Sync(t.Context(), q)
		require.NoError(t, err)
	}
	o = invoke(t.Context(), "inspect", "-store", store, "d")
	require.Regexp(t, `(?s)counter    3600s\ncharged    1, .*no client +100 % +1 .*counter    60s\ncharged    1, .*counter    60s:roll\ncharged    7, .*client +share +charged +idle\na.1 +– +– +3\n`, o.stdout)
	o = invoke(t.Context(), "inspect", "-store", store, "-counter", "60s:roll", "d")
	require.Contains(t, o.stdout, "charged    7, ")
	require.NotContains(t, o.stdout, "charged    1, ")

	for _, key := range []string{"d", "held"} {
		_, err := direct.Sync(t.Context(), backend.Statement{Key: key, Limit: rolling, Hold: time.Hour})
		require.NoError(t, err)
		o = invoke(t.Context(), "inspect", "-store", store, "-counter", "60s:roll", "-limit", "10", key)
		require.Regexp(t, `(?s)counter    60s:roll\n.*remaining  0 of 10\n.*held       for (1h|59m).*: it grants nothing\n`, o.stdout)
		require.Equal(t, key == "d", strings.Contains(o.stdout, "reset  "), o.stdout)
	}
}

// inspect shows what Store.Verify says of the servers.
func TestInspectShowsFaults(t *testing.T) {
	server := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	server.SetUser("user u on >" + canary + " ~* +@all -info -hset")
	for login, want := range map[string]string{"": "allkeys-lru", "u:" + canary + "@": "could not be checked"} {
		o := invoke(t.Context(), "inspect", "-store", "redis://"+login+server.Addr(), "k")
		o.requireFine(t)
		require.Regexp(t, `(?m)^fault      `+server.Addr()+`: .*`+want, o.stdout)
		require.NotContains(t, o.stdout, canary)
		var i inspection
		o = invoke(t.Context(), "inspect", "-format", "json", "-store", "redis://"+login+server.Addr(), "k")
		require.NoError(t, json.Unmarshal([]byte(o.stdout), &i))
		require.NotEmpty(t, i.Faults)
	}
}

// A limit that has a name has its own window for a key, and no other key is taken for it:
// the name stands before the key as WithName has it.
func TestInspectOfANamedLimit(t *testing.T) {
	server := redistest.Start(t)
	address := "redis://" + server.Addr()
	const key = "user\x1f42"
	for name, n := range map[string]int64{"": 3, "per-second": 4, "per-second\x20": 5} {
		store := redisstore.New(server.Client())
		l, err := reservoir.New(store, reservoir.PerHour(100), reservoir.WithName(name))
		require.NoError(t, err)
		_, err = l.AllowN(t.Context(), key, n)
		require.NoError(t, err)
		require.NoError(t, l.Close(t.Context()))
	}
	for name, n := range map[string]string{"": "3", "per-second": "4", "per-second\x20": "5"} {
		o := invoke(t.Context(), "inspect", "-store", address, "-name", name, key)
		require.Equal(t, exitOK, o.status, o.stderr)
		require.Contains(t, o.stdout, "charged    "+n+", ")
		require.Equal(t, name != "", strings.Contains(o.stdout, "name       "+quoted(name)+"\n"))
		require.Contains(t, o.stdout, "key        \"user\\x1f42\"\n")
	}
	o := invoke(t.Context(), "inspect", "-store", address, "-name", "per-second", "-format", "json", key)
	var i inspection
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &i))
	require.Equal(t, "per-second", i.Name)
	require.Equal(t, key, i.Key)
	o = invoke(t.Context(), "inspect", "-store", address, "-name", "per-hour", key)
	require.Contains(t, o.stdout, "none is open")
	require.Contains(t, o.stdout, "httplimit's keys begin with user: or addr:")
	o = invoke(t.Context(), "inspect", "-store", address, "-name", "per-hour", "user:42")
	require.Contains(t, o.stdout, "none is open")
	require.NotContains(t, o.stdout, "httplimit")
}

func TestInspectQuotesWhatATerminalWouldObey(t *testing.T) {
	server := redistest.Start(t)
	key := "evil\x1b[2J"
	o := invoke(t.Context(), "load", "-key", key, "-window", "1h", "-requests", "1", "-store", "redis://"+server.Addr())
	require.Equal(t, exitOK, o.status, o.stderr)
	client := server.Client()
	head := client.HGet(t.Context(), "{evil%1B[2J}:3600s:own", "head").Val()
	window, _, _ := strings.Cut(head, " ")
	require.NoError(t, client.HSet(t.Context(), "{evil%1B[2J}:3600s:own", "x\x1b[2Jy", window+" 1 1 0").Err())
	o = invoke(t.Context(), "inspect", "-store", "redis://"+server.Addr(), key)
	require.Equal(t, exitOK, o.status, o.stderr)
	require.NotContains(t, o.stdout, "\x1b")
	require.Contains(t, o.stdout, `"x\x1b[2Jy"`)
}

func TestStoresThatDoNotServeKeepTheirPasswords(t *testing.T) {
	t.Parallel()
	server, hung := redistest.Start(t), redistest.Start(t)
	hung.Pause()
	login := "user:" + canary + "@"
	for name, store := range map[string]string{
		"wrong password": "redis://" + login + server.Addr(),
		"no TLS":         "rediss://" + login + server.Addr(),
		"no cluster":     "redis-cluster://" + login + server.Addr(),
		"hangs":          "redis://" + login + hung.Addr(),
		"nobody listens": "redis://" + login + "127.0.0.1:1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait
			for _, args := range []string{"load -duration 1h", "inspect k"} {
				line := strings.Fields(args)
				o := invoke(t.Context(), slices.Insert(line, 1, "-store", store)...)
				require.Equal(t, exitFailure, o.status, args)
				o.requireOneLine(t)
				require.Empty(t, o.stdout, "nothing was begun")
				require.NotContains(t, o.stderr, canary, args)
			}
		})
	}
}

// A store that is away for a while makes errors, which are in the report and no failure.
func TestSomeErrorsAreNoFailure(t *testing.T) {
	server := redistest.Start(t)
	ended := make(chan outcome)
	args := strings.Fields("load -batch direct -rate 2000 -requests 4000 -limit 1000000 -window 1h -format json -store redis://" + server.Addr())
	go func() { ended <- invoke(t.Context(), args...) }()
	eventually(t, "calls are made", func() bool { return server.Calls("evalsha") > 20 })
	server.Kill()
	time.AfterFunc(100*time.Millisecond, server.Restart)
	r := (<-ended).report(t)
	requireBalance(t, r)
	require.Positive(t, r.Errors)
	require.Positive(t, r.Allowed)
	require.NotEmpty(t, r.FirstError)
}

func TestStockThatCannotBeHandedBackIsAFailure(t *testing.T) {
	server := redistest.Start(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan outcome)
	args := strings.Fields("load -rate 1000 -workers 1 -keys 20 -batch 1000 -limit 100000 -window 1h -format json -store redis://" + server.Addr())
	go func() { ended <- invoke(ctx, args...) }()
	eventually(t, "there are batches in hand", func() bool { // of the one worker's keys: not all replies can have come too late
		for i := range 20 {
			if contents(t, server, "key-"+strconv.Itoa(i)).Used < 1000 {
				return false
			}
		}
		return true
	})
	server.Kill()
	stop()
	o := <-ended
	require.Equal(t, exitFailure, o.status)
	o.requireOneLine(t)
	require.Contains(t, o.stderr, "not all unused stock was returned")
	var r report
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &r), "the report is printed all the same")
	requireBalance(t, r)
	require.Positive(t, r.TokensExpired, "what could not be handed back")
}

// A client that has stated debt and then returned it.
func TestInspectAfterDebtIsReturned(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	defer client.Close()
	store := redisstore.New(client)
	q := backend.Statement{Key: "k", Client: "c", Life: 1, Limit: backend.Limit(reservoir.PerHour(100)), Want: 5, Need: 5}
	for _, change := range []int64{0, 95, -100} {
		q.Seq, q.Change = q.Seq+1, change
		r, err := store.Sync(t.Context(), q)
		require.NoError(t, err)
		q.Window, q.Mine, q.Used, q.Want, q.Need = r.Window, r.Mine, r.Used, 0, 0
	}
	var i inspection
	o := invoke(t.Context(), "inspect", "-format", "json", "-store", "redis://"+server.Addr(), "k")
	o.requireFine(t)
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &i))
	assert.Zero(t, i.Counters[0].Charged)
	assert.Zero(t, i.Counters[0].Direct)
	assert.Equal(t, []account{{"c", 0, 0, 0}}, i.Counters[0].Clients)
}
