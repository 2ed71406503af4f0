package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// What must come back from nowhere: a password that the client logs in with, and
// keys that look like secrets, as a session's or a token's would.
const (
	canaryPassword = "Canary-p4ssw0rd"
	canaryKey      = "Canary-token:eyJhbGciOi}\n{x"
)

// ears hear all that a program could print of a limiter.
type ears struct {
	t  *testing.T
	mu sync.Mutex
	b  bytes.Buffer
}

func (e *ears) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.b.Write(p)
}

// Printf makes ears go-redis' logger.
func (e *ears) Printf(_ context.Context, format string, v ...any) { fmt.Fprintf(e, format+"\n", v...) }

// hear writes down each way to print the values, and the errors that they wrap.
func (e *ears) hear(values ...any) {
	for _, v := range values {
		fmt.Fprintf(e, "%v\n%+v\n%#v\n", v, v, v)
		if err, ok := v.(error); ok {
			for err = errors.Unwrap(err); err != nil; err = errors.Unwrap(err) {
				fmt.Fprintf(e, "%v\n%#v\n", err, err)
			}
		}
	}
}

// silent expects that no canary was heard, and that something was.
func (e *ears) silent() {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	heard := e.b.String()
	require.NotEmpty(e.t, heard)
	for line := range strings.Lines(heard) {
		require.NotContains(e.t, strings.ToLower(line), "canary")
		require.NotContains(e.t, line, "eyJhbGciOi")
	}
}

// listen hears the library's and go-redis' logs too, until the test ends.
func listen(t *testing.T) *ears {
	e := &ears{t: t}
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(e, nil)))
	redis.SetLogger(e)
	t.Cleanup(func() {
		slog.SetDefault(before)
		redis.SetLogger(quiet{})
	})
	return e
}

// quiet is a logger for the tests that follow: go-redis tells nobody its first.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// hooks hear what a limiter tells its hooks.
func (e *ears) hooks() reservoir.Hooks {
	return reservoir.Hooks{
		StoreCall:  func(c reservoir.StoreCall) { e.hear(c, c.Err) },
		ShardState: func(s reservoir.ShardState) { e.hear(s, s.Err) },
	}
}

// use makes every call of a store, and of a limiter over it.
func (e *ears) use(s *redisstore.Store) {
	ctx, cancel := context.WithTimeout(e.t.Context(), 300*time.Millisecond)
	defer cancel()
	for _, err := range allCalls(ctx, s, canaryKey) {
		e.hear(err)
	}
	_, err := s.Inspect(ctx, canaryKey)
	e.hear(err, s.Verify(ctx))
	l, err := reservoir.New(s, reservoir.PerMinute(100), reservoir.WithHooks(e.hooks()), reservoir.WithFetchTimeout(50*time.Millisecond))
	require.NoError(e.t, err)
	for range 7 { // the breaker opens
		r, err := l.Allow(ctx, canaryKey)
		e.hear(r, err)
	}
	_, err = l.Wait(ctx, canaryKey)
	e.hear(err)
	_, err = l.Check(ctx, canaryKey)
	e.hear(err, l.Refund(ctx, reservoir.Result{}))
	_, err = l.AllowN(ctx, canaryKey, 101)
	e.hear(err)
	closing, stop := context.WithTimeout(e.t.Context(), 50*time.Millisecond)
	defer stop()
	e.hear(l.Close(closing), l.Stats())
}

// useUntil uses the store once, and again until the text is heard: on a busy machine
// a round may run out of its time before it comes to the fault.
func (e *ears) useUntil(s *redisstore.Store, text string) {
	e.t.Helper()
	end := time.Now().Add(5 * time.Second)
	for e.use(s); !e.heard(text) && time.Now().Before(end); {
		e.use(s)
	}
}

func (e *ears) heard(text string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Contains(e.b.String(), text)
}

