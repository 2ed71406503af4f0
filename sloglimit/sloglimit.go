// Package sloglimit logs what happens to a limiter's store, through log/slog.
//
//	limiter, err := reservoir.New(store, limit,
//		reservoir.WithHooks(sloglimit.Hooks(slog.Default())))
//
// What is logged:
//
//	level  message                              attributes
//	WARN   reservoir: store away                shard, class, error
//	INFO   reservoir: store back                shard, after
//	WARN   reservoir: store rejects every call  shard, class, error
//	INFO   reservoir: store accepts calls       shard, after
//	WARN   reservoir: two limits on one key     op, cause, duration, error
//	DEBUG  reservoir: store call failed         op, cause, duration, class, error
//
// "Away" means that the breaker of a shard has opened: callers without stock now
// get the failure policy's answer at once. "Rejects every call" means that the shard
// answers and refuses to serve until an operator acts, because a password, a right or
// memory is missing. It is logged under every failure policy, under FailOpen too, where
// no request fails. The attribute shard is missing where the store has no shards; cause
// is there for the op "sync" only; after is how long the shard was away, or rejected
// calls.
//
// "Two limits on one key" means [reservoir.ErrConflict]: a limit has met the open window
// of another limit. It is logged at most once a minute.
//
// No line is written per request: "away" takes five failures in a row, and "back" a
// probe that succeeds. While a shard is away it is probed ten times a second at most.
// Failed calls, at Debug, are as many as fail: before the breaker opens, and for as long
// as the store answers with errors.
//
// No line holds a key. The text of an error is the transport's or the server's. It may
// name an address, and holds no password or URL; see [backend.Error].
//
// To log and count at the same time, join several Hooks by [reservoir.JoinHooks].
package sloglimit

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir"
)

// Hooks returns hooks that log to logger. If logger is nil, they log to what
// [slog.Default] returns when a line is written. One Hooks serves one Limiter. To tell
// several limiters apart, give each a logger of its own, logger.With("limiter", "api").
// The hooks are safe for concurrent use.
func Hooks(logger *slog.Logger) reservoir.Hooks {
	l := &log{logger: logger, shards: map[string]trouble{}}
	return reservoir.Hooks{StoreCall: l.call, ShardState: l.state}
}

type log struct {
	logger *slog.Logger

	mu       sync.Mutex         // not held while a line is written
	shards   map[string]trouble // those that do not serve
	conflict time.Time          // when a conflict was last logged
}

// trouble is how a shard fails to serve, and since when.
type trouble struct {
	status status
	since  time.Time
}

type status uint8

const (
	unknown status = iota // not heard of yet, or it serves
	serving
	away
	rejecting
)

// every is how often a conflict, which each call for the key repeats, is logged.
const every = time.Minute

// state logs that a shard has stopped serving, or serves again.
func (l *log) state(s reservoir.ShardState) {
	now := statusOf(s)
	was := l.change(s.Shard, now)
	if was.status == now {
		return
	}
	var shard []slog.Attr
	if s.Shard != "" {
		shard = []slog.Attr{slog.String("shard", s.Shard)}
	}
	l.over(was, now, slices.Clip(shard))
	switch now {
	case away:
		l.write(slog.LevelWarn, "reservoir: store away", append(shard, failure(s.Err)...))
	case rejecting:
		l.write(slog.LevelWarn, "reservoir: store rejects every call", append(shard, failure(s.Err)...))
	}
}

// over logs the end of what was. A shard that is away says nothing of rejecting.
func (l *log) over(was trouble, now status, attrs []slog.Attr) {
	if was.status != unknown {
		attrs = append(attrs, slog.Duration("after", time.Since(was.since)))
	}
	switch {
	case was.status == rejecting && now == serving:
		l.write(slog.LevelInfo, "reservoir: store accepts calls", attrs)
	case was.status == away || now == serving:
		l.write(slog.LevelInfo, "reservoir: store back", attrs)
	}
}

func statusOf(s reservoir.ShardState) status {
	switch {
	case s.Away:
		return away
	case s.Rejecting:
		return rejecting
	}
	return serving
}

// change remembers how a shard serves now, and returns what was known of it.
func (l *log) change(shard string, now status) (was trouble) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was = l.shards[shard]
	switch now {
	case was.status:
	case serving:
		delete(l.shards, shard)
	default:
		l.shards[shard] = trouble{status: now, since: time.Now()}
	}
	return was
}

// call logs a store call that failed. It costs nothing if nobody wants to know.
func (l *log) call(c reservoir.StoreCall) {
	level, message := slog.LevelDebug, "reservoir: store call failed"
	if c.Err == nil {
		return
	}
	if errors.Is(c.Err, reservoir.ErrConflict) {
		level, message = slog.LevelWarn, "reservoir: two limits on one key"
	}
	if !l.to().Enabled(context.Background(), level) || level == slog.LevelWarn && !l.mayRepeat() {
		return
	}
	attrs := []slog.Attr{slog.String("op", c.Op)}
	if c.Cause != "" {
		attrs = append(attrs, slog.String("cause", c.Cause))
	}
	attrs = append(attrs, slog.Duration("duration", c.Duration))
	l.write(level, message, append(attrs, failure(c.Err)...))
}

// mayRepeat reports whether a conflict was not logged of late, and notes that it is now.
func (l *log) mayRepeat() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.conflict.IsZero() && time.Since(l.conflict) < every {
		return false
	}
	l.conflict = time.Now()
	return true
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
