package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

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

func (g granting) Sync(_ context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	state := backend.State{Window: backend.Window(g.ends.UnixMilli()), Left: time.Until(g.ends), Remaining: r.Limit.Tokens - 1}
	return backend.SyncReply{State: state, Grant: r.Need, Granted: r.Granted + r.Need, Returned: r.Returned, Clients: 1}, nil
}

func openGranting(r *rig) peer {
	ends := time.Now().Add(r.limit.Window).Truncate(time.Millisecond)
	return byKey(openLimiter(granting{ends: ends}, r.limit), true)
}