// TestNoCanary takes every path to an error that there is a server for.
func TestNoCanary(t *testing.T) {
	server, secure := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"), startTLS(t, serverName)
	old := redistest.Start(t, "--rename-command", "evalsha", "", "--rename-command", "evalsha_ro", "", "--rename-command", "multi", "")
	admin := server.Client()
	server.SetUser("user good on >" + canaryPassword + " ~* +@all")
	server.SetUser("user poor on >" + canaryPassword + " ~* +info")
	server.SetUser("user blind on >" + canaryPassword + " ~other +@all")
	server.SetUser("user half on >" + canaryPassword + " ~* +@all -set -get")
	proxy := redistest.NewProxy(t, server.Addr())
	fast := func(name, password string) func(*redis.Options) {
		return func(o *redis.Options) {
			o.Username, o.Password, o.DialerRetries, o.MaxRetries = name, password, 1, -1
			o.DialTimeout, o.ReadTimeout = 100*time.Millisecond, 100*time.Millisecond
		}
	}
	via := func(o *redis.Options) { o.Addr = proxy.Addr() }
	nothing := func() {}
	for _, row := range []struct {
		what  string
		fault func()
		opts  []func(*redis.Options)
		store []redisstore.Option
		seen  string // what shows that the fault has happened
	}{
		{"nothing is wrong but the policy", nothing, []func(*redis.Options){fast("good", canaryPassword)}, nil, "noeviction"},
		{"a wrong password", nothing, []func(*redis.Options){fast("good", canaryPassword+"x")}, nil, "WRONGPASS"},
		{"no right to commands", nothing, []func(*redis.Options){fast("poor", canaryPassword)}, nil, "NOPERM"},
		{"no right to the key", nothing, []func(*redis.Options){fast("blind", canaryPassword)}, nil, "key"},
		{"no right inside the script", nothing, []func(*redis.Options){fast("half", canaryPassword)}, nil, " run"},
		{"no replica", nothing, []func(*redis.Options){fast("good", canaryPassword)}, []redisstore.Option{redisstore.WithReplicaAck(1, 5*time.Millisecond)}, "0 of 1"},
		{"garbage in the key", func() {
			tag := "{Canary-token:eyJhbGciOi%7D%0A%7Bx}:60s"
			require.NoError(t, admin.MSet(t.Context(), tag, "Canary", tag+":exp", "Canary").Err())
		}, []func(*redis.Options){fast("good", canaryPassword)}, nil, "BADSTATE"},
		{"lost replies", func() { proxy.SwallowReply("evalsha", 1000) }, []func(*redis.Options){fast("good", canaryPassword), via}, nil, "EOF"},
		{"time-outs", func() { proxy.SwallowReply("", 0); proxy.Hold(true) }, []func(*redis.Options){fast("good", canaryPassword), via}, nil, "deadline"},
		{"a closed door", func() { proxy.Hold(false); proxy.Refuse(true); proxy.Cut() }, []func(*redis.Options){fast("good", canaryPassword), via}, nil, "refused"},
		{"another's name", nothing, []func(*redis.Options){fast("good", canaryPassword), over(secure.Config("other.test")), func(o *redis.Options) { o.Addr = secure.Addr() }}, nil, "x509"},
		{"plain to TLS", nothing, []func(*redis.Options){fast("good", canaryPassword), func(o *redis.Options) { o.Addr = secure.Addr() }}, nil, "EOF"},
		{"no such host", nothing, []func(*redis.Options){fast("good", canaryPassword), func(o *redis.Options) { o.Addr = "no-such-host.invalid:1" }}, nil, "lookup"},
		{"unknown commands", nothing, []func(*redis.Options){func(o *redis.Options) { o.Addr = old.Addr() }}, nil, "unknown command"},
		{"a prefix that is none", nothing, []func(*redis.Options){fast("good", canaryPassword)}, []redisstore.Option{redisstore.WithPrefix("{Canary}")}, "prefix"},
	} {
		t.Run(row.what, func(t *testing.T) {
			row.fault()
			e := listen(t)
			s := redisstore.New(server.Client(row.opts...), row.store...)
			if err := s.Err(); err != nil {
				e.hear(err)
			} else {
				e.useUntil(s, row.seen)
			}
			require.True(t, e.heard(row.seen), "the fault was there")
			e.silent()
		})
	}
	require.Positive(t, proxy.Swallowed())
	require.Positive(t, proxy.Held())
}

// TestNoCanaryFromRequests: what is refused before it is sent.
func TestNoCanaryFromRequests(t *testing.T) {
	e := &ears{t: t}
	s := redisstore.New(redistest.Start(t).Client())
	long := strings.Repeat(canaryKey, 400)
	for _, err := range allCalls(t.Context(), s, long) {
		require.ErrorIs(t, err, backend.ErrKey)
		e.hear(err)
	}
	_, err := s.Sync(t.Context(), backend.Statement{Key: canaryKey, Client: long, Life: 1, Seq: 1, Limit: limit10})
	require.Error(t, err)
	e.hear(err)
	_, err = charge(t.Context(), s, canaryKey, limit10, -11)
	require.Error(t, err)
	e.hear(err)
	e.silent()
}
