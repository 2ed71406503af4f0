package bench

import (
	"context"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
	throttledmem "github.com/throttled/throttled/v2/store/memstore"
	"github.com/ulule/limiter/v3"
	ululemem "github.com/ulule/limiter/v3/drivers/store/memory"
	uber "go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// Kinds that are served from memory. The library's own are over the embedded
// store, windows and restocking included.
var (
	ourKey     = inProcess("reservoir, Key.Allow", func(r *rig) peer { return byHandle(openLimiter(memstore.New(), r.limit), true) })
	ourAllow   = inProcess("reservoir, Allow", func(r *rig) peer { return byKey(openLimiter(memstore.New(), r.limit), true) })
	ourRefusal = inProcess("reservoir, Allow, refused", func(*rig) peer { return byKey(spent(), false) })
	ourNo      = inProcess("reservoir, Key.Allow, refused", func(*rig) peer { return byHandle(spent(), false) })
	bareHandle = inProcess("floor: clock, CAS", openBareHandle)
	bareMap    = inProcess("floor: sync.Map, clock, CAS", openBareMap)
	xTime      = inProcess("x/time/rate", openXTime)
	xTimes     = inProcess("sync.Map, x/time/rate", openXTimes)
	uberTake   = inProcess("uber-go/ratelimit", openUber)
	goLimiter  = inProcess("sethvargo/go-limiter, memory", openGoLimiter)
	ululeMem   = inProcess("ulule/limiter, memory", openUluleMem)
	throttles  = inProcess("throttled, memory", openThrottledMem)
)

// inProcess is timed even more rarely than what is in memory mostly.
func inProcess(name string, open func(*rig) peer) kind {
	return kind{name: name, every: 1021, open: open}
}

// byHandle uses one key; want is the answer that is looked for.
func byHandle(l *reservoir.Limiter, want bool) peer {
	key := l.Key("hot")
	return ourPeer(l, func(w *worker) bool {
		r, err := key.Allow(w.ctx)
		return err == nil && r.Allowed == want
	})
}

func byKey(l *reservoir.Limiter, want bool) peer {
	return ourPeer(l, func(w *worker) bool {
		r, err := l.Allow(w.ctx, w.keys.cycle())
		return err == nil && r.Allowed == want
	})
}

func ourPeer(l *reservoir.Limiter, ok func(*worker) bool) peer {
	return peer{
		loop:   looping(ok),
		close:  func() error { return l.Close(context.Background()) },
		waited: func() int64 { return l.Stats().Waited },
	}
}

// spent returns a limiter whose key hot is known to be used up, for a day.
func spent() *reservoir.Limiter {
	l := openLimiter(memstore.New(), reservoir.Limit{Tokens: 1, Window: 24 * time.Hour})
	for range 2 { // the first may take the only token
		must(l.Allow(context.Background(), "hot"))
	}
	return l
}

func openXTime(r *rig) peer {
	l := rate.NewLimiter(rate.Limit(r.perSecond()), int(r.limit.Tokens))
	return peer{loop: looping(func(w *worker) bool { return l.Allow() })}
}

// openXTimes is what one writes who limits by key within a process.
func openXTimes(r *rig) peer {
	m := perKey[rate.Limiter]{make: func(string) *rate.Limiter {
		return rate.NewLimiter(rate.Limit(r.perSecond()), int(r.limit.Tokens))
	}}
	return peer{loop: looping(func(w *worker) bool { return m.get(w.keys.cycle()).Allow() })}
}

// openUber never refuses, it sleeps: at a rate of one in a nanosecond, never.
func openUber(*rig) peer {
	l := uber.New(int(time.Second))
	return peer{loop: looping(func(*worker) bool {
		l.Take()
		return true
	})}
}

// openGoLimiter has tokens for a day: at more than some tens of thousands in a
// second go-limiter 0.7.1 hands out the first window's and then next to none, for
// it refills by nanoseconds per token where it means tokens.
func openGoLimiter(*rig) peer {
	s := must(memorystore.New(&memorystore.Config{Tokens: 1 << 50, Interval: 24 * time.Hour}))
	return peer{loop: looping(func(w *worker) bool {
		_, _, _, ok, err := s.Take(w.ctx, w.keys.cycle())
		return err == nil && ok
	}), close: func() error { return s.Close(context.Background()) }}
}

// openUluleMem does without the store's cleaner, a goroutine that nothing ends.
func openUluleMem(r *rig) peer {
	s := ululemem.NewStoreWithOptions(limiter.StoreOptions{Prefix: limiter.DefaultPrefix})
	l := limiter.New(s, limiter.Rate{Period: r.limit.Window, Limit: r.limit.Tokens})
	return peer{loop: looping(func(w *worker) bool {
		c, err := l.Get(w.ctx, w.keys.cycle())
		return err == nil && !c.Reached
	})}
}

func openThrottledMem(r *rig) peer { return throttle(r, must(throttledmem.NewCtx(0))) }
