package redisstore_test

import (
	"context"
	"log"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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

// TestHookPanics: every caller of a pipeline sees what a hook of go-redis panicked
// with, whoever's goroutine it was in; then calls are served as before.
func TestHookPanics(t *testing.T) {
	const callers = 50
	for name, do := range map[string]func(){
		"panic":  func() { panic("a hook's bug") },
		"Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			hook := new(bug)
			client := redistest.Start(t).Client(unhurried)
			client.AddHook(hook)
			s := redisstore.New(client)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // it can be cancelled: not the caller's own goroutine
			defer cancel()
			call := func() (panicked any, err error) {
				defer func() { panicked = recover() }()
				_, err = charge(ctx, s, "k", millions, 1)
				return nil, err
			}
			_, err := call()
			require.NoError(t, err)
			hook.set(do)
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					panicked, err := call()
					if name == "panic" {
						assert.Equal(t, "a hook's bug", panicked)
						return
					}
					assert.Error(t, err)
				})
			}
			wg.Wait()
			hook.set(nil)
			for range callers {
				wg.Go(func() {
					panicked, err := call()
					assert.Nil(t, panicked)
					assert.NoError(t, err)
				})
			}
			wg.Wait()
		})
	}
}

// TestHookPanicsUnheard: what a hook of go-redis panics with after its caller has left is
// logged, once.
func TestHookPanicsUnheard(t *testing.T) {
	lines := make(chan string, 10)
	defer log.SetOutput(log.Writer())
	log.SetOutput(written(lines))
	server := redistest.Start(t)
	hook, client := new(bug), server.Client(unhurried)
	client.AddHook(hook)
	s := redisstore.New(client)
	require.NoError(t, takeWithin(s, "k", 10*time.Second))
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	hook.set(func() {
		leave()
		<-left
		panic("a hook's bug")
	})
	_, err := charge(ctx, s, "k", millions, 1)
	close(left)
	require.ErrorIs(t, err, context.Canceled)
	assert.Contains(t, <-lines, "panic: a hook's bug")
	require.NoError(t, s.Close())
	assert.Empty(t, lines)
}

// written has what was written to it, one element for each Write.
type written chan string

func (w written) Write(p []byte) (int, error) {
	w <- string(p)
	return len(p), nil
}

// TestHookPanicsOnCluster: no hook runs where nobody could catch its panic. It would end
// this process.
func TestHookPanicsOnCluster(t *testing.T) {
	t.Parallel()
	hook := new(bug)
	client := redistest.StartCluster(t, 3, 0).Client(documentedCluster)
	client.OnNewNode(func(node *redis.Client) { node.AddHook(hook) })
	s := redisstore.New(client)
	for range 2 { // by the cluster's client, then by the node's
		require.Eventually(t, func() bool { return takeWithin(s, "k", 10*time.Second) == nil }, 10*time.Second, time.Millisecond)
	}
	hook.set(func() { panic("a hook's bug") })
	for range 3 {
		require.PanicsWithValue(t, "a hook's bug", func() { _ = takeWithin(s, "k", 10*time.Second) })
	}
	require.PanicsWithValue(t, "a hook's bug", func() { _, _ = s.Inspect(t.Context(), "k") })
	require.PanicsWithValue(t, "a hook's bug", func() { _ = s.Verify(t.Context()) })
	hook.set(nil)
	require.NoError(t, takeWithin(s, "k", 10*time.Second))
}
