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
	require.Empty(t, tried(t, redistest.Start(t).Addr()))
}

// Miniredis takes TIME for a write, which a script of EVALSHA_RO may not do.
func TestMiniredis(t *testing.T) {
	faults := tried(t, miniredis.RunT(t).Addr())
	require.Len(t, faults, 2, faults)
	require.Contains(t, faults["check"], "Write commands are not allowed in read-only scripts")
	require.Contains(t, faults["verify"], "Write commands are not allowed in read-only scripts")
}

const (
	tokens   = 20
	patience = 30 * time.Second
)

// tried uses each part of a limiter on the server, and returns the first line of the error of
// each part that does not work.
func tried(t *testing.T, addr string) map[string]string {
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
	for end := time.Now().Add(patience); l.Stats().Unsubscribed > 0; {
		if time.Now().After(end) {
			return errors.New("no message has come")
		}
	}
	return nil
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
