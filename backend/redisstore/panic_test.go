package redisstore_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// bug is a hook of go-redis that calls do before each command and pipeline, from
// when it is switched on.
type bug struct {
	mu sync.Mutex
	do func()
}

func (b *bug) set(do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.do = do
}

func (b *bug) run() {
	b.mu.Lock()
	do := b.do
	b.mu.Unlock()
	if do != nil {
		do()
	}
}

func (b *bug) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b *bug) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		b.run()
		return next(ctx, cmd)
	}
}

func (b *bug) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		b.run()
		return next(ctx, cmds)
	}
}

// TestHookPanics: what a hook of go-redis panics with goes up to a caller in whose goroutine it
// runs, and leaves nothing in flight.
func TestHookPanics(t *testing.T) {
	hook, client := new(bug), redistest.Start(t).Client(unhurried)
	client.AddHook(hook)
	s := redisstore.New(client)
	call := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := s.Sync(ctx, backend.Statement{Key: "k", Limit: millions, Need: 1, Detached: true})
		return err
	}
	require.NoError(t, call())
	hook.set(func() { panic("a hook's bug") })
	for range 10 {
		require.PanicsWithValue(t, "a hook's bug", func() { _ = call() })
		hook.set(nil)
		require.NoError(t, call())
		hook.set(func() { panic("a hook's bug") })
	}
	require.NoError(t, s.Close())
}

// TestHookExits: a hook of go-redis that ends its goroutine fails the calls of that pipeline.
// Then calls are served as before.
func TestHookExits(t *testing.T) {
	const callers = 50
	hook, client := new(bug), redistest.Start(t).Client(unhurried)
	client.AddHook(hook)
	s := redisstore.New(client)
	all := func(check func(error)) {
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() { check(takeWithin(s, "k", 20*time.Second)) })
		}
		wg.Wait()
	}
	hook.set(runtime.Goexit)
	all(func(err error) { assert.ErrorContains(t, err, "ended the call") })
	hook.set(nil)
	all(func(err error) { assert.NoError(t, err) })
	require.NoError(t, s.Close())
}
