// Package driver measures what a version of the library costs, and what its peers do. It is
// built twice, once in this tree and once in a tree of another commit into which it is copied.
// So it uses nothing of the library but New, AllowN, Close, a few old options and
// redisstore.New, and brings the library into the states that it measures by these.
package driver

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
)

// Job is one measurement. Jobs are sent as lines of JSON, and each is answered by a [Figures].
type Job struct {
	What   string
	Server string // address of the Redis
	N      int    // requests of a statement's job, at least

	// Of loads:
	Way     string // address of the Redis or of a proxy before it
	Kind    string // default, direct, go-redis or rueidis
	Keys    string // one, each or new
	Callers int
	Slice   time.Duration
}

// Figures are what a job measured.
type Figures struct {
	Requests int64
	Calls    int64         // scripts that Redis ran
	Inner    int64         // commands that these called
	Busy     time.Duration // how long the scripts ran
	CPU      time.Duration // of the server's main thread
	Bytes    float64       // in Redis, of a key
	Elapsed  time.Duration
	P50, P99 time.Duration
	Allocs   float64 // for each request
	Err      string
}

// Serve does the jobs of in, one after the other, until it ends.
func Serve(in io.Reader, out io.Writer) error {
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var j Job
		switch err := dec.Decode(&j); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		f, err := Do(j)
		if err != nil {
			f.Err = err.Error()
		}
		if err := enc.Encode(f); err != nil {
			return err
		}
	}
}

// rig is what a job is measured with.
type rig struct {
	Job
	Figures
	ctx    context.Context
	admin  *redis.Client // asks for statistics, by no proxy
	client *redis.Client
	open   []func()
}

// Do does a job. Its keys must not be in use; they stay behind.
func Do(j Job) (f Figures, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: %v", j.What, p)
		}
	}()
	r := &rig{Job: j, ctx: context.Background()}
	if r.Way == "" {
		r.Way = r.Server
	}
	r.admin = redis.NewClient(&redis.Options{Addr: r.Server})
	r.client = redis.NewClient(&redis.Options{Addr: r.Way, PoolSize: 64, ContextTimeoutEnabled: true}) // as redisstore.Options
	defer func() {
		for _, end := range slices.Backward(r.open) {
			end()
		}
		_ = r.client.Close()
		_ = r.admin.Close()
	}()
	if do := statements[j.What]; do != nil {
		do(r)
	} else {
		r.load()
	}
	return r.Figures, nil
}

// must stops a job at an error; Do reports it.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// plenty is more than a job asks for.
var plenty = reservoir.Limit{Tokens: 1 << 40, Window: time.Hour}

// limiter returns a limiter with a store of its own over the client of the rig. Its fetch timeout is
// long: each of 512 callers that are served from memory may run for 10 ms before a reply is read.
func (r *rig) limiter(l reservoir.Limit, opts ...reservoir.Option) *reservoir.Limiter {
	store := redisstore.New(r.client)
	all := append([]reservoir.Option{reservoir.WithFetchTimeout(time.Minute), reservoir.WithMaxKeys(math.MaxInt32)}, opts...)
	limiter, err := reservoir.New(store, l, all...)
	must(err)
	r.open = append(r.open, func() {
		_ = limiter.Close(r.ctx)
		_ = store.Close()
	})
	return limiter
}

// ask makes a request for one token, which must get the answer.
func (r *rig) ask(l *reservoir.Limiter, key string, want bool) {
	got, err := l.AllowN(r.ctx, key, 1)
	must(err)
	if got.Allowed != want {
		panic(fmt.Sprintf("allowed %v, want %v", got.Allowed, want))
	}
}

// key returns the i-th key, of 20 bytes.
func key(i int) string { return fmt.Sprintf("%020d", i) }

const workers = 16 // that make the requests of statements

// each calls do for 0 to n−1, in several goroutines. Worker w gets the numbers that are w modulo
// workers, in order.
func (r *rig) each(n int, do func(i int)) {
	var failed atomic.Pointer[any]
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					failed.Store(&p)
				}
			}()
			for i := w; i < n; i += workers {
				do(i)
			}
		})
	}
	wg.Wait()
	if p := failed.Load(); p != nil {
		panic(*p)
	}
}

// counted makes n requests by do and counts what they cost the server.
func (r *rig) counted(n int, do func(i int)) {
	before := r.stats()
	begin := time.Now()
	r.each(n, do)
	r.Elapsed = time.Since(begin)
	r.since(before, int64(n))
}

func (r *rig) since(before stats, requests int64) {
	after := r.stats()
	r.Requests, r.Calls, r.Inner = requests, after.scripts-before.scripts, after.inner-before.inner
	r.Busy, r.CPU = after.busy-before.busy, after.cpu-before.cpu
}

