package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// Warning reports that a server may evict open windows when its memory is full. A key
// whose window is evicted gets a second full limit. The Warning names no server, user
// or key.
type Warning struct {
	Policy    string // maxmemory-policy, such as "allkeys-lru"
	MaxMemory int64  // bytes
}

// String names the problem and the setting to use instead.
func (w Warning) String() string {
	return fmt.Sprintf("redis may evict live windows, which gives their keys a second limit: maxmemory is %d bytes with maxmemory-policy %s; use noeviction",
		w.MaxMemory, w.Policy)
}

// WithWarnings sets the function to call if the server may evict open windows. A store
// calls it at most once, from a goroutine that starts after the first successful call and
// ends within a few seconds. The default logs with slog.Warn. With nil the store does
// not ask the server.
//
// The store asks by INFO memory, on every master of a cluster. If the user has no right
// to INFO, it reports no warning and no error.
func WithWarnings(warn func(Warning)) Option {
	return func(s *Store) { s.warn = warn }
}

func logWarning(w Warning) {
	slog.Warn("reservoir: "+w.String(), "maxmemory_policy", w.Policy, "maxmemory", w.MaxMemory)
}

// look asks one server for its memory policy.
func (s *Store) look(server redis.Cmdable) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTime)
	defer cancel()
	info := server.InfoMap(ctx, "memory")
	w := Warning{Policy: info.Item("Memory", "maxmemory_policy")}
	w.MaxMemory, _ = strconv.ParseInt(info.Item("Memory", "maxmemory"), 10, 64)
	if w.MaxMemory > 0 && w.Policy != "" && w.Policy != "noeviction" && s.warned.CompareAndSwap(false, true) {
		s.warn(w)
	}
}
