package reservoir_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// open returns a limiter over s that is closed, and checked to balance, at the end.
func open(t testing.TB, s backend.Store, l reservoir.Limit, opts ...reservoir.Option) *reservoir.Limiter {
	t.Helper()
	lim, err := reservoir.New(s, l, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = lim.Close(context.Background())
		balance(t, lim)
		require.Zero(t, lim.Stats().Held)
	})
	return lim
}

// fleet returns so many limiters over s, each as of a process of its own.
func fleet(t testing.TB, processes int, s backend.Store, l reservoir.Limit, opts ...reservoir.Option) []*reservoir.Limiter {
	t.Helper()
	all := make([]*reservoir.Limiter, processes)
	for i := range all {
		all[i] = open(t, s, l, opts...)
	}
	return all
}

// balance checks that every token is accounted for, once. It holds while no call
// is under way.
func balance(t testing.TB, l *reservoir.Limiter) {
	t.Helper()
	s := l.Stats()
	require.Equal(t, s.Taken+s.Refunded, s.Spent+s.Returned+s.Expired+s.Held, "%+v", s)
	for _, n := range []int64{s.Taken, s.Refunded, s.Spent, s.Returned, s.Expired, s.Held} {
		require.GreaterOrEqual(t, n, int64(0), "%+v", s)
	}
}

// allow asks for n tokens and fails the test on an error. Helper and require take longer than
// the request, so only an error pays for them.
func allow(t testing.TB, l *reservoir.Limiter, key string, n int64) reservoir.Result {
	r, err := l.AllowN(context.Background(), key, n)
	if err != nil {
		t.Helper()
		require.NoError(t, err)
	}
	return r
}

// drain asks for n tokens again and again until one request is refused. It returns
// the tokens that were admitted.
func drain(t testing.TB, l *reservoir.Limiter, key string, n int64) (admitted int64) {
	t.Helper()
	for allow(t, l, key, n).Allowed {
		admitted += n
	}
	return admitted
}

// used is what the store has charged to key in the window that is open.
func used(t testing.TB, s backend.Inspector, key string) int64 {
	t.Helper()
	c, err := s.Inspect(context.Background(), key)
	require.NoError(t, err)
	return c.Used
}

// crowd calls f n times at once and returns when all calls have.
func crowd(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// waitFor is Limiter.WaitN.
func waitFor(ctx context.Context, l *reservoir.Limiter, key string, n int64) error {
	_, err := l.WaitN(ctx, key, n)
	return err
}

// batches are the policies that hold stock, and everyPolicy adds the ones that hold
// none.
func batches() map[string]reservoir.Option {
	return map[string]reservoir.Option{
		"fixed=64": reservoir.WithBatch(reservoir.Fixed(64)),
		"ladder":   reservoir.WithBatch(reservoir.Ladder(1, 100)),
		"adaptive": reservoir.WithBatch(reservoir.Adaptive(1, 0)),
	}
}

func everyPolicy() map[string]reservoir.Option {
	all := batches()
	all["fixed=1"] = reservoir.WithBatch(reservoir.Fixed(1))
	all["direct"] = reservoir.WithDirect()
	return all
}

// rtt is the distance of stores where nothing else is said.
const rtt = 2 * time.Millisecond

// inBubble runs f as a subtest on virtual time.
func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// every asks for n tokens again and again, at random times that are interval apart on
// average, until end. It tells each when a request was made and what came of it.
func every(t *testing.T, l *reservoir.Limiter, n int64, interval time.Duration, end time.Time, each func(at time.Time, r reservoir.Result)) {
	rnd := rand.New(rand.NewPCG(uint64(interval), uint64(n)))
	for {
		time.Sleep(time.Duration(rnd.ExpFloat64() * float64(interval)))
		at := time.Now()
		if !at.Before(end) {
			return
		}
		r := allow(t, l, "k", n)
		if each != nil {
			each(at, r)
		}
	}
}

// stats adds up what limiters have counted.
func stats(all ...*reservoir.Limiter) (sum reservoir.Stats) {
	for _, l := range all {
		s := l.Stats()
		sum.StoreCalls += s.StoreCalls
		sum.Spent += s.Spent
		sum.Probes += s.Probes
		sum.Denied += s.Denied
		sum.Held += s.Held
		sum.Overdrawn += s.Overdrawn
	}
	return sum
}

// diary is what a hook was told of store calls.
type diary struct {
	mu    sync.Mutex
	calls []diaryEntry
}

type diaryEntry struct {
	reservoir.StoreCall
	begun, ended time.Time
}

func (d *diary) keep() reservoir.Option {
	return reservoir.WithHooks(reservoir.Hooks{StoreCall: func(c reservoir.StoreCall) {
		d.mu.Lock()
		defer d.mu.Unlock()
		e := diaryEntry{c, time.Now().Add(-c.Duration), time.Now()}
		e.Duration = 0
		d.calls = append(d.calls, e)
	}})
}

// all lists the calls so far.
func (d *diary) all() []diaryEntry {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]diaryEntry(nil), d.calls...)
}

// crowdOnce has so many callers ask for n tokens at once, and returns how many were
// admitted and how many got an error.
func crowdOnce(l *reservoir.Limiter, callers int, n int64) (admitted, failed int64) {
	var ok, bad atomic.Int64
	crowd(callers, func(int) {
		switch r, err := l.AllowN(context.Background(), "k", n); {
		case err != nil:
			bad.Add(1)
		case r.Allowed:
			ok.Add(1)
		}
	})
	return ok.Load(), bad.Load()
}

// exhaust uses up the limit of key through the limiters in turn.
func exhaust(t *testing.T, all []*reservoir.Limiter, key string) {
	t.Helper()
	for _, l := range all {
		drain(t, l, key, 1)
	}
}