// stats are what the server has done so far.
type stats struct {
	scripts, inner int64
	busy, cpu      time.Duration
}

// outer are commands that no script calls.
var outer = []string{"evalsha", "eval", "info", "ping", "hello", "client", "auth", "select", "script", "flushdb", "config", "subscribe", "ssubscribe", "unsubscribe", "memory", "scan", "slowlog", "command", "cluster"}

func (r *rig) stats() (s stats) {
	info, err := r.admin.InfoMap(r.ctx, "commandstats").Result()
	must(err)
	for name, figures := range info["Commandstats"] {
		name, _, _ = strings.Cut(strings.TrimPrefix(name, "cmdstat_"), "|")
		var calls, us int64
		_, err := fmt.Sscanf(figures, "calls=%d,usec=%d,", &calls, &us)
		must(err)
		switch {
		case name == "evalsha":
			s.scripts, s.busy = calls, time.Duration(us)*time.Microsecond
		case !slices.Contains(outer, name):
			s.inner += calls
		}
	}
	server, err := r.admin.InfoMap(r.ctx, "server").Result()
	must(err)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%s/schedstat", server["Server"]["process_id"])) // of the main thread
	must(err)
	ns, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
	must(err)
	s.cpu = time.Duration(ns)
	return s
}

// statements are the jobs that bring Redis into a state and count what one call costs then.
var statements = map[string]func(r *rig){
	// The limiter has an account in an open window, and gets one token by each call.
	"steady": func(r *rig) { r.steady(1) },
	// So have 20 limiters, which take turns.
	"steady, 20 clients": func(r *rig) { r.steady(20) },
	// The window is open, and the limiter has no account.
	"first contact": func(r *rig) {
		a, b := r.limiter(plenty, exactly()), r.limiter(plenty, exactly())
		r.each(r.N, func(i int) { r.ask(a, key(i), true) })
		r.counted(r.N, func(i int) { r.ask(b, key(i), true) })
	},
	"opening": func(r *rig) {
		l := r.limiter(plenty, exactly())
		r.counted(r.N, func(i int) { r.ask(l, key(i), true) })
	},
	// The limit is used up, and no tokens lie idle.
	"refused": func(r *rig) {
		one := reservoir.Limit{Tokens: 1, Window: time.Hour}
		a, b := r.limiter(one, exactly()), r.limiter(one, exactly())
		r.each(r.N, func(i int) { r.ask(a, key(i), true) })
		r.counted(r.N, func(i int) { r.ask(b, key(i), false) })
	},
	"direct, hot": func(r *rig) { r.direct(workers, reservoir.WithDirect()) },
	"direct, new": func(r *rig) { r.direct(r.N, reservoir.WithDirect()) },
	// Of keys past the bound the limiter knows nothing.
	"no account, hot": func(r *rig) { r.direct(workers, reservoir.WithMaxKeys(0)) },
	"no account, new": func(r *rig) { r.direct(r.N, reservoir.WithMaxKeys(0)) },

	"RATE, hot":       func(r *rig) { r.bare(r.rate(), workers) },
	"RATE, new":       func(r *rig) { r.bare(r.rate(), r.N) },
	"redis_rate, hot": func(r *rig) { r.bare(r.redisRate(), workers) },
	"redis_rate, new": func(r *rig) { r.bare(r.redisRate(), r.N) },
	"EVALSHA of nothing": func(r *rig) {
		script := redis.NewScript("return 1")
		r.bare(func(key string) error { return script.Run(r.ctx, r.client, []string{key}).Err() }, workers)
	},

	"bytes, 1 client":   func(r *rig) { r.weigh(1) },
	"bytes, 20 clients": func(r *rig) { r.weigh(20) },
}

func (r *rig) steady(clients int) {
	var all []*reservoir.Limiter
	for range clients {
		all = append(all, r.limiter(plenty, exactly()))
	}
	r.each(clients*workers, func(i int) { r.ask(all[i/workers], key(i%workers), true) })
	r.counted(r.N, func(i int) { r.ask(all[i/workers%clients], key(i%workers), true) })
}

// direct counts what requests cost that are calls each, over so many keys.
func (r *rig) direct(keys int, opt reservoir.Option) {
	l := r.limiter(plenty, opt)
	r.each(workers, func(i int) { r.ask(l, "warm"+key(i), true) })
	if keys < r.N {
		r.each(keys, func(i int) { r.ask(l, key(i), true) })
	}
	r.counted(r.N, func(i int) { r.ask(l, key(i%keys), true) })
}

// bare counts what calls without the library cost, over so many keys.
func (r *rig) bare(call func(key string) error, keys int) {
	must(call("warm"))
	if keys < r.N {
		r.each(keys, func(i int) { must(call(key(i))) })
	}
	r.counted(r.N, func(i int) { must(call(key(i % keys))) })
}

