package rollout_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/rollout"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// far is a store at the end of a network, with a clock of its own.
type far struct {
	backend.Store
	ahead time.Duration // its clock, of ours
	calls atomic.Int64
	loses atomic.Uint64 // of a thousand calls half as many each are lost on the way there and back
	gone  atomic.Bool   // answers nothing
}

func newFar(ahead time.Duration) *far { return &far{Store: memstore.New(), ahead: ahead} }

func over[R any](f *far, ctx context.Context, op string, call func(ctx context.Context) (R, error)) (r R, err error) {
	f.calls.Add(1)
	time.Sleep(rand.N(2 * time.Millisecond))
	fate := rand.Uint64N(1000)
	lost := &backend.Error{Op: op, Class: backend.Unknown, Err: context.DeadlineExceeded}
	if f.gone.Load() || fate < f.loses.Load()/2 {
		return r, lost
	}
	r, err = call(storeclock.With(ctx, time.Now().Add(f.ahead)))
	time.Sleep(rand.N(2 * time.Millisecond))
	if fate < f.loses.Load() {
		var none R
		return none, lost
	}
	return r, err
}

func (f *far) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	return over(f, ctx, "sync", func(ctx context.Context) (backend.SyncReply, error) { return f.Store.Sync(ctx, r) })
}

func (f *far) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	return over(f, ctx, "take", func(ctx context.Context) (backend.TakeReply, error) { return f.Store.Take(ctx, r) })
}

func (f *far) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	return over(f, ctx, "check", func(ctx context.Context) (backend.State, error) { return f.Store.Check(ctx, key, l) })
}

func (f *far) Refund(ctx context.Context, r backend.RefundRequest) (int64, error) {
	return over(f, ctx, "refund", func(ctx context.Context) (int64, error) { return f.Store.Refund(ctx, r) })
}

func (f *far) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	return over(f, ctx, "reset", func(ctx context.Context) (backend.State, error) { return f.Store.Reset(ctx, r) })
}

// process is a limiter with a roll-out of its own over the shared stores.
type process struct {
	*reservoir.Limiter
	store *rollout.Store
}

func processes(t testing.TB, n int, old, new backend.Store, l reservoir.Limit, opts ...reservoir.Option) (all []process) {
	for range n {
		s := open(t, old, new, 0, 0)
		limiter, err := reservoir.New(s, l, opts...)
		require.NoError(t, err)
		t.Cleanup(func() { _ = limiter.Close(context.Background()) })
		all = append(all, process{limiter, s})
	}
	return all
}

// tally is what was admitted, by key and end of the window.
type tally struct {
	mu       sync.Mutex
	admitted map[string]map[time.Time]int64
}

