// Package sloglimit logs the failures and recoveries of a limiter's store, with log/slog.
//
//	limiter, err := reservoir.New(store, limit,
//		reservoir.WithHooks(sloglimit.Hooks(slog.Default())))
//
// It logs these messages:
//
//	level  message                              attributes
//	WARN   reservoir: store away                shard, class, error
//	INFO   reservoir: store back                shard, after
//	WARN   reservoir: store rejects every call  shard, class, error
//	INFO   reservoir: store accepts calls       shard, after
//	WARN   reservoir: two limits on one key     op, cause, duration, error
//	DEBUG  reservoir: store call failed         op, cause, duration, class, error
//
// "Away" means that the circuit breaker of a shard has opened: callers without stock now
// get the failure policy's answer at once. "Rejects every call" means that the shard
// answers but refuses to serve until an operator acts, because a password, a right or
// memory is missing. It is logged under every failure policy, even under FailOpen, where
// no request fails. The attribute shard is absent if the store has no shards, and cause
// is present only for the op "sync". The attribute after is how long the shard was away
// or rejected calls.
//
// "Two limits on one key" means [reservoir.ErrConflict]: a limit has met the open window
// of another limit. It is logged at most once a minute.
//
// No line is written per request: "away" takes five failures in a row, and "back" a
// successful probe. A shard that is away is probed at most ten times a second. At Debug,
// each failed call writes a line: until the breaker opens, and for as long as the store
// answers with errors.
//
// No line holds a key. The text of an error comes from the transport or the server. It
// may name an address, and holds no password or URL; see [backend.Error].
//
// To log and count at the same time, join several Hooks with [reservoir.JoinHooks].
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

// Hooks returns hooks that log to logger or, if logger is nil, to the [slog.Default] at
// the time of writing. Use the hooks for one Limiter only. To distinguish several
// limiters, give each a logger of its own, logger.With("limiter", "api"). The hooks are
// safe for concurrent use.
func Hooks(logger *slog.Logger) reservoir.Hooks {
	l := &log{logger: logger, shards: map[string]trouble{}}
	return reservoir.Hooks{StoreCall: l.call, ShardState: l.state}
}

type log struct {
	logger *slog.Logger

	mu       sync.Mutex         // not held while a line is written
	shards   map[string]trouble // the shards that do not serve
	conflict time.Time          // when a conflict was last logged
}

// trouble is the status of a shard that does not serve, and the time when that began.
type trouble struct {
	status status
	since  time.Time
}

type status uint8

const (
	unknown status = iota // not reported yet, or serving
	serving
	away
	rejecting
)

// every is the least time between two logged conflicts. Each call for the key repeats one.
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

// over logs the end of was. While a shard is away, its state does not say if it rejects.
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

// change records the present status of a shard, and returns its last one.
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

// call logs a failed store call. It makes no attributes if the logger drops the line.
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

// mayRepeat reports whether the last logged conflict is old enough, and records a new one.
func (l *log) mayRepeat() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.conflict.IsZero() && time.Since(l.conflict) < every {
		return false
	}
	l.conflict = time.Now()
	return true
}

// failure describes err by its class and its cause, without op, which call logs.
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