//go:embed rate.lua
var rateScript string

// rate returns GitHub's script, which charges a token, by EVALSHA.
func (r *rig) rate() func(key string) error {
	script := redis.NewScript(rateScript)
	return func(key string) error {
		now := time.Now().Unix()
		return script.Run(r.ctx, r.client, []string{"{" + key + "}"}, 1, now+3600, now).Err()
	}
}

func (r *rig) redisRate() func(key string) error {
	l := redis_rate.NewLimiter(r.client)
	limit := redis_rate.Limit{Rate: 1 << 30, Burst: 1 << 30, Period: time.Hour}
	return func(key string) error {
		got, err := l.Allow(r.ctx, key, limit)
		if err == nil && got.Allowed == 0 {
			return errors.New("refused")
		}
		return err
	}
}

// rueidisRate is rate by rueidis.
func (r *rig) rueidisRate() func(key string) error {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{r.Way}, DisableCache: true})
	must(err)
	r.open = append(r.open, client.Close)
	script := rueidis.NewLuaScript(rateScript)
	return func(key string) error {
		now := time.Now().Unix()
		return script.Exec(r.ctx, client, []string{"{" + key + "}"}, []string{"1", strconv.FormatInt(now+3600, 10), strconv.FormatInt(now, 10)}).Error()
	}
}

// weigh measures what Redis keeps for a key that so many limiters have used once each.
func (r *rig) weigh(clients int) {
	const keys = 20
	for range clients {
		l := r.limiter(plenty, exactly())
		r.each(keys, func(i int) { r.ask(l, key(i), true) })
	}
	sum := int64(0)
	all := r.admin.Scan(r.ctx, 0, "*", 1000).Iterator()
	for all.Next(r.ctx) {
		n, err := r.admin.MemoryUsage(r.ctx, all.Val(), 0).Result()
		must(err)
		sum += n
	}
	must(all.Err())
	r.Requests, r.Bytes = int64(clients*keys), float64(sum)/keys
}

// load has callers make requests, each one after the other, for the slice.
func (r *rig) load() {
	ask := r.asking()
	every := 1
	if r.Kind == "default" && r.Keys != "new" {
		every = 101 // most are answered from memory, and to read the clock takes longer
	}
	var stop atomic.Bool
	var counts sync.Mutex
	var times []time.Duration
	requests, failure := int64(0), error(nil)
	run := func(round int, length time.Duration) time.Duration {
		stop.Store(false)
		defer time.AfterFunc(length, func() { stop.Store(true) }).Stop()
		begin := time.Now()
		var wg sync.WaitGroup
		for c := range r.Callers {
			wg.Go(func() {
				mine, n, err := make([]time.Duration, 0, 256), 0, error(nil)
				for ; err == nil && (n == 0 || !stop.Load()); n++ {
					name := r.named(round, c, n)
					if n%every > 0 {
						err = ask(name)
						continue
					}
					begin := time.Now()
					err = ask(name)
					mine = append(mine, time.Since(begin))
				}
				counts.Lock()
				defer counts.Unlock()
				times, requests, failure = append(times, mine...), requests+int64(n), errors.Join(failure, err)
			})
		}
		wg.Wait()
		return time.Since(begin)
	}
	run(0, r.Slice/4)
	times, requests = make([]time.Duration, 0, 1<<16), 0
	runtime.GC()
	before := r.stats()
	var m, n runtime.MemStats
	runtime.ReadMemStats(&m)
	r.Elapsed = run(1, r.Slice)
	runtime.ReadMemStats(&n)
	r.since(before, requests)
	must(failure)
	slices.Sort(times)
	r.P50, r.P99 = times[len(times)/2], times[len(times)*99/100]
	r.Allocs = float64(n.Mallocs-m.Mallocs) / float64(requests)
}

// named is the key of a caller's n-th request.
func (r *rig) named(round, caller, n int) string {
	switch r.Keys {
	case "one":
		return callerKeys[0]
	case "each":
		return callerKeys[caller]
	}
	return fmt.Sprintf("%d:%d:%d", round, caller, n)
}

var callerKeys = func() (all []string) {
	for i := range 1024 {
		all = append(all, key(i))
	}
	return all
}()

// asking returns what makes a request.
func (r *rig) asking() func(key string) error {
	var opts []reservoir.Option
	switch r.Kind {
	case "go-redis":
		return r.rate()
	case "rueidis":
		return r.rueidisRate()
	case "direct":
		opts = append(opts, reservoir.WithDirect())
	}
	l := r.limiter(plenty, opts...)
	return func(key string) error {
		got, err := l.AllowN(r.ctx, key, 1)
		if err == nil && !got.Allowed {
			return errors.New("refused")
		}
		return err
	}
}
