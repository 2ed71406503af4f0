package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// memoryLine is what a key costs that was used once and is idle.
type memoryLine struct {
	kind  kind
	bytes float64       // of live heap a key, the key's own and the map's part included
	gc    time.Duration // a whole collection while the keys are held
}

// idleKinds hold keys in the process.
var idleKinds = []kind{{name: "reservoir", open: openGranting}, xTimes, goLimiter, ululeMem}

// weigh uses n keys of 20 bytes once each and measures what is left of them.
func weigh(ctx context.Context, k kind, n int) (m memoryLine, err error) {
	p := k.set(&rig{limit: coldLimit})
	before := live()
	if good := p.loop(idleKeys(ctx, n), n); good != int64(n) {
		err = fmt.Errorf("%s: %d keys of %d admitted", k.name, good, n)
	}
	after := live()
	begin := time.Now()
	runtime.GC()
	m = memoryLine{kind: k, bytes: float64(after-before) / float64(n), gc: time.Since(begin)}
	runtime.KeepAlive(p.loop)
	return m, errors.Join(err, p.close())
}

// idleKeys is a worker that nothing refers to after its use, so that only those
// keys are counted that the limiter keeps.
func idleKeys(ctx context.Context, n int) *worker {
	w := &worker{ctx: ctx, keys: keys{list: make([]string, n)}}
	for i := range w.keys.list {
		w.keys.list[i] = fmt.Sprintf("%020d", i)
	}
	return w
}

// live is the bytes that are in use. What has a finalizer goes with the second
// collection.
func live() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// granting is a store that keeps nothing, so that a limiter over it is weighed
// alone, as over a Redis. It grants what is needed; other calls are not made.
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

// bytesOf returns the weight of a kind's key, or NaN if it was not weighed.
func bytesOf(all []memoryLine, name string) float64 {
	for _, m := range all {
		if m.kind.name == name {
			return m.bytes
		}
	}
	return math.NaN()
}
