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
//	WARN   reservoir: no messages come          shard, class, error
//	INFO   reservoir: messages come again       shard, after
//	DEBUG  reservoir: store call failed         op, cause, duration, class, error
//
// "Away" means that the circuit breaker of a shard has opened: callers without stock now
// get the failure policy's answer at once. "Rejects every call" means that the shard
// answers but refuses to serve until an operator acts, because a password, a right or
// memory is missing. It is logged under every failure policy, even under WithFailOpen, where
// no request fails. The attribute shard is absent if the store has no shards, and cause
// is present only for the op "sync". The attribute after is how long the shard was away
// or rejected calls, a Duration: slog's JSONHandler writes nanoseconds.
//
// "No messages come" means that this process learns late what other processes want of it: see
// [reservoir.Hooks].Subscription. A right is missing, or the connection is cut.
//
// No line is written per request: "away" takes five failures in a row, and "back" a
// successful probe. A shard that is away is probed at most ten times a second. At Debug,
// each failed call writes a line: until the breaker opens, and for as long as the store
// answers with errors.
//
// No line holds a key. The text of an error comes from the transport or the server. It
// may name an address, and holds no password or URL; see [reservoir.StoreError].
//
// To log and count at the same time, use [reservoir.WithHooks] twice.
package sloglimit

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir"
)

// Hooks returns hooks that log to logger or, if logger is nil, to the [slog.Default] at
// the time of writing. Use the hooks for one Limiter only. To distinguish several
// limiters, give each a logger of its own, logger.With("limiter", "api"); each reports an outage of
// their store when its own calls fail. The hooks are safe for concurrent use.
func Hooks(logger *slog.Logger) reservoir.Hooks {
	l := &log{logger: logger, troubles: map[subject]trouble{}}
	return reservoir.Hooks{StoreCall: l.call, ShardState: l.state, Subscription: l.hearing}
}

type log struct {
	logger *slog.Logger

	mu       sync.Mutex // not held while a line is written
	troubles map[subject]trouble
}

// subject is a shard, by its name, or its messages.
type subject struct {
	shard    string
	messages bool
}

// trouble is why a shard does not serve, or its messages do not come, and since when; without a
// message all is well.
type trouble struct {
	message string
	since   time.Time
}

const (
	away      = "reservoir: store away"
	rejecting = "reservoir: store rejects every call"
	muted     = "reservoir: no messages come"
)

// state logs that a shard has stopped serving, or serves again. While a shard is away, its
// state does not say whether it rejects calls.
func (l *log) state(s reservoir.ShardState) {
	now := ""
	switch {
	case s.Away:
		now = away
	case s.Rejecting:
		now = rejecting
	}
	was := l.change(subject{shard: s.Shard}, now)
	if was.message == now && now != "" {
		return
	}
	if now == "" || was.message == away {
		over := "reservoir: store back"
		if was.message == rejecting {
			over = "reservoir: store accepts calls"
		}
		l.line(s.Shard, slog.LevelInfo, over, was.duration()...)
	}
	if now != "" {
		l.line(s.Shard, slog.LevelWarn, now, failure(s.Err)...)
	}
}

// hearing logs that messages of a shard have ceased or begun to come.
func (l *log) hearing(shard string, err error) {
	if err != nil {
		l.change(subject{shard, true}, muted)
		l.line(shard, slog.LevelWarn, muted, failure(err)...)
		return
	}
	was := l.change(subject{shard, true}, "")
	l.line(shard, slog.LevelInfo, "reservoir: messages come again", was.duration()...)
}

// line writes a line about a shard.
func (l *log) line(shard string, level slog.Level, message string, attrs ...slog.Attr) {
	logger := l.to()
	if shard != "" {
		logger = logger.With("shard", shard)
	}
	logger.LogAttrs(context.Background(), level, message, attrs...)
}

// duration is how long t has lasted, if it is known.
func (t trouble) duration() []slog.Attr {
	if t.message == "" {
		return nil
	}
	return []slog.Attr{slog.Duration("after", time.Since(t.since))}
}

// change records the present trouble of a subject, and returns its last one.
func (l *log) change(of subject, now string) (was trouble) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if was = l.troubles[of]; was.message != now {
		l.troubles[of] = trouble{now, time.Now()}
	}
	return was
}

// call logs a failed store call. It makes no attributes if the logger drops the line.
func (l *log) call(c reservoir.StoreCall) {
	if c.Err == nil {
		return
	}
	logger := l.to()
	if !logger.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	attrs := []slog.Attr{slog.String("op", c.Op)}
	if c.Cause != "" {
		attrs = append(attrs, slog.String("cause", c.Cause))
	}
	attrs = append(attrs, slog.Duration("duration", c.Duration))
	logger.LogAttrs(context.Background(), slog.LevelDebug, "reservoir: store call failed", append(attrs, failure(c.Err)...)...)
}

// failure describes err by its class and its cause, without op, which call logs.
func failure(err error) []slog.Attr {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*reservoir.StoreError](err); ok {
		return []slog.Attr{slog.String("class", f.Class.String()), slog.Any("error", f.Err)}
	}
	return []slog.Attr{slog.Any("error", err)}
}

func (l *log) to() *slog.Logger {
	if l.logger == nil {
		return slog.Default()
	}
	return l.logger
}
