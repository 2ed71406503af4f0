package reservoir

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/memstore"
)

func TestCloseHandsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		store := memstore.New()
		l := open(t, overNetwork(store, rtt/2), PerMinute(100), WithBatch(Fixed(30)))
		for i := range 100 {
			allow(t, l, fmt.Sprint("key-", i), 2)
		}
		begin := time.Now()
		require.NoError(t, l.Close(ctx))
		assert.LessOrEqual(t, time.Since(begin), 100/givers*rtt+rtt, "many at a time")
		for i := range 100 {
			require.EqualValues(t, 2, used(t, store, fmt.Sprint("key-", i)))
		}
		s := l.Stats()
		assert.EqualValues(t, 200, s.Spent)
		assert.EqualValues(t, 2800, s.Returned)
		calls := s.StoreCalls
		require.NoError(t, l.Close(ctx), "again")
		assert.Equal(t, calls, l.Stats().StoreCalls)

		_, err := l.Allow(ctx, "key-1")
		assert.ErrorIs(t, err, ErrClosed)
		_, err = l.Key("key-1").Allow(ctx)
		assert.ErrorIs(t, err, ErrClosed)
		assert.ErrorIs(t, l.Wait(ctx, "new"), ErrClosed)
		_, err = l.Check(ctx, "key-1")
		assert.ErrorIs(t, err, ErrClosed)
	})
}

func TestCloseSendsWaitersAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		store := memstore.New()
		l := open(t, overNetwork(store, rtt/2), PerMinute(10), WithBatch(Fixed(10)))
		inFlight := callers(t, l, ctx, 3)
		waiting := make(chan error)
		go func() { waiting <- l.WaitN(ctx, "k", 10) }()
		synctest.Wait()
		require.NoError(t, l.Close(ctx))
		_, err := inFlight[0]()
		assert.ErrorIs(t, err, ErrClosed)
		assert.ErrorIs(t, <-waiting, ErrClosed)
		assert.Zero(t, used(t, store, "k"), "what the fetch under way brought went back")
	})
}

func TestCloseIsBoundedByItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), rtt/2)
		l := open(t, net, PerMinute(10), WithBatch(Fixed(10)))
		allow(t, l, "k", 1)
		net.set(func(string) fault { return hang })
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		defer cancel()
		begin := time.Now()
		assert.Error(t, l.Close(ctx))
		assert.Equal(t, 30*time.Millisecond, time.Since(begin))
		assert.EqualValues(t, 9, l.Stats().Expired, "what could not be handed back expires")
	})
}

// Traffic that runs on while the limiter closes gets tokens or ErrClosed, and
// every token is accounted for.
func TestCloseUnderLoad(t *testing.T) {
	for range 20 {
		store := memstore.New()
		l := open(t, store, PerMinute(1_000_000), WithBatch(Fixed(7)))
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for i := 0; ; i++ {
					if _, err := l.AllowN(context.Background(), "k", int64(i%9+1)); err != nil {
						assert.ErrorIs(t, err, ErrClosed)
						return
					}
				}
			})
		}
		require.NoError(t, l.Close(context.Background()))
		wg.Wait()
		balance(t, l)
		require.EqualValues(t, l.Stats().Spent, used(t, store, "k"))
	}
}

// What a fetch brings when Close could not wait for it is nobody's to spend.
func TestNothingIsSpentAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), time.Second)
		l := open(t, net, PerHour(100), WithBatch(Fixed(50)), WithFetchTimeout(time.Minute))
		k := l.Key("k")
		refused := make(chan error)
		go func() {
			_, err := k.Allow(context.Background())
			refused <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		require.Error(t, l.Close(ctx))
		require.ErrorIs(t, <-refused, ErrClosed)
		time.Sleep(time.Minute)
		_, err := k.Allow(context.Background())
		require.ErrorIs(t, err, ErrClosed)
		s := l.Stats()
		assert.EqualValues(t, 50, s.Taken, "the reply did come")
		assert.EqualValues(t, 50, s.Expired)
		assert.Zero(t, s.Spent)
	})
}

// Who waits for a key that there is no room to remember is sent away as well, and
// asks under the limit as it now is.
func TestCloseSendsWaitersWithoutMemoryAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		limit := changingLimit(10)
		l := open(t, memstore.New(), PerMinute(1), WithMaxKeys(0), WithLimits(limit.of))
		allow(t, l, "k", 10)
		waiting := make(chan error)
		go func() { waiting <- l.WaitN(ctx, "k", 8) }()
		synctest.Wait()
		limit.Store(5)
		begin := time.Now()
		require.ErrorIs(t, <-waiting, ErrExceedsLimit)
		assert.GreaterOrEqual(t, time.Since(begin), time.Minute/2, "it did wait")

		allow(t, l, "k", 5)
		go func() { waiting <- l.WaitN(ctx, "k", 5) }()
		synctest.Wait()
		require.NoError(t, l.Close(ctx))
		begin = time.Now()
		require.ErrorIs(t, <-waiting, ErrClosed)
		assert.Zero(t, time.Since(begin))
	})
}
