package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/placement"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// charge spends n tokens of an hour's 10,000 and hands back what else was fetched.
func charge(t *testing.T, s *redistest.Server, name, key string, n int64, opts ...reservoir.Option) {
	t.Helper()
	client := s.Client()
	defer client.Close()
	l, err := reservoir.New(redisstore.New(client, redisstore.WithPrefix("p*:")), reservoir.PerHour(10_000), append(opts, reservoir.WithName(name))...)
	require.NoError(t, err)
	r, err := l.AllowN(t.Context(), key, n)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.NoError(t, l.Close(t.Context()))
}

// The fullest keys come first, whatever else the server holds; KEYS is never sent.
func TestInspectTop(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	for i := range 30 {
		charge(t, server, "", fmt.Sprint("key ", i), int64(100+i), reservoir.WithDirect())
	}
	charge(t, server, "per-hour", "user\x1f42", 500)
	charge(t, server, "", "key 7", 1000)
	for i := range 3000 { // others' keys, some of which look like a limit's
		require.NoError(t, client.Set(t.Context(), fmt.Sprint("p*:{other ", i, "}"), 1<<40, 0).Err())
	}
	require.NoError(t, client.HSet(t.Context(), "p*:{hash}", "a", 1).Err())
	require.NoError(t, client.Set(t.Context(), "px:{key}", 1<<40, 0).Err(), "another prefix, if * were a pattern")
	require.NoError(t, client.Set(t.Context(), "px:{key}:exp", 1<<40, 0).Err())
	args := []string{"inspect", "-top", "3", "-store", "redis://" + server.Addr(), "-prefix", "p*:"}

	o := invoke(t.Context(), args...)
	o.requireFine(t)
	require.Regexp(t, `^key +charged +clients +reset\n`+
		`"key 7" +1,107 +1 +20\S+, in 59m\S+\n`+
		`per-hour "user\\x1f42" +500 +1 +\S+, in \S+\n`+
		`"key 29" +129 +0 +\S+, in \S+\n$`, o.stdout)
	o = invoke(t.Context(), append(args, "-limit", "10000", "-format", "json")...)
	var r ranking
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &r))
	require.Empty(t, r.NotRead)
	list := r.Keys
	require.Len(t, list, 3)
	require.Equal(t, "user\x1f42", list[1].Key)
	require.Equal(t, "per-hour", list[1].Name)
	require.EqualValues(t, 8893, *list[0].Remaining)
	require.Len(t, list[0].Clients, 1)
	require.InDelta(t, 1000.0/1107, list[0].Clients[0].Share, 1e-9)
	require.EqualValues(t, 107, list[0].Direct)
	require.Positive(t, server.Calls("scan"))
	require.Zero(t, server.Calls("keys"))

	o = invoke(t.Context(), append(args, "-limit", "10000")...)
	require.Regexp(t, `(?m)^"key 7" +1,107 of 10,000 +1 +20`, o.stdout)
	o = invoke(t.Context(), "inspect", "-top", "3", "-store", "redis://"+server.Addr(), "-prefix", "none:")
	require.Equal(t, "No open window was found.\n", o.stdout)
}

func TestInspectTopOfAClusterAndShards(t *testing.T) {
	c := redistest.StartCluster(t, 3, 0)
	other := redistest.Start(t)
	stores := []string{"-store", "redis-cluster://" + strings.Join(c.Addrs(), ","), "-store", "redis://" + other.Addr()}
	invoke(t.Context(), append(strings.Fields("load -keys 60 -limit 50 -window 1h -requests 2000"), stores...)...).requireFine(t)
	o := invoke(t.Context(), append([]string{"inspect", "-top", "100"}, stores...)...)
	o.requireFine(t)
	for i := range 60 {
		require.Regexp(t, fmt.Sprintf(`(?m)^key-%d +[1-9]`, i), o.stdout)
	}
	for _, node := range append(c.Nodes, other) {
		require.Positive(t, node.Calls("scan"))
	}
}

