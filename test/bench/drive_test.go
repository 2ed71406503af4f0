package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
)

// driver runs scenarios. All kinds of a scenario take turns, slice by slice, so that
// other work of the machine slows all of them alike. Figures are compared within a round.
type driver struct {
	rounds    int           // of a run
	every     int           // at least one in this many requests is timed
	slice     time.Duration // of one kind in one round
	warm      time.Duration // before each slice, not counted
	near, far *rig          // connections to Redis, and by a proxy that delays
	count     func(commands ...string) int64
	busy      func(commands ...string) time.Duration
	flush     func() error // deletes all that Redis holds

	slices int // run so far
}

// line is the result of one kind in one scenario.
type line struct {
	scenario scenario
	kind     kind
	runs     [][]sample // by round
	peer     peer       // while the scenario is under way
}

// sample is the result of one kind in one slice, or of one of its workers.
type sample struct {
	asked, good int64 // requests, and those with the expected answer
	elapsed     time.Duration
	latency     sim.Latency
	commands    int64         // that Redis executed for it
	busy        time.Duration // how long that took Redis
	mallocs     uint64
	err         error // one of the requests' errors
}

func newSample() sample { return sample{latency: sim.NewLatency()} }

// run runs s once and returns a line for each of its kinds.
func (d *driver) run(ctx context.Context, s scenario) (all []*line, err error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(s.procs))
	r := d.rig(s)
	defer func() { err = errors.Join(err, d.flush()) }()
	for _, k := range s.kinds {
		l := &line{scenario: s, kind: k, runs: make([][]sample, 1), peer: k.open(r)}
		defer func() { err = errors.Join(err, l.peer.end()) }()
		all = append(all, l)
	}
	for round := range d.rounds {
		for i := range all { // no kind always goes first
			l := all[(i+round)%len(all)]
			l.runs[0] = append(l.runs[0], d.measure(ctx, l))
			if s.list == nil { // a limiter of all keys so far would grow from slice to slice
				err = errors.Join(err, l.peer.end(), d.flush())
				l.peer = l.kind.open(r)
			}
		}
	}
	return all, err
}

func (d *driver) rig(s scenario) *rig {
	r := *d.near
	if s.delay > 0 {
		r = *d.far
	}
	r.limit = s.limit
	return &r
}

