// Package sloglimit logs what happens to a limiter's store, through log/slog.
//
//	limiter, err := reservoir.New(store, limit,
//		reservoir.WithHooks(sloglimit.Hooks(slog.Default())))
//
// What is logged:
//
//	level  message                         attributes
//	WARN   reservoir: store away           shard, class, error
//	INFO   reservoir: store back           shard, after
//	DEBUG  reservoir: store call failed    op, cause, duration, class, error
//
// "Away" means that the breaker of a shard has opened: callers without stock now
// get the failure policy's answer at once. The attribute shard is missing where
// the store has no shards; cause is there for the op "sync" only; after is how
// long the shard was away.
//
// No line is written per request: a change of state takes five failures in a row
// or a probe that succeeds, and while a shard is away it is probed ten times a
// second at most. Failed calls, at Debug, are as many as fail: before the breaker
// opens, and for as long as the store answers with errors.
//
// No line holds a key. An error's text is the transport's or the server's, which
// may name an address, and holds no password or URL; see backend.Error.
//
// To log and count at the same time, put several Hooks together by
// reservoir.JoinHooks.
package sloglimit

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir"
)

// Hooks returns hooks that log to logger, or to slog's default logger as it is at
// the time if logger is nil. One Hooks serves one Limiter: to tell several apart,
// give each a logger of its own, logger.With("limiter", "api").
func Hooks(logger *slog.Logger) reservoir.Hooks {
	l := &log{logger: logger, since: map[string]time.Time{}}
	return reservoir.Hooks{StoreCall: l.call, ShardState: l.state}
}

type log struct {
	logger *slog.Logger

	mu    sync.Mutex           // not held while a line is written
	since map[string]time.Time // when each shard that is away went away
}

// state logs that a shard's breaker has opened or closed.
func (l *log) state(s reservoir.ShardState) {
	var attrs []slog.Attr
	if s.Shard != "" {
		attrs = append(attrs, slog.String("shard", s.Shard))
	}
	after, known := l.note(s)
	if s.Away {
		l.write(slog.LevelWarn, "reservoir: store away", append(attrs, failure(s.Err)...))
		return
	}
	if known {
		attrs = append(attrs, slog.Duration("after", after))
	}
	l.write(slog.LevelInfo, "reservoir: store back", attrs)
}

// note remembers since when a shard is away, and tells how long that was once it
// is back.
func (l *log) note(s reservoir.ShardState) (after time.Duration, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.Away {
		l.since[s.Shard] = time.Now()
		return 0, false
	}
	since, known := l.since[s.Shard]
	delete(l.since, s.Shard)
	return time.Since(since), known
}

// call logs a store call that failed. It costs nothing if nobody wants to know.
func (l *log) call(c reservoir.StoreCall) {
	if c.Err == nil || !l.to().Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	attrs := []slog.Attr{slog.String("op", c.Op)}
	if c.Cause != "" {
		attrs = append(attrs, slog.String("cause", c.Cause))
	}
	attrs = append(attrs, slog.Duration("duration", c.Duration))
	l.write(slog.LevelDebug, "reservoir: store call failed", append(attrs, failure(c.Err)...))
}

// failure describes err by its class and its cause; op is said elsewhere.
func failure(err error) []slog.Attr {
	var f *reservoir.StoreError
	switch {
	case errors.As(err, &f):
		return []slog.Attr{slog.String("class", f.Class.String()), slog.Any("error", f.Err)}
	case err != nil:
		return []slog.Attr{slog.Any("error", err)}
	}
	return nil
}

func (l *log) write(level slog.Level, message string, attrs []slog.Attr) {
	l.to().LogAttrs(context.Background(), level, message, attrs...)
}

func (l *log) to() *slog.Logger {
	if l.logger == nil {
		return slog.Default()
	}
	return l.logger
}