// -top looks at a bounded number of keys, and says how many it has left out.
func TestInspectTopIsBounded(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	const n = 3 * mostNames / 2
	require.NoError(t, client.Eval(t.Context(), `for i = 1, ARGV[1] do redis.call('SET', 'other:' .. i, 1) end return 1`, nil, n).Err())
	o := invoke(t.Context(), "inspect", "-top", "3", "-store", "redis://"+server.Addr())
	o.requireFine(t)
	require.Contains(t, o.stdout, "\nOnly about 100,000 of 150,000 keys were read.")
	require.EqualValues(t, mostNames/someNames, server.Calls("scan"))
	o = invoke(t.Context(), "inspect", "-top", "3", "-store", "redis://"+server.Addr(), "-format", "json")
	o.requireFine(t)
	require.JSONEq(t, `{"keys": [], "not_read": "Only about 100,000 of 150,000 keys were read."}`, o.stdout)

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan outcome)
	before := server.Calls("scan")
	go func() { ended <- invoke(ctx, "inspect", "-top", "3", "-store", "redis://"+server.Addr()) }()
	eventually(t, "it looks", func() bool { return server.Calls("scan") > before })
	cancel()
	o = <-ended
	o.requireFine(t)
	require.Contains(t, o.stdout, "\nOnly about ")
	o = invoke(ctx, "inspect", "-top", "3", "-store", "redis://"+server.Addr())
	require.Equal(t, outcome{exitFailure, "", "reservoir: stopped before any key was read\n"}, o, "nothing was read, and nothing is said of what is there")
}

// An interrupt while the keys are shown ends that, too.
func TestInspectTopStopsBetweenKeys(t *testing.T) {
	server := redistest.Start(t)
	for i := range 5 {
		charge(t, server, "", fmt.Sprint("key ", i), 10, reservoir.WithDirect())
	}
	ctx, cancel := context.WithCancel(t.Context())
	f := newFlags("inspect", "")
	l := newLook(f)
	require.NoError(t, l.Set("prefix", "p*:"))
	store, err := open([]string{"redis://" + server.Addr()}, l.prefix, 1)
	require.NoError(t, err)
	defer store.close()
	l.store, l.json = store, true
	store.parts[0].store = cancelling{store.parts[0].store.(inspector), cancel}
	var out bytes.Buffer
	require.NoError(t, l.fullest(ctx, 5, &out))
	var r ranking
	require.NoError(t, json.Unmarshal(out.Bytes(), &r))
	require.Len(t, r.Keys, 0)
	require.Equal(t, "Stopped early: further keys were not shown.", r.NotRead)
}

type inspector interface {
	backend.Store
	backend.Inspector
}

// cancelling is a store during whose first inspection the command is interrupted.
type cancelling struct {
	inspector
	cancel func()
}

func (c cancelling) Inspect(ctx context.Context, key string) (backend.Contents, error) {
	c.cancel()
	return c.inspector.Inspect(ctx, key)
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

// watching runs watch in this process and returns its lines.
func watching(t *testing.T, args ...string) (line func() string, stop func() outcome) {
	ctx, cancel := context.WithCancel(t.Context())
	in, out := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, append([]string{"watch"}, args...), out, io.Discard)
		_ = out.Close()
	}()
	lines := bufio.NewReader(in)
	t.Cleanup(func() { cancel(); _ = in.Close() })
	return func() string {
			s, err := lines.ReadString('\n')
			require.NoError(t, err)
			return s
		}, func() outcome {
			cancel()
			rest, err := io.ReadAll(lines)
			require.NoError(t, err)
			return outcome{status: <-ended, stdout: string(rest)}
		}
}

