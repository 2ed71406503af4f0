// Package servers tries what docs/managed.md says of Redis and of servers that speak its
// protocol.
package servers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// On the redis-server in PATH everything works: `make test SERVER=DIR` tries another one.
func TestRedis(t *testing.T) {
	server := redistest.Start(t)
	require.Empty(t, tried(t, server.Addr(), func() {
		server.Kill()
		server.Restart()
	}))
}

// Miniredis takes TIME for a write, which a script of EVALSHA_RO may not do, so Check uses EVALSHA. Verify has nothing to
// say but that miniredis does not tell whether it evicts keys.
func TestMiniredis(t *testing.T) {
	server := miniredis.RunT(t)
	faults := tried(t, server.Addr(), func() {
		server.Close()
		require.NoError(t, server.Restart())
	})
	require.Len(t, faults, 1, faults)
	require.Contains(t, faults["verify"], redisstore.ErrUnverified.Error())
}

const (
	tokens   = 20
	patience = 30 * time.Second
)

// tried uses each part of a limiter on the server, and returns the first line of the error of
// each part that does not work.
func tried(t *testing.T, addr string, restart func()) map[string]string {
	logging.Disable()
	faults := map[string]string{}
	for part, try := range map[string]func(*testing.T, *redisstore.Store) error{
		"fixed": func(t *testing.T, s *redisstore.Store) error { return spend(t, s, reservoir.PerMinute(tokens)) },
		"rolling": func(t *testing.T, s *redisstore.Store) error {
			return spend(t, s, reservoir.PerMinute(tokens).Rolling())
		},
		"direct": func(t *testing.T, s *redisstore.Store) error {
			return spend(t, s, reservoir.PerMinute(tokens), reservoir.WithDirect())
		},
		"messages": messages,
		"recall":   func(t *testing.T, s *redisstore.Store) error { return recall(t, s, addr) },
		"restart":  func(t *testing.T, s *redisstore.Store) error { return restarted(t, s, restart) },
		"check":    check,
		"reset":    reset,
		"verify":   func(t *testing.T, s *redisstore.Store) error { return s.Verify(t.Context()) },
	} {
		options, err := redisstore.Options("redis://" + addr)
		require.NoError(t, err)
		options.DialTimeout, options.ReadTimeout, options.WriteTimeout = patience, patience, patience // the machine may be busy
		client := redis.NewUniversalClient(options)
		store := redisstore.New(client, redisstore.WithPrefix(part+":"))
		if err := try(t, store); err != nil {
			faults[part], _, _ = strings.Cut(err.Error(), "\n")
			faults[part], _, _ = strings.Cut(faults[part], ", with args")
		}
		require.NoError(t, store.Close())
		require.NoError(t, client.Close())
	}
	return faults
}

func limiter(t *testing.T, store *redisstore.Store, limit reservoir.Limit, opts ...reservoir.Option) *reservoir.Limiter {
	l, err := reservoir.New(store, limit, append(opts, reservoir.WithFetchTimeout(patience))...)
	require.NoError(t, err)
	return l
}

// spend asks two limiters in turn for more than the limit, which is what they admit.
func spend(t *testing.T, store *redisstore.Store, limit reservoir.Limit, opts ...reservoir.Option) error {
	limiters := []*reservoir.Limiter{limiter(t, store, limit, opts...), limiter(t, store, limit, opts...)}
	admitted := 0
	for i := range 2 * tokens {
		r, err := limiters[i%2].Allow(t.Context(), "user:42")
		if err != nil {
			return err
		}
		if r.Allowed {
			admitted++
		}
	}
	for _, l := range limiters {
		require.NoError(t, l.Close(context.Background()))
	}
	if admitted != tokens {
		return fmt.Errorf("%d of %d admitted", admitted, tokens)
	}
	return nil
}

// messages waits until a limiter hears its own message.
func messages(t *testing.T, store *redisstore.Store) error {
	l := limiter(t, store, reservoir.PerMinute(tokens))
	defer l.Close(context.Background())
	if _, err := l.Allow(t.Context(), "user:42"); err != nil {
		return err
	}
	return hears(l)
}

func hears(l *reservoir.Limiter) error {
	return within(errors.New("no message has come"), func() bool { return l.Stats().Unsubscribed == 0 })
}

// within returns late if f is not true for too long.
func within(late error, f func() bool) error {
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return late
		}
	}
	return nil
}

// recall lets one limiter have all tokens of a key, and another one ask for the rest of them. It tries other
// keys until that takes a message, because the holder soon gives back by itself what it has no use for.
func recall(t *testing.T, store *redisstore.Store, addr string) error {
	holder := limiter(t, store, reservoir.PerHour(tokens), reservoir.WithFixedBatch(tokens))
	asker := limiter(t, store, reservoir.PerHour(tokens))
	defer holder.Close(context.Background())
	defer asker.Close(context.Background())
	if _, err := holder.Allow(t.Context(), "user:41"); err != nil {
		return err
	}
	if err := hears(holder); err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	all := client.PSubscribe(t.Context(), "recall:reservoir:*")
	defer all.Close()
	if _, err := all.Receive(t.Context()); err != nil {
		return err
	}
	heard := all.Channel()
	for i := range 200 {
		key := fmt.Sprint("user:", i)
		if _, err := holder.Allow(t.Context(), key); err != nil {
			return err
		}
		r, err := asker.AllowN(t.Context(), key, tokens-1)
		if err != nil {
			return err
		}
		if !r.Allowed {
			return errors.New("refused while all lie idle")
		}
		for len(heard) > 0 {
			if strings.HasPrefix((<-heard).Payload, "1 ") {
				return nil
			}
		}
	}
	return errors.New("nobody was called")
}

// restarted lets the server restart while a limiter holds some tokens. Whether the server has kept the key
// or not, the limit holds, and the limiter hears again.
func restarted(t *testing.T, store *redisstore.Store, restart func()) error {
	l := limiter(t, store, reservoir.PerHour(tokens), reservoir.WithFixedBatch(tokens/2))
	defer l.Close(context.Background())
	admitted := 0
	allow := func() (err error) {
		r, err := l.Allow(t.Context(), "user:42")
		if err == nil && r.Allowed {
			admitted++
		}
		return err
	}
	if err := errors.Join(allow(), hears(l)); err != nil {
		return err
	}
	restart()
	if err := within(errors.New("it does not serve again"), func() bool {
		for range tokens {
			if allow() != nil {
				return false
			}
		}
		return true
	}); err != nil {
		return err
	}
	// If the connection ends while unused tokens are on their way back, the store that has lost all takes
	// them for charged to somebody, because others might have got them before.
	if admitted > tokens || admitted < tokens/2+1 {
		return fmt.Errorf("%d of %d admitted", admitted, tokens)
	}
	return hears(l)
}

func check(t *testing.T, store *redisstore.Store) error {
	l := limiter(t, store, reservoir.PerMinute(tokens))
	defer l.Close(context.Background())
	_, err := l.Check(t.Context(), "user:42")
	return err
}

// reset makes a used-up key whole.
func reset(t *testing.T, store *redisstore.Store) error {
	l := limiter(t, store, reservoir.PerMinute(tokens))
	defer l.Close(context.Background())
	if _, err := l.AllowN(t.Context(), "user:42", tokens); err != nil {
		return err
	}
	if err := l.Reset(t.Context(), "user:42"); err != nil {
		return err
	}
	r, err := l.AllowN(t.Context(), "user:42", tokens)
	if err == nil && !r.Allowed {
		err = errors.New("refused after Reset")
	}
	return err
}
