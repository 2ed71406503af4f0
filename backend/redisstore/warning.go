package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Warning is a server that may throw live windows away: it evicts keys when its
// memory is full. A key whose window is gone gets another full limit. It names no
// server, user or key.
type Warning struct {
	Policy    string // maxmemory-policy, such as "allkeys-lru"
	MaxMemory int64  // bytes
}

// String says what is wrong and what would be right.
func (w Warning) String() string {
	return fmt.Sprintf("redis may evict live windows, which gives their keys a second limit: maxmemory is %d bytes with maxmemory-policy %s; use noeviction",
		w.MaxMemory, w.Policy)
}

// WithWarnings sets who is told that the server may throw away live windows: at
// most once per store, from a goroutine of its own that starts after the first
// call that succeeded and ends within a few seconds. The default is slog.Warn.
// With nil nobody is, and the server is not asked.
//
// It is asked by INFO memory, on every master of a cluster. Where the user has no
// right to INFO there is no warning and no error.
func WithWarnings(warn func(Warning)) Option {
	return func(s *Store) { s.warn = warn }
}

func logWarning(w Warning) {
	slog.Warn("reservoir: "+w.String(), "maxmemory_policy", w.Policy, "maxmemory", w.MaxMemory)
}

// lookTime bounds the look at a server's memory policy.
const lookTime = 2 * time.Second

// look asks one server how it is set up. A hook of go-redis may panic here: callers
// meet the same one.
func (s *Store) look(server redis.Cmdable) {
	defer func() { _ = recover() }()
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	text, err := server.Info(ctx, "memory").Result()
	if w, evicts := evicting(text); err == nil && evicts && s.warned.CompareAndSwap(false, true) {
		s.warn(w)
	}
}

// evicting reads INFO memory and reports whether the server may evict keys.
func evicting(info string) (w Warning, evicts bool) {
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "maxmemory":
			w.MaxMemory, _ = strconv.ParseInt(value, 10, 64)
		case "maxmemory_policy":
			w.Policy = value
		}
	}
	return w, w.MaxMemory > 0 && w.Policy != "" && w.Policy != "noeviction"
}
