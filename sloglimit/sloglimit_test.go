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

// stricken is a store that turns every statement away while it is down.
type stricken struct {
	backend.Store
	down atomic.Bool
}

func (s *stricken) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	if s.down.Load() {
		return backend.SyncReply{}, &backend.Error{Op: "sync", Class: backend.Unavailable, Err: errors.New("connection refused")}
	}
	return s.Store.Sync(ctx, r)
}

const secret = "user:4111-1111-1111-1111"

// outage runs a limiter on one shard through an outage and a recovery, and
// returns the lines that were logged.
func outage(t *testing.T, level slog.Level) (lines []map[string]any) {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		store := &stricken{Store: memstore.New()}
		shards, err := sharding.New(map[string]backend.Store{"eu-1": store})
		require.NoError(t, err)
		logger := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: level}))
		l, err := reservoir.New(shards, reservoir.PerMinute(100), reservoir.WithHooks(sloglimit.Hooks(logger)))
		require.NoError(t, err)
		store.down.Store(true)
		for range 5 {
			_, err := l.Allow(t.Context(), secret)
			require.Error(t, err)
		}
		time.Sleep(time.Minute)
		store.down.Store(false)
		_, err = l.Allow(t.Context(), secret) // sends a probe
		require.Error(t, err)
		synctest.Wait()
		_, err = l.Allow(t.Context(), secret)
		require.NoError(t, err)
		require.NoError(t, l.Close(t.Context()))
	})
	assert.NotContains(t, out.String(), secret)
	assert.NotContains(t, out.String(), "4111")
	for dec := json.NewDecoder(&out); dec.More(); {
		var line map[string]any
		require.NoError(t, dec.Decode(&line))
		delete(line, "time")
		lines = append(lines, line)
	}
	return lines
}

func TestAnOutageIsTwoLines(t *testing.T) {
	assert.Equal(t, []map[string]any{
		{"level": "WARN", "msg": "reservoir: store away", "shard": "eu-1", "class": "unavailable", "error": `shard "eu-1": connection refused`},
		{"level": "INFO", "msg": "reservoir: store back", "shard": "eu-1", "after": float64(time.Minute)},
	}, outage(t, slog.LevelInfo))
}

func TestFailedCallsAreDebug(t *testing.T) {
	var failed int
	for _, line := range outage(t, slog.LevelDebug) {
		if line["level"] != "DEBUG" {
			continue
		}
		failed++
		assert.Equal(t, map[string]any{"level": "DEBUG", "msg": "reservoir: store call failed", "op": "sync", "cause": "wait",
			"duration": float64(0), "class": "unavailable", "error": `shard "eu-1": connection refused`}, line)
	}
	assert.Equal(t, 5, failed)
}

// Shards do not mix, one that was not known to be away has no duration, and an
// error of any other kind is logged as it is.
func TestStates(t *testing.T) {
	var out bytes.Buffer
	h := sloglimit.Hooks(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: timeless})))
	h.ShardState(reservoir.ShardState{Shard: "a", Away: true, Err: errors.New("odd")})
	h.ShardState(reservoir.ShardState{Shard: "b"})
	h.ShardState(reservoir.ShardState{})
	h.ShardState(reservoir.ShardState{Shard: "a"})
	h.ShardState(reservoir.ShardState{Shard: "a"})            // that it was away before counts no more
	h.StoreCall(reservoir.StoreCall{Op: "take", Err: io.EOF}) // below the level
	assert.Equal(t, `level=WARN msg="reservoir: store away" shard=a error=odd
level=INFO msg="reservoir: store back" shard=b
level=INFO msg="reservoir: store back"
level=INFO msg="reservoir: store back" shard=a after=0s
level=INFO msg="reservoir: store back" shard=a
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
