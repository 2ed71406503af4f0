package reservoir_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// Close: what is held goes back, waiters leave, and nothing comes after it.

// Close hands back what is held, sends waiters away, and is the end of every door. A
// second one costs nothing.
func TestCloseHandsBack(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerMinute(100), opt)
		for i := range 100 {
			allow(t, l, fmt.Sprint(i), 2)
		}
		drain(t, l, "full", 1)
		ended := make(chan error, 4)
		go func() { ended <- waitFor(bg, l, "full", 100) }()
		for range 3 {
			go func() { _, err := l.Allow(bg, "cold"); ended <- err }()
		}
		synctest.Wait()
		begin := time.Now()
		require.NoError(t, l.Close(bg))
		assert.LessOrEqual(t, time.Since(begin), 50*time.Millisecond, "many at a time")
		for range 4 {
			if err := <-ended; name != "direct" {
				assert.ErrorIs(t, err, reservoir.ErrClosed)
			}
		}
		assert.LessOrEqual(t, time.Since(begin), 50*time.Millisecond)
		for i := range 100 {
			require.EqualValues(t, 2, used(t, net, fmt.Sprint(i)))
		}
		calls := net.Count("")
		require.NoError(t, l.Close(bg))
		for _, key := range []string{"1", "new"} {
			_, err := l.Allow(bg, key)
			assert.ErrorIs(t, err, reservoir.ErrClosed)
			_, err = l.Key(key).Allow(bg)
			assert.ErrorIs(t, err, reservoir.ErrClosed)
			_, err = l.Check(bg, key)
			assert.ErrorIs(t, err, reservoir.ErrClosed)
			assert.ErrorIs(t, waitFor(bg, l, key, 1), reservoir.ErrClosed)
		}
		assert.Equal(t, calls, net.Count(""))
	})
}

// Each Close ends with its own context, whatever another one waits for, and one whose
// context has ended says nothing about the store. What could not be handed back
// expires, and what a reply brings later is nobody's to spend.
func TestCloseIsBounded(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, name string, opt reservoir.Option) {
		net, heard := testnet.Far(time.Millisecond), new(states)
		l := open(t, net, reservoir.PerHour(1000), opt, heard.option(), reservoir.WithFetchTimeout(time.Minute))
		for i := range 300 {
			for range 10 {
				allow(t, l, fmt.Sprint(i), 1)
			}
		}
		held := l.Stats().Held
		net.MoveTo(10 * time.Second)
		go func() { _, _ = l.Allow(bg, "late") }()
		synctest.Wait()
		k := l.Key("late")
		first := make(chan error, 1)
		long, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		go func() { first <- l.Close(long) }()
		synctest.Wait()
		for range 3 {
			short, cancel := context.WithTimeout(bg, 10*time.Millisecond)
			begin := time.Now()
			assert.ErrorIs(t, l.Close(short), context.DeadlineExceeded)
			assert.Equal(t, 10*time.Millisecond, time.Since(begin))
			cancel()
		}
		require.Error(t, <-first)
		time.Sleep(2 * time.Minute)
		_, err := k.Allow(bg)
		assert.ErrorIs(t, err, reservoir.ErrClosed)
		s := l.Stats()
		assert.EqualValues(t, 3000, s.Spent)
		assert.LessOrEqual(t, held, s.Expired+s.Returned)

		hasty := open(t, net, reservoir.PerHour(1000), opt, heard.option(), reservoir.WithFetchTimeout(time.Minute))
		require.True(t, allow(t, hasty, "k", 1).Allowed)
		ended, cancel := context.WithCancel(bg)
		cancel()
		begin := time.Now()
		_ = hasty.Close(ended)
		assert.Zero(t, time.Since(begin), "no store is called")
		assert.Empty(t, heard.told())
	})
}

// Neither Close nor Check waits in an outage, nor asks for each key.
func TestCloseAndCheckInAnOutage(t *testing.T) {
	for how, f := range map[string]testnet.Fault{"hangs": testnet.Hang, "lost": testnet.LoseRequest} {
		inBubbles(t, how, everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			net := testnet.Far(time.Millisecond)
			l := open(t, net, reservoir.PerHour(1000), opt)
			for i := range 1000 {
				allow(t, l, fmt.Sprint(i), 1)
			}
			breakdown(t, l, net, f)
			calls, begin := net.Count(""), time.Now()
			for range 20 {
				_, err := l.Check(bg, "1")
				var failure *reservoir.StoreError
				assert.ErrorAs(t, err, &failure)
			}
			assert.LessOrEqual(t, time.Since(begin), 100*time.Millisecond, "one, which a replica might have answered")
			assert.LessOrEqual(t, net.Count("")-calls, 2)
			_ = l.Close(bg)
			assert.LessOrEqual(t, time.Since(begin), time.Second)
			assert.LessOrEqual(t, net.Count("")-calls, 150)
		})
	}
}

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
		l := open(t, shards, reservoir.PerHour(1000), reservoir.WithFixedBatch(500))
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

// Whichever of the first four statements of Close fail, and however, the fifth hands back what is
// held, and debt is charged once.
func TestEachStatementOfCloseFails(t *testing.T) {
	for _, f := range []testnet.Fault{testnet.LoseReply, testnet.LoseRequest, testnet.ArriveLate, testnet.Repeat, testnet.Refuse} {
		inBubbles(t, fmt.Sprint("kind=", f), batches(), func(t *testing.T, _ string, opt reservoir.Option) {
			for failing := range 16 { // a bit for each statement
				net := testnet.Far(time.Millisecond)
				l := open(t, net, reservoir.PerHour(1000), opt)
				require.NoError(t, l.Settle(bg, allow(t, l, "k", 100), 150))
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

// The stock of a key that has left a shard goes back at Close, though that shard is away.
func TestCloseOfAKeyThatHasMoved(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, _ string, opt reservoir.Option) {
		on := "old"
		net := sharded{testnet.Far(time.Millisecond), func() string { return on }}
		l := open(t, net, reservoir.PerHour(1000), opt)
		for range 70 {
			allow(t, l, "k", 1)
		}
		require.Positive(t, l.Stats().Held)
		net.Faults(func(c *testnet.Call) testnet.Fault {
			if strings.HasPrefix(c.Key, "old:") {
				return testnet.Refuse
			}
			return testnet.Fine
		})
		for i := range toOpen {
			_, err := l.Allow(bg, fmt.Sprint("old:", i))
			require.Error(t, err)
		}
		on = "new"
		_ = l.Close(bg)
		require.Positive(t, net.Happened(testnet.Refuse))
		assert.EqualValues(t, 70, used(t, net, "k"))
	})
}

// Traffic that runs on while the limiter closes gets tokens or ErrClosed, and what was
// spent is what stays charged.
func TestCloseUnderLoad(t *testing.T) {
	for name, opt := range everyPolicy() {
		t.Run(name, func(t *testing.T) {
			for range 4 {
				store := memstore.New()
				l := open(t, store, reservoir.PerHour(100_000_000), opt, patient)
				crowd(8, func(i int) {
					for j := 0; ; j++ {
						if i == 0 && j == 500 {
							assert.NoError(t, l.Close(bg))
						}
						if _, err := l.AllowN(bg, "k", int64(j%9+1)); err != nil {
							assert.ErrorIs(t, err, reservoir.ErrClosed)
							return
						}
					}
				})
				require.NoError(t, l.Close(bg))
				balance(t, l)
				require.Equal(t, l.Stats().Spent, used(t, store, "k"))
			}
		})
	}
}