func (y *tally) note(key string, r reservoir.Result, n int64) {
	if !r.Allowed {
		return
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.admitted == nil {
		y.admitted = make(map[string]map[time.Time]int64)
	}
	if y.admitted[key] == nil {
		y.admitted[key] = make(map[time.Time]int64)
	}
	y.admitted[key][r.Reset] += n
}

// windows sums a key's tokens by window. Ends that lie closer together than half a
// window are one window that two stores have opened.
func (y *tally) windows(key string, long time.Duration) (ends []time.Time, sums []int64) {
	for _, end := range slices.SortedFunc(maps.Keys(y.admitted[key]), time.Time.Compare) {
		if last := len(ends) - 1; last >= 0 && end.Sub(ends[last]) < long/2 {
			sums[last] += y.admitted[key][end]
			continue
		}
		ends, sums = append(ends, end), append(sums, y.admitted[key][end])
	}
	return ends, sums
}

// judge requires that no window of any key has more than the limit, and that none
// opens while another one of its key runs, but for so long before its end. Where
// the stores' clocks are skewed, what is admitted when one store is in the next
// window and the other is not may be told as either's.
func (y *tally) judge(t testing.TB, l reservoir.Limit, early, skew time.Duration) (whole int) {
	t.Helper()
	most := l.Tokens + 4*l.Tokens*int64(skew)/int64(l.Window)
	for key := range y.admitted {
		ends, sums := y.windows(key, l.Window)
		for i := range ends {
			require.LessOrEqual(t, sums[i], most, "%s %v: %v", key, ends[i], y.admitted[key])
			if i > 0 {
				require.GreaterOrEqual(t, ends[i].Sub(ends[i-1]), l.Window-early, "%s: a second limit", key)
			}
			if sums[i] >= l.Tokens*99/100 {
				whole++
			}
		}
	}
	return whole
}

// there is a whole roll-out, and back.
var there = [][2]float64{{0, 50}, {50, 50}, {50, 100}, {100, 100}, {0, 100}, {0, 0}}

var modes = map[string]reservoir.Option{
	"adaptive": reservoir.WithBatch(reservoir.Adaptive(1, 0)),
	"fixed":    reservoir.WithBatch(reservoir.Fixed(20)),
	"direct":   reservoir.WithDirect(),
}

// traffic is twice the limit on every key, until the end. A tenth of it is refunded.
func traffic(t testing.TB, all []process, keys int, l reservoir.Limit, y *tally, stop *atomic.Bool, failed func(error)) *sync.WaitGroup {
	var wg sync.WaitGroup
	pause := l.Window * time.Duration(len(all)) / time.Duration(2*l.Tokens)
	for _, p := range all {
		for k := range keys {
			key := fmt.Sprint("key", k)
			wg.Go(func() {
				for !stop.Load() {
					r, err := p.Allow(t.Context(), key)
					if err != nil {
						failed(err)
					}
					y.note(key, r, 1)
					if r.Allowed && rand.N(10) == 0 {
						if err := p.Refund(t.Context(), key, r); err != nil {
							failed(err)
						}
						y.note(key, r, -1) // as far as we know
					}
					time.Sleep(rand.N(2 * pause))
				}
			})
		}
	}
	return &wg
}

// From 0 to 50 to 100 % and back, under load from four processes that hear of each
// step one after the other: no error, no window over its limit, none that begins
// before the one before it is over. In the fast one every step comes within a
// window of the last; in the slow one the keys are on one side in between.
func TestThereAndBack(t *testing.T) {
	const keys = 4
	l := reservoir.PerMinute(300)
	for name, mode := range modes {
		for _, pace := range []time.Duration{10 * time.Second, 35 * time.Second} {
			t.Run(fmt.Sprint(name, " ", pace), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					old, new := newFar(0), newFar(0)
					all := processes(t, 4, old, new, l, mode)
					var y tally
					var stop atomic.Bool
					wg := traffic(t, all, keys, l, &y, &stop, func(err error) { t.Error(err) })
					for _, step := range there {
						for _, p := range all {
							time.Sleep(pace)
							require.NoError(t, p.store.SetPercent(step[0], step[1]))
						}
					}
					time.Sleep(3 * l.Window)
					stop.Store(true)
					wg.Wait()
					whole := y.judge(t, l, 50*time.Millisecond, 0)
					windows := 0
					for key := range y.admitted {
						_, sums := y.windows(key, l.Window)
						windows += len(sums)
					}
					require.GreaterOrEqual(t, windows, 7*keys)
					require.GreaterOrEqual(t, whole, (windows-keys)*9/10, "windows that are used up")
				})
			})
		}
	}
}

// Requests and replies get lost, and the clocks of the stores differ: there are
// errors, but no limit is exceeded. By how much the clocks differ windows may begin
// before others have ended.
func TestLossAndSkew(t *testing.T) {
	const keys = 4
	l := reservoir.PerMinute(300)
	for _, name := range []string{"adaptive", "direct"} { // statements, and takes
		mode := modes[name]
		for _, ahead := range []time.Duration{-3 * time.Second, -5 * time.Millisecond, 0, 300 * time.Millisecond} {
			t.Run(fmt.Sprint(name, " ", ahead), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					old, new := newFar(0), newFar(ahead)
					old.loses.Store(30)
					new.loses.Store(30)
					all := processes(t, 4, old, new, l, mode)
					var y tally
					var stop atomic.Bool
					var errs atomic.Int64
					wg := traffic(t, all, keys, l, &y, &stop, func(error) { errs.Add(1) })
					for _, step := range there {
						for _, p := range all {
							time.Sleep(20 * time.Second)
							require.NoError(t, p.store.SetPercent(step[0], step[1]))
						}
					}
					time.Sleep(l.Window)
					stop.Store(true)
					wg.Wait()
					early := 100*time.Millisecond + ahead.Abs()
					if ahead != 0 { // a window that opens a moment early may end a whole second early
						early = early.Truncate(time.Second) + time.Second
					}
					y.judge(t, l, early, ahead.Abs())
					require.Positive(t, errs.Load(), "something was lost")
				})
			})
		}
	}
}
