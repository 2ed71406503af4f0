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
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// Close at an unlucky moment. Other tests of Close are in returns_test.go.

// hurried is a context that ends after the first look at it, so its caller gets what memory has
// or nothing, and takes no lock.
type hurried struct {
	context.Context
	looks int
}

func (c *hurried) Err() error {
	if c.looks++; c.looks > 1 {
		return context.Canceled
	}
	return nil
}

// A handle spends from the stock whenever Close is about to take it: the rest goes back all the
// same.
func TestCloseWhileAHandleSpends(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		var k *reservoir.Key // set when Close begins
		var looks, spent int64
		net := testnet.Far(time.Millisecond)
		shards := sharded{net, func() string { // a statement is being written
			if k != nil {
				looks++
				if r, err := k.Allow(&hurried{Context: bg}); err == nil && r.Allowed {
					spent++
				}
			}
			return ""
		}}
		l := open(t, shards, reservoir.PerHour(1000), reservoir.WithBatch(reservoir.Fixed(500)))
		handle := l.Key("k")
		_, err := handle.AllowN(bg, 7)
		require.NoError(t, err)
		k = handle
		require.NoError(t, l.Close(bg))
		require.Positive(t, looks)
		assert.EqualValues(t, 7+spent, used(t, net, "k"))
		assert.Zero(t, l.Stats().Expired)
	})
}

// A store that ends the goroutine has not taken the stock back, and Close says so.
func TestCloseOfAStoreThatExits(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(1000), opt)
		for range 40 {
			allow(t, l, "k", 1)
		}
		net.Always(testnet.Exit)
		require.ErrorContains(t, l.Close(bg), "runtime.Goexit")
		require.Positive(t, net.Happened(testnet.Exit))
	})
}

// Whichever of the first four statements of Close fail, and however, the fifth hands back what is
// held, and debt is charged once.
func TestEachStatementOfCloseFails(t *testing.T) {
	for _, f := range []testnet.Fault{testnet.LoseReply, testnet.LoseRequest, testnet.ArriveLate, testnet.Repeat, testnet.Refuse, testnet.Panic} {
		inBubbles(t, fmt.Sprint("kind=", f), batches(), func(t *testing.T, _ string, opt reservoir.Option) {
			for failing := range 16 { // a bit for each statement
				net := testnet.Far(time.Millisecond)
				l := open(t, net, reservoir.PerHour(1000), opt)
				require.NoError(t, l.Settle(bg, "k", allow(t, l, "k", 100), 150))
				before := failing
				net.Faults(func(*testnet.Call) testnet.Fault {
					defer func() { before >>= 1 }()
					if before&1 == 1 {
						return f
					}
					return testnet.Fine
				})
				require.NoError(t, l.Close(bg))
				require.True(t, failing&1 == 0 || net.Happened(f) > 0)
				require.EqualValues(t, 150, used(t, net, "k"), "failing: %b", failing)
			}
		})
	}
}

// Processes close while requests of all kinds are under way, over a network that has just failed:
// no counter goes back, counts balance, and what requests have used is what stays charged.
func TestCloseInTheMiddle(t *testing.T) {
	for seed := range uint64(8) {
		for name, opt := range batches() {
			t.Run(fmt.Sprint(name, "/", seed), func(t *testing.T) {
				defer chance.Seed(seed)()
				synctest.Test(t, func(t *testing.T) { closeInTheMiddle(t, seed, opt) })
			})
		}
	}
}

func closeInTheMiddle(t *testing.T, seed uint64, opt reservoir.Option) {
	const tokens = 1000
	rnd, net := rand.New(rand.NewPCG(seed, 3)), testnet.Far(time.Millisecond)
	l := open(t, net, reservoir.PerHour(tokens), opt, reservoir.WithIdle(time.Second))
	other := open(t, net, reservoir.PerHour(tokens), opt)
	keys := []string{"a", "b", "c", "d"}
	var spent [4]atomic.Int64
	var over atomic.Bool
	var requests sync.WaitGroup
	for i := range 12 {
		rnd, key, spent := rand.New(rand.NewPCG(seed, uint64(i))), keys[i%4], &spent[i%4]
		k := []*reservoir.Key{l.Key(key), other.Key(key)}[i%2]
		requests.Go(func() {
			for !over.Load() {
				time.Sleep(time.Duration(rnd.IntN([]int{20, 2000}[rnd.IntN(2)])) * time.Millisecond) // idle for long enough to be forgotten
				ctx, cancel := context.WithTimeout(bg, time.Duration(1+rnd.IntN(20))*time.Millisecond)
				ask := k.AllowN
				if rnd.IntN(4) == 0 {
					ask = k.WaitN
				}
				n := 1 + rnd.Int64N(10)
				if r, err := ask(ctx, n); err == nil && r.Allowed {
					spent.Add(n)
					if used := rnd.Int64N(n + 1); rnd.IntN(2) == 0 && k.Settle(bg, r, used) == nil {
						spent.Add(used - n)
					}
				}
				cancel()
			}
		})
	}
	faults := []testnet.Fault{testnet.Fine, testnet.LoseRequest, testnet.LoseReply, testnet.ArriveLate, testnet.Repeat, testnet.Fine}
	busy := time.Duration(rnd.IntN(8000)) * time.Millisecond
	net.Faults(func(*testnet.Call) testnet.Fault { return faults[rnd.IntN(len(faults))] }) // under the network's lock
	time.Sleep(busy)
	net.Faults(nil)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		crowd(3, func(i int) { assert.NoError(t, []*reservoir.Limiter{l, other, l}[i].Close(bg)) })
	}()
	var was reservoir.Stats
	for waiting := true; waiting; {
		select {
		case <-closed:
			waiting = false
		case <-time.After(100 * time.Microsecond):
		}
		is := l.Stats()
		requireGrowth(t, was, is)
		was = is
	}
	over.Store(true)
	requests.Wait()
	for i, key := range keys {
		back := used(t, net, key)
		require.LessOrEqual(t, back, int64(tokens))
		require.EqualValues(t, spent[i].Load(), back, key)
	}
}
