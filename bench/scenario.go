package bench

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
)

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

// once reports whether every key is used once.
func (s scenario) once() bool { return s.list == nil }

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

// farDelay is what a proxy adds to each round trip.
const farDelay = time.Millisecond

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
		ours, direct, rule1000, listing1000, rule25, listing25, redisRate, rueidisLimiter, ulule, throttledRedis, evalsha, rueidisBare,
	}
	coldKeys = []kind{cold, direct, redisRate, rueidisLimiter, ulule, throttledRedis, evalsha, rueidisBare}
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
// because timing more would measure the clock. The first timed request differs between
// workers, because otherwise first requests would have more than their share in the
// quantiles.
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
