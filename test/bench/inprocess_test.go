package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/ulule/limiter/v3"
	ululemem "github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// Kinds that answer from memory. The library's own use the embedded store, so they
// include windows and restocking.
var (
	ourKey     = inProcess("reservoir, Key.Allow", func(r *rig) peer { return byHandle(openLimiter(memstore.New(), r.limit), true) })
	ourAllow   = inProcess("reservoir, Allow", func(r *rig) peer { return byKey(openLimiter(memstore.New(), r.limit), true) })
	ourRefusal = inProcess("reservoir, Allow, refused", func(*rig) peer { return byKey(spent(), false) })
	ourNo      = inProcess("reservoir, Key.Allow, refused", func(*rig) peer { return byHandle(spent(), false) })
	bareHandle = inProcess("floor: clock, CAS", openBareHandle)
	bareMap    = inProcess("floor: sync.Map, clock, CAS", openBareMap)
	xTime      = inProcess("x/time/rate", openXTime)
	xTimes     = inProcess("sync.Map, x/time/rate", openXTimes)
	goLimiter  = inProcess("sethvargo/go-limiter, memory", openGoLimiter)
	ululeMem   = inProcess("ulule/limiter, memory", openUluleMem)
)

// inProcess returns a kind that is timed even more rarely than inMemory says.
func inProcess(name string, open func(*rig) peer) kind {
	return kind{name: name, every: 1021, open: open}
}

// byHandle uses one key; want is the expected answer.
func byHandle(l *reservoir.Limiter, want bool) peer {
	key := l.Key("hot")
	return ourPeer(l, func(w *worker) bool {
		r, err := key.Allow(w.ctx)
		return err == nil && r.Allowed == want
	})
}

func byKey(l *reservoir.Limiter, want bool) peer {
	return ourPeer(l, func(w *worker) bool {
		r, err := l.Allow(w.ctx, w.keys.next())
		if err != nil {
			w.err = err
		}
		return err == nil && r.Allowed == want
	})
}

func ourPeer(l *reservoir.Limiter, ok func(*worker) bool) peer {
	return peer{ok: ok, close: func() error { return l.Close(context.Background()) }}
}

// spent returns a limiter that caches a denial of the key hot, for a day.
func spent() *reservoir.Limiter {
	l := openLimiter(memstore.New(), reservoir.Limit{Tokens: 1, Window: 24 * time.Hour})
	for range 2 { // the first may take the only token
		must(l.Allow(context.Background(), "hot"))
	}
	return l
}

// bare is the least that a check in memory can do: read the clock, compare, and take one
// token by compare-and-swap. It is not a usable limiter. It shows what the machine at
// hand allows at best.
type bare struct {
	began time.Time
	taken atomic.Int64
}

func newBare() *bare { return &bare{began: time.Now()} }

func (b *bare) take() bool {
	if time.Since(b.began) > 24*time.Hour {
		return false
	}
	for {
		n := b.taken.Load()
		if n >= 1<<60 {
			return false
		}
		if b.taken.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func openBareHandle(*rig) peer {
	b := newBare()
	return peer{ok: func(*worker) bool { return b.take() }}
}

// openBareMap adds the look-up of the key.
func openBareMap(*rig) peer {
	var keys perKey[bare]
	return peer{ok: func(w *worker) bool { return keys.get(w.keys.next(), newBare).take() }}
}

// perKey is the map that a program needs around limiters of one key.
type perKey[T any] struct{ sync.Map } // string → *T

func (p *perKey[T]) get(key string, make func() *T) *T {
	if v, ok := p.Load(key); ok {
		return v.(*T)
	}
	v, _ := p.LoadOrStore(key, make())
	return v.(*T)
}

func newRate(r *rig) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(float64(r.limit.Tokens)/r.limit.Window.Seconds()), int(r.limit.Tokens))
}

func openXTime(r *rig) peer {
	l := newRate(r)
	return peer{ok: func(*worker) bool { return l.Allow() }}
}

func openXTimes(r *rig) peer {
	var keys perKey[rate.Limiter]
	make := func() *rate.Limiter { return newRate(r) }
	return peer{ok: func(w *worker) bool { return keys.get(w.keys.next(), make).Allow() }}
}

// openGoLimiter has tokens for a day. At more than some tens of thousands a second,
// go-limiter 0.7.1 hands out the first window's tokens and then almost none, because it
// uses nanoseconds per token as the number of tokens to refill.
func openGoLimiter(*rig) peer {
	s := must(memorystore.New(&memorystore.Config{Tokens: 1 << 50, Interval: 24 * time.Hour}))
	return peer{ok: func(w *worker) bool {
		_, _, _, ok, err := s.Take(w.ctx, w.keys.next())
		return err == nil && ok
	}, close: func() error { return s.Close(context.Background()) }}
}

// openUluleMem omits the store's cleaner, a goroutine that cannot be stopped.
func openUluleMem(r *rig) peer {
	return ululeOver(r, ululemem.NewStoreWithOptions(limiter.StoreOptions{Prefix: limiter.DefaultPrefix}))
}

// memoryLine is the cost of an idle key that was used once.
type memoryLine struct {
	kind  kind
	bytes float64       // of live heap per key, including its name and its part of the map
	gc    time.Duration // a whole collection while the keys are held
}

// idleKinds hold keys in the process.
var idleKinds = []kind{{name: "reservoir", open: openGranting}, xTimes, goLimiter, ululeMem}

// weigh uses n keys of 20 bytes once each and measures the memory that they keep.
func weigh(ctx context.Context, k kind, n int) (m memoryLine, err error) {
	p := k.open(&rig{limit: coldLimit})
	before := live()
	if good := used(ctx, p, n); good != int64(n) {
		err = fmt.Errorf("%s: %d keys of %d admitted", k.name, good, n)
	}
	after := live()
	begin := time.Now()
	runtime.GC()
	m = memoryLine{kind: k, bytes: float64(after-before) / float64(n), gc: time.Since(begin)}
	runtime.KeepAlive(p.ok)
	return m, errors.Join(err, p.end())
}

// used asks for n keys with a worker that becomes garbage, so that weigh counts only the
// keys that the limiter keeps.
func used(ctx context.Context, p peer, n int) (good int64) {
	w := &worker{ctx: ctx, keys: keys{list: make([]string, n)}}
	for i := range w.keys.list {
		w.keys.list[i] = fmt.Sprintf("%020d", i)
	}
	w.make(p, n)
	return w.good
}

// live returns the bytes in use. Objects with a finalizer need the second collection.
func live() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// granting is a store without state, so that only the limiter is weighed, as over a
// Redis. It grants what is needed. The limiter makes no other calls.
type granting struct {
	backend.Store
	ends time.Time
}

func (g granting) Sync(_ context.Context, q backend.Statement) (backend.Reply, error) {
	state := backend.State{Window: backend.Window{End: g.ends.UnixMilli()}, Left: time.Until(g.ends), Remaining: q.Limit.Tokens - 1}
	mine := q.Mine + q.Change + q.Need
	return backend.Reply{State: state, Now: time.Now().UnixMicro(), Grant: q.Need, Mine: mine, Used: mine, Clients: 1}, nil
}

func openGranting(r *rig) peer {
	ends := time.Now().Add(r.limit.Window).Truncate(time.Millisecond)
	return byKey(openLimiter(granting{ends: ends}, r.limit), true)
}
