package reservoir_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
)

// slowReset is a store whose reply to a Reset takes its time.
// A reply to Reset that comes after others of the new window changes nothing: what was
// granted there is not granted again.
func TestH6LateReplyToResetUnexhausted(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		l := open(t, slowReset{far(0), 20 * time.Millisecond}, reservoir.PerHour(1000), opt)
		old := allow(t, l, "k", 1).Reset
		time.Sleep(time.Minute)
		fresh := map[time.Time]int64{}
		go func() { assert.NoError(t, l.Reset(bg, "k")) }()
		for range 8000 {
			time.Sleep(time.Millisecond / 8)
			if r := allow(t, l, "k", 1); r.Allowed && !r.Reset.Equal(old) {
				fresh[r.Reset]++
			}
		}
		for w, n := range fresh {
			assert.LessOrEqual(t, n, int64(1000), "%v", w)
		}
		balance(t, l)
	})
}

// Once a key is blocked nothing passes, also what is settled below its charge.
// Once a key is seen to be unlimited nothing is refused, whatever a fetch brings that was
// on its way.
// A process that has nothing cached of a window that another's Reset has opened learns
// of it: a refusal is free there too.
// Shadowed is of Denied.
// What was used above the charge is charged too where the limit has another window by now,
// for a key that there is no room for.
func TestKeysReentrant(t *testing.T) {
	l := open(t, far(0), reservoir.PerMinute(10))
	for i := range 200 {
		allow(t, l, fmt.Sprint(i), 1)
	}
	done := make(chan bool)
	go func() {
		n := 0
		for key := range l.Keys() {
			if n++; n > 1000 {
				break
			}
			_, _ = l.Allow(bg, key)
			_, _ = l.Allow(bg, fmt.Sprint("new", n))
			_ = l.Reset(bg, key)
			l.Stats()
			for range l.Keys() {
				break
			}
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("deadlock")
	}
}

// A Group is bounded by its caller's context.
func TestGroupIsBounded(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := far(time.Millisecond)
		a := open(t, net, reservoir.PerMinute(10), opt, reservoir.WithName("a"))
		b := open(t, net, reservoir.PerMinute(10), opt, reservoir.WithName("b"))
		g := reservoir.NewGroup(a, b)
		net.set(func(c call) fault {
			if c.op == "refund" || c.key[0] == 'b' {
				return hang
			}
			return fine
		})
		ctx, cancel := context.WithTimeout(bg, 10*time.Millisecond)
		defer cancel()
		begin := time.Now()
		_, err := g.Allow(ctx, "k", "k")
		require.Error(t, err)
		assert.LessOrEqual(t, time.Since(begin), 15*time.Millisecond)
	})
}

var _ = rand.N[int]
var (
	_ sync.Mutex
	_ = synctest.Wait
	_ = assert.Equal
	_ = require.Equal
	_ atomic.Int64
)
