package sloglimit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/sharding"
	"github.com/go-reservoir/reservoir/sloglimit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stricken is a store whose statements fail while it is given an error.
type stricken struct {
	backend.Store
	failure atomic.Pointer[backend.Error]
}

func (s *stricken) Sync(ctx context.Context, q backend.Statement) (backend.Reply, error) {
	if err := s.failure.Load(); err != nil {
		return backend.Reply{}, err
	}
	return s.Store.Sync(ctx, q)
}

var (
	refused = &backend.Error{Op: "sync", Class: backend.Unavailable, Err: errors.New("connection refused")}
	noRight = &backend.Error{Op: "sync", Class: backend.Rejected, Err: errors.New("WRONGPASS invalid username-password pair")}
)

const secret = "user:4111-1111-1111-1111"

// outage runs a limiter on one shard whose store fails with err for a minute, and
// returns the lines that were logged. The times in them are in whole minutes.
func outage(t *testing.T, level slog.Level, err error, opts ...reservoir.Option) (lines []map[string]any) {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		store := &stricken{Store: memstore.New()}
		shards, failed := sharding.New(map[string]backend.Store{"eu-1": store})
		require.NoError(t, failed)
		logger := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: level}))
		l, failed := reservoir.New(shards, reservoir.PerMinute(100), append(opts, reservoir.WithHooks(sloglimit.Hooks(logger)))...)
		require.NoError(t, failed)
		time.Sleep(time.Second)
		store.failure.Store(err.(*backend.Error))
		for range 7 {
			_, _ = l.Allow(t.Context(), secret)
		}
		time.Sleep(time.Minute)
		store.failure.Store(nil)
		time.Sleep(2 * time.Second) // a timer notices
		_, failed = l.Allow(t.Context(), secret)
		require.NoError(t, failed)
		require.NoError(t, l.Close(t.Context()))
	})
	assert.NotContains(t, out.String(), secret)
	assert.NotContains(t, out.String(), "4111-")
	for dec := json.NewDecoder(&out); dec.More(); {
		var line map[string]any
		require.NoError(t, dec.Decode(&line))
		delete(line, "time")
		if after, ok := line["after"].(float64); ok {
			line["after"] = time.Duration(after).Truncate(time.Minute).String()
		}
		lines = append(lines, line)
	}
	return lines
}

func TestAnOutageIsTwoLines(t *testing.T) {
	assert.Equal(t, []map[string]any{
		{"level": "WARN", "msg": "reservoir: store away", "shard": "eu-1", "class": "unavailable", "error": `shard "eu-1": connection refused`},
		{"level": "INFO", "msg": "reservoir: store back", "shard": "eu-1", "after": "1m0s"},
	}, outage(t, slog.LevelInfo, refused))
}

// An operator's fault is logged under FailOpen, too, where no request fails and nobody
// would notice.
func TestARejectionIsTwoLines(t *testing.T) {
	assert.Equal(t, []map[string]any{
		{"level": "WARN", "msg": "reservoir: store rejects every call", "shard": "eu-1", "class": "rejected",
			"error": `shard "eu-1": WRONGPASS invalid username-password pair`},
		{"level": "INFO", "msg": "reservoir: store accepts calls", "shard": "eu-1", "after": "1m0s"},
	}, outage(t, slog.LevelInfo, noRight, reservoir.WithFailOpen()))
}

func TestFailedCallsAreDebug(t *testing.T) {
	var failed int
	for _, line := range outage(t, slog.LevelDebug, refused) {
		if line["level"] != "DEBUG" || line["cause"] != "wait" {
			continue
		}
		failed++
		assert.Equal(t, map[string]any{"level": "DEBUG", "msg": "reservoir: store call failed", "op": "sync", "cause": "wait",
			"duration": float64(0), "class": "unavailable", "error": `shard "eu-1": connection refused`}, line)
	}
	assert.Equal(t, 5, failed)
}

// Shards do not mix, one that was not known to be away has no duration, a state that
// lasts is logged once, and an error of any other kind is logged as it is.
func TestStates(t *testing.T) {
	var out bytes.Buffer
	h := sloglimit.Hooks(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: timeless})))
	odd := errors.New("odd")
	for _, s := range []reservoir.ShardState{
		{Shard: "a", Away: true, Err: odd},
		{Shard: "b"},
		{},
		{Shard: "a"},
		{Shard: "a"}, // that it was away before counts no more
		{Shard: "c", Rejecting: true, Err: odd},
		{Shard: "c", Rejecting: true},
		{Shard: "c", Away: true, Err: odd},
		{Shard: "c", Rejecting: true, Err: odd}, // it answers again, and rejects
		{Shard: "c"},
	} {
		h.ShardState(s)
	}
	h.Subscription("c", refused)
	h.Subscription("c", nil)
	h.Subscription("", nil)
	h.StoreCall(reservoir.StoreCall{Op: "take", Err: io.EOF}) // below the level
	assert.Equal(t, `level=WARN msg="reservoir: store away" shard=a error=odd
level=INFO msg="reservoir: store back" shard=b
level=INFO msg="reservoir: store back"
level=INFO msg="reservoir: store back" shard=a after=0s
level=INFO msg="reservoir: store back" shard=a
level=WARN msg="reservoir: store rejects every call" shard=c error=odd
level=WARN msg="reservoir: store away" shard=c error=odd
level=INFO msg="reservoir: store back" shard=c after=0s
level=WARN msg="reservoir: store rejects every call" shard=c error=odd
level=INFO msg="reservoir: store accepts calls" shard=c after=0s
level=WARN msg="reservoir: no messages come" shard=c class=unavailable error="connection refused"
level=INFO msg="reservoir: messages come again" shard=c after=0s
level=INFO msg="reservoir: messages come again"
`, out.String())
}

// timeless takes out what differs from run to run.
func timeless(_ []string, a slog.Attr) slog.Attr {
	switch a.Key {
	case slog.TimeKey:
		return slog.Attr{}
	case "after":
		a.Value = slog.DurationValue(a.Value.Duration().Truncate(time.Hour))
	}
	return a
}

func TestDefaultLoggerIsLookedUpWhenLogging(t *testing.T) {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	h := sloglimit.Hooks(nil)
	var out bytes.Buffer
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	h.ShardState(reservoir.ShardState{Away: true})
	assert.Contains(t, out.String(), "store away")
}

func TestCallsThatNobodyReadsCostNothing(t *testing.T) {
	h := sloglimit.Hooks(slog.New(slog.NewTextHandler(io.Discard, nil)))
	failed := reservoir.StoreCall{Op: "sync", Err: &reservoir.StoreError{Err: io.EOF}}
	assert.Zero(t, testing.AllocsPerRun(100, func() { h.StoreCall(failed) }))
}

func ExampleHooks() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: timeless}))
	hooks := sloglimit.Hooks(logger.With("limiter", "api"))
	limiter, err := reservoir.New(memstore.New(), reservoir.PerMinute(1000), reservoir.WithHooks(hooks))
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())

	// When the store has not answered five times in a row, the limiter calls:
	hooks.ShardState(reservoir.ShardState{Away: true, Err: &reservoir.StoreError{
		Op: "sync", Class: backend.Unavailable, Err: errors.New("connection refused"),
	}})
	// and when it is back:
	hooks.ShardState(reservoir.ShardState{})
	// Output:
	// level=WARN msg="reservoir: store away" limiter=api class=unavailable error="connection refused"
	// level=INFO msg="reservoir: store back" limiter=api after=0s
}