func (d *driver) measure(ctx context.Context, l *line) sample {
	slice, warm := d.slice, d.warm
	if !l.scenario.redis() { // in half the time a memory answers more often than a network in the whole
		slice, warm = slice/2, warm/2
	}
	workers := d.workers(ctx, l.scenario)
	d.together(workers, warm, l)
	for _, w := range workers {
		w.sample = newSample()
	}
	runtime.GC() // so that it does not collect the previous kind's garbage
	commands, busy := d.count(l.kind.sends...), d.busy(l.kind.sends...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	elapsed := d.together(workers, slice, l)
	runtime.ReadMemStats(&after)
	s := total(workers)
	s.elapsed, s.mallocs = elapsed, after.Mallocs-before.Mallocs
	s.commands, s.busy = d.count(l.kind.sends...)-commands, d.busy(l.kind.sends...)-busy
	return s
}

// workers returns the workers of a slice. They share no key with another slice if each
// key is used once.
func (d *driver) workers(ctx context.Context, s scenario) []*worker {
	workers := make([]*worker, s.goroutines)
	for i := range workers {
		own := keys{list: s.list, at: i * len(s.list) / s.goroutines, once: fmt.Appendf(nil, "%s:%d:%d:", s.name, d.slices, i)}
		workers[i] = &worker{ctx: ctx, keys: own, first: rand.Int(), sample: newSample()}
	}
	d.slices++
	return workers
}

func total(workers []*worker) sample {
	s := newSample()
	for _, w := range workers {
		s.asked, s.good, s.err = s.asked+w.asked, s.good+w.good, cmp.Or(s.err, w.err)
		s.latency.Merge(w.latency.Histogram)
	}
	return s
}

// together runs all workers for about length and returns how long they took.
func (d *driver) together(workers []*worker, length time.Duration, l *line) time.Duration {
	var stop atomic.Bool
	defer time.AfterFunc(length, func() { stop.Store(true) }).Stop()
	every := min(l.kind.every, d.every)
	return inParallel(workers, func(_ int, w *worker) { w.until(&stop, l.peer, every) })
}

// inParallel runs f for each worker in its own goroutine and returns how long that took.
func inParallel(workers []*worker, f func(i int, w *worker)) time.Duration {
	var wg sync.WaitGroup
	begin := time.Now()
	for i, w := range workers {
		wg.Go(func() { f(i, w) })
	}
	wg.Wait()
	return time.Since(begin)
}

// scenario is a situation and the kinds that run in it.
type scenario struct {
	name, title string
	kinds       []kind
	limit       reservoir.Limit
	list        []string // keys; nil = each key is used once
	goroutines  int
	procs       int           // GOMAXPROCS; 0 leaves it as it is
	delay       time.Duration // added to every round trip
}

// redis reports whether requests may go to Redis.
func (s scenario) redis() bool { return s.procs == 0 }

// No kind can serve hotLimit and manyLimit, so none refuses. The window of hotLimit is
// short, so that a run includes resets. The window of manyLimit is longer, because ten
// thousand resets a second would be a measurement of resets.
var (
	hotLimit  = reservoir.PerSecond(100_000_000)
	manyLimit = reservoir.PerMinute(60 * 100_000_000)
	coldLimit = reservoir.PerMinute(1_000)
)

const farDelay = time.Millisecond // that a proxy adds to each round trip

func scenarios() []scenario {
	hot, evenly, draws := []string{"hot"}, shuffled(10_000), zipf(10_000, 1.1)
	return []scenario{
		{"core-1", "In process, one key, one core", oneKey, hotLimit, hot, 1, 1, 0},
		{"core-1-keys-10k", "In process, 10,000 keys, one core", tenThousand, manyLimit, evenly, 1, 1, 0},
		{"core-2", "In process, one key, two cores, 128 goroutines", contended, hotLimit, hot, 2 * 64, 2, 0},
		{"hot-64", "Redis, one key, 64 goroutines", overRedis, hotLimit, hot, 64, 0, 0},
		{"hot-512", "Redis, one key, 512 goroutines", overRedis, hotLimit, hot, 512, 0, 0},
		{"far-64", "Redis 1 ms further away, one key, 64 goroutines", overRedis, hotLimit, hot, 64, 0, farDelay},
		{"zipf-512", "Redis, 10,000 keys by zipf(1.1), 512 goroutines", overRedis, manyLimit, draws, 512, 0, 0},
		{"once-512", "Redis, every key once, 512 goroutines", coldKeys, coldLimit, nil, 512, 0, 0},
		{"once-1", "Redis, every key once, 1 goroutine", coldKeys, coldLimit, nil, 1, 0, 0},
	}
}

var (
	oneKey      = []kind{ourKey, ourAllow, ourNo, ourRefusal, bareHandle, bareMap, xTime, goLimiter, ululeMem}
	tenThousand = []kind{ourAllow, bareMap, xTimes, goLimiter, ululeMem}
	contended   = []kind{ourKey, ourAllow, bareHandle, bareMap, xTime, goLimiter, ululeMem}
	overRedis   = []kind{
		ours, direct, ruleShare, rule1000, redisRate, rueidisLimiter, ulule, evalsha, rueidisBare,
	}
	coldKeys = []kind{cold, direct, redisRate, rueidisLimiter, ulule, evalsha, rueidisBare}
)

// shuffled returns n keys in random order, the same in each run.
func shuffled(n int) []string {
	list := sim.Keys(n)
	rand.New(rand.NewPCG(1, 1)).Shuffle(n, func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// zipf returns draws in which key i of n has a share proportional to 1/i^s, the same in
// each run.
func zipf(n int, s float64) []string {
	names, pick, list := sim.Keys(n), sim.Picker(rand.New(rand.NewPCG(1, 1)), n, s), make([]string, 1<<18)
	for i := range list {
		list[i] = names[pick()]
	}
	return list
}

// worker makes the requests of one goroutine and records their results. Workers share
// nothing while they run.
type worker struct {
	ctx   context.Context
	keys  keys
	first int // a random number of requests before the first timed one
	sample
}

// until makes at least one request, and further ones until stop. It times one in every,
// because timing more would measure the clock. Which one is timed first differs between
// workers, so that first requests have no more than their share in the quantiles.
func (w *worker) until(stop *atomic.Bool, p peer, every int) {
	for n := w.first % every; ; n = every - 1 {
		w.make(p, n)
		if stop.Load() && w.asked > 0 {
			return
		}
		w.timed(p)
	}
}

func (w *worker) timed(p peer) {
	begin := time.Now()
	w.make(p, 1)
	w.latency.Note(time.Since(begin))
}

// make makes n requests. The indirect call of the peer takes about a nanosecond, the same
// for all peers.
func (w *worker) make(p peer, n int) {
	for range n {
		if p.ok(w) {
			w.good++
		}
	}
	w.asked += int64(n)
}

// keys yields the keys that a worker asks for: those of a list, repeatedly, or new ones
// without a list.
type keys struct {
	list []string
	at   int
	once []byte // prefix of new keys, if list is nil
}

// next returns the list's next key, or a new one without a list. It is small enough to be
// inlined.
func (k *keys) next() string {
	if k.at++; k.at < len(k.list) {
		return k.list[k.at]
	}
	return k.further()
}

func (k *keys) further() string {
	if k.list == nil {
		return string(strconv.AppendInt(k.once, int64(k.at), 36))
	}
	k.at = 0
	return k.list[0]
}
