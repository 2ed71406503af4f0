package reservoir_test

import (
	"bytes"
	"context"
	"log"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// This file has panics of users' functions that no caller gets. Each is logged, once.

// logged has what the standard logger wrote during a test.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

func recordLog(t *testing.T) *logged {
	l, before := new(logged), log.Writer()
	log.SetOutput(l)
	t.Cleanup(func() { log.SetOutput(before) })
	return l
}

// bomb panics, or ends the goroutine, after some time, while it is armed, and counts how often.
type bomb struct {
	armed atomic.Bool
	exits bool
	delay time.Duration
	went  atomic.Int64
}

func (b *bomb) tick() {
	if !b.armed.Load() {
		return
	}
	time.Sleep(b.delay)
	b.went.Add(1)
	if b.exits {
		runtime.Goexit()
	}
	panic("a user's bug")
}

// requireLogged checks that the log names each panic that no caller got, and no other.
func (b *bomb) requireLogged(t *testing.T, text *logged, raised int64) {
	t.Helper()
	synctest.Wait()
	what := "panic: a user's bug"
	if b.exits {
		what = "runtime.Goexit"
	}
	require.Positive(t, b.went.Load())
	require.EqualValues(t, b.went.Load()-raised, text.count(what))
}

// exploding is net, whose calls of op are b.
func exploding(net *testnet.Network, op string, b *bomb) *testnet.Network {
	net.Enter = func(ctx context.Context, c *testnet.Call) context.Context {
		if c.Op == op {
			b.tick()
		}
		return ctx
	}
	return net
}

// A function of WithLimits, or a store, that panics in a fetch that nobody waits for.
func TestPanicsInTheBackground(t *testing.T) {
	for what, exits := range map[string]bool{"panics": false, "exits": true} {
		for _, where := range []string{"limits", "sync"} {
			if where == "sync" && exits { // a failure of the store, for which its circuit opens
				continue
			}
			inBubbles(t, what+"/"+where, batches(), func(t *testing.T, _ string, opt reservoir.Option) {
				text, b := recordLog(t), &bomb{exits: exits}
				limits, store := new(bomb), b
				if where == "limits" {
					limits, store = b, new(bomb)
				}
				l := open(t, exploding(testnet.Far(time.Millisecond), "sync", store), reservoir.PerMinute(1000), opt, reservoir.WithLimits(func(string) reservoir.Limit {
					limits.tick()
					return reservoir.PerMinute(1000)
				}))
				for range 300 {
					allow(t, l, "k", 1)
					time.Sleep(10 * time.Millisecond)
				}
				b.armed.Store(true)
				raised := int64(0)
				for range 500 {
					if err := survives(func() error { _, err := l.Allow(bg, "k"); return err }); err != nil {
						raised++
					}
					time.Sleep(10 * time.Millisecond)
				}
				b.armed.Store(false)
				require.Greater(t, b.went.Load(), raised, "none was in the background")
				b.requireLogged(t, text, raised)
			})
		}
	}
}

// The caller for whom a call is made has left when the store panics.
func TestPanicsAfterTheCallerHasLeft(t *testing.T) {
	for op, opt := range map[string]reservoir.Option{"sync": reservoir.WithBatch(reservoir.Fixed(10)), "take": reservoir.WithDirect(), "check": reservoir.WithDirect(), "reset": reservoir.WithDirect()} {
		for what, exits := range map[string]bool{"panics": false, "exits": true} {
			if op == "sync" && exits {
				continue
			}
			inBubble(t, op+"/"+what, func(t *testing.T) {
				text, b := recordLog(t), &bomb{exits: exits, delay: 20 * time.Millisecond}
				l := open(t, exploding(testnet.Far(time.Millisecond), op, b), reservoir.PerMinute(1000), opt)
				b.armed.Store(true)
				for range 3 {
					ctx, cancel := context.WithTimeout(bg, 10*time.Millisecond)
					defer cancel()
					var err error
					switch op {
					case "check":
						_, err = l.Check(ctx, "k")
					case "reset":
						err = l.Reset(ctx, "k")
					default:
						_, err = l.Allow(ctx, "k")
					}
					require.ErrorIs(t, err, context.DeadlineExceeded)
					time.Sleep(time.Second)
				}
				b.armed.Store(false)
				b.requireLogged(t, text, 0)
			})
		}
	}
}

// A caller leaves at the moment when the fetch panics: it gets the panic, or the log does.
func TestPanicWhileTheCallerLeaves(t *testing.T) {
	for range 50 {
		inBubble(t, "", func(t *testing.T) {
			text, b := recordLog(t), &bomb{delay: 10 * time.Millisecond}
			l := open(t, exploding(testnet.Far(time.Millisecond), "sync", b), reservoir.PerMinute(1000))
			b.armed.Store(true)
			ctx, cancel := context.WithTimeout(bg, 10*time.Millisecond)
			defer cancel()
			raised := int64(0)
			if err := survives(func() error { _, err := l.Allow(ctx, "k"); return err }); strings.Contains(err.Error(), "bug") {
				raised++
			}
			b.armed.Store(false)
			b.requireLogged(t, text, raised)
		})
	}
}

// A store that panics at the probes of its circuit, at Close or when idle keys leave.
func TestPanicsOfCallsForNobody(t *testing.T) {
	inBubble(t, "probe", func(t *testing.T) {
		text, b, net := recordLog(t), new(bomb), testnet.Far(time.Millisecond)
		l := open(t, exploding(net, "sync", b), reservoir.PerMinute(1000))
		breakdown(t, l, net, testnet.LoseRequest)
		b.armed.Store(true)
		time.Sleep(5 * time.Second)
		b.armed.Store(false)
		b.requireLogged(t, text, 0)
	})
	inBubble(t, "idle", func(t *testing.T) {
		text, b, net := recordLog(t), new(bomb), testnet.Far(time.Millisecond)
		l := open(t, exploding(net, "sync", b), reservoir.PerHour(1000), reservoir.WithIdle(time.Second), reservoir.WithBatch(reservoir.Fixed(10)))
		allow(t, l, "k", 1)
		b.armed.Store(true)
		time.Sleep(10 * time.Second)
		b.armed.Store(false)
		b.requireLogged(t, text, 0)
		require.Eventually(t, func() bool { return l.Stats().Keys == 0 }, time.Minute, time.Second)
	})
	inBubble(t, "close", func(t *testing.T) {
		text, net := recordLog(t), testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(1000), reservoir.WithBatch(reservoir.Fixed(10)))
		allow(t, l, "k", 1)
		net.Next("sync", testnet.Panic, testnet.Panic)
		require.NoError(t, l.Close(bg))
		require.Equal(t, 2, text.count("the store panics"))
	})
}

// Two limits of a group panic in one request: the caller gets one of the panics, and the log the
// other.
func TestPanicsOfAGroup(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		text, b := recordLog(t), new(bomb)
		limits := reservoir.WithLimits(func(string) reservoir.Limit { b.tick(); return reservoir.PerMinute(10) })
		g := reservoir.NewGroup(
			open(t, testnet.Far(time.Millisecond), reservoir.PerMinute(10), limits), open(t, testnet.Far(time.Millisecond), reservoir.PerMinute(10), limits))
		b.armed.Store(true)
		require.Error(t, survives(func() error { _, err := g.Allow(bg, "a", "b"); return err }))
		b.armed.Store(false)
		require.EqualValues(t, 2, b.went.Load())
		b.requireLogged(t, text, 1)
		r, err := g.Allow(bg, "a", "b")
		require.NoError(t, err)
		assert.True(t, r.Allowed)
	})
}