// In a pipe there is a line for each change, also where the store is away meanwhile.
func TestWatch(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	line, stop := watching(t, "key 1", "-store", "redis://"+server.Addr(), "-prefix", "p*:", "-name", "n", "-limit", "10000")
	require.Regexp(t, `^\d\d:\d\d:\d\d no window is open\n$`, line())
	charge(t, server, "n", "key 1", 600)
	require.Regexp(t, `^\S+ charged 600 of 10,000, [A-Z0-9]+\.1 100 %, reset 20\S+\n$`, line())
	looks := server.Calls("hgetall")
	eventually(t, "looks that find no change, and say nothing", func() bool { return server.Calls("hgetall") >= looks+2 })
	charge(t, server, "n", "key 1", 400, reservoir.WithDirect())
	require.Regexp(t, `^\S+ charged 1,000 of 10,000, [A-Z0-9]+\.1 60.0 %, direct calls 40.0 %, reset 20\S+\n$`, line())
	server.Kill()
	require.Regexp(t, `^\S+ no answer: .*refused`, line())
	require.Equal(t, outcome{}, stop(), "an unchanged key is not told again")

	server.Restart()
	line, stop = watching(t, "-format", "json", "-store", "redis://"+server.Addr(), "-prefix", "p*:", "k")
	var i inspection
	require.NoError(t, json.Unmarshal([]byte(line()), &i))
	require.False(t, i.Open)
	charge(t, server, "", "k", 5)
	require.NoError(t, json.Unmarshal([]byte(line()), &i))
	require.EqualValues(t, 5, i.Charged)
	server.Kill()
	var away struct{ Error string }
	require.NoError(t, json.Unmarshal([]byte(line()), &away))
	require.Contains(t, away.Error, "refused")
	require.Equal(t, exitOK, stop().status)
	o := invoke(t.Context(), "watch", "-store", "redis://"+server.Addr(), "k")
	require.Equal(t, exitFailure, o.status)
	o.requireOneLine(t)
}

// If one side speaks TLS and the other does not, the error says which.
func TestWrongTLSIsNamed(t *testing.T) {
	plain, secret := redistest.Start(t), redistest.StartTLS(t, "other.test")
	login := "u:" + canary + "@"
	refused := func(args, store, want string) {
		o := invoke(t.Context(), append(strings.Fields(args), store)...)
		require.Equal(t, exitFailure, o.status, args+store)
		o.requireOneLine(t)
		require.Contains(t, o.stderr, want, args)
		require.NotContains(t, o.stderr, canary)
	}
	const wantPlain, wantTLS = ": it speaks no TLS: want redis instead of rediss", ": it speaks TLS: want rediss instead of redis"
	refused("inspect k -store", "rediss://"+login+plain.Addr(), plain.Addr()+wantPlain)
	refused("inspect k -store", "rediss-cluster://"+login+plain.Addr(), plain.Addr()+wantPlain)
	for _, args := range []string{"load -store", "inspect k -store", "inspect -top 3 -store", "watch k -store", "tune -store"} {
		refused(args, "redis://"+login+secret.Addr(), secret.Addr()+wantTLS)
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

// Nobody who interrupts a command waits for a search for the cause of its failure.
func TestInterruptedLookSearchesForNoCause(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	store, err := open([]string{"redis://" + server.Addr().String()}, "", 1)
	require.NoError(t, err)
	defer store.close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, errFull, explain(ctx, errFull, store.parts[0]))
	require.NoError(t, server.(*net.TCPListener).SetDeadline(time.Now()))
	_, err = server.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "nobody called")
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

// The part of a URL at fault is named, and nothing of it repeated.
func TestFaultyPartsOfAURL(t *testing.T) {
	for url, want := range map[string]string{
		"http://h":                    "its scheme: want redis://",
		"redis:h":                     "its scheme",
		"redis://":                    "its host",
		"redis://u:%@h h":             "its host",
		"redis://u:%@h:port":          "its port",
		"redis-cluster://u:%@a:1,b:0": "its port",
		"redis://u:%zz%@h":            "its user and password",
		"redis://u@h":                 "its user and password: the user has no password",
		"redis://u:%@h/db":            "its path: want nothing or /number",
		"redis-sentinel://h:1":        "its path: want /name of the master",
	} {
		url = strings.ReplaceAll(url, "%@", canary+"@")
		for _, args := range []string{"load -store", "inspect k -store", "tune -store", "watch k -store"} {
			o := invoke(t.Context(), append(strings.Fields(args), url)...)
			require.Equal(t, exitUsage, o.status, url)
			o.requireOneLine(t)
			require.Contains(t, o.stderr, "bad value for flag -store: "+want, url)
			require.NotContains(t, o.stderr, canary, url)
		}
	}
}
