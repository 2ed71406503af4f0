package redisstore_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

var moving = flag.Duration("moving", time.Second, "how long TestMovingSlot keeps a slot on its way; 30s shows the same in larger numbers")

const (
	knownKeys = 4                       // of each limiter
	perSecond = 20                      // the limit of each key
	pace      = 20 * time.Millisecond   // from one MIGRATE to the next
	stall     = 1600 * time.Millisecond // of one MIGRATE
	grace     = 2 * time.Second         // after a fault, in which a limiter may still answer by it
)

// TestMovingSlot is what callers get while a slot moves, key by key, from one master to another, with windows
// of a second. Known keys were in use before, and ask twice as much as they may; fresh keys come up on the way. The keys of
// a counter leave one after the other. One MIGRATE meets a target that stalls, so that the source answers nobody.
//
// In any case no window is exceeded. Known keys get an error only while their own keys leave, and for a moment after
// that; fresh keys are served where the slot moves to. The stall is the exception: then the circuit opens, for a second.
func TestMovingSlot(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2, 0)
	for _, node := range c.Nodes {
		node.Do("config", "set", "cluster-node-timeout", 15000) // no node is taken for dead while it stalls
	}
	from, to := c.Nodes[0], c.Nodes[1]
	x := &movingSlot{t: t, c: c, from: from, to: to, slot: c.SlotsOf(from)[7], got: map[string]*outcomes{}, in: map[window]int64{}, faults: map[string][]span{}}
	x.play()
	for w, n := range x.in {
		require.LessOrEqual(t, n, int64(perSecond), "%v", w)
	}
	for _, phase := range slices.Sorted(maps.Keys(x.got)) {
		t.Logf("%-25s %v", phase, x.got[phase])
	}
	require.Positive(t, x.left, "known keys have moved")
	for _, e := range x.failed {
		excused := func(key string, late time.Duration) bool {
			return slices.ContainsFunc(x.faults[key], func(f span) bool { return e.began.Before(f.ended.Add(late)) && f.began.Before(e.ended) })
		}
		require.True(t, excused(e.key, grace/4) || excused("", grace), "%s: %s, from %v to %v", e.key, e.why, e.began, e.ended)
	}
}

// movingSlot is two limiters whose keys are all in the slot.
type movingSlot struct {
	t        *testing.T
	c        *redistest.Cluster
	from, to *redistest.Server
	slot     int

	mu     sync.Mutex
	phase  string
	got    map[string]*outcomes
	in     map[window]int64  // admitted
	failed []failed          // calls
	faults map[string][]span // when the keys of a counter left, or, of "", the source answered nobody
	left   int               // known keys
}

type window struct {
	key  string
	ends time.Time
}

type span struct{ began, ended time.Time }

type failed struct {
	span
	key, why string
}

// outcomes are what the calls of one kind of key in one phase got.
type outcomes struct {
	calls, admitted, refused int
	errors                   map[string]int
	slowest                  time.Duration
}

func (o *outcomes) String() string {
	text := fmt.Sprintf("%5d calls %5d admitted %5d refused, slowest %v", o.calls, o.admitted, o.refused, o.slowest.Round(time.Millisecond))
	for _, why := range slices.Sorted(maps.Keys(o.errors)) {
		text += fmt.Sprintf(", %d %s", o.errors[why], why)
	}
	return text
}

func (x *movingSlot) play() {
	t := x.t
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var wg sync.WaitGroup
	x.phase = "1 before"
	for mode, opts := range map[string][]reservoir.Option{"batched": nil, "direct": {reservoir.WithDirect()}} {
		l, err := reservoir.New(redisstore.New(x.c.Client(documentedCluster, func(o *redis.ClusterOptions) { o.ReadTimeout = time.Second })), reservoir.PerSecond(perSecond), append(opts, reservoir.WithFetchTimeout(time.Second))...)
		require.NoError(t, err)
		defer func() { assert.NoError(t, l.Close(context.Background())) }()
		known, fresh := keysOfSlot(x.slot, mode+"known"), keysOfSlot(x.slot, mode+"fresh")
		for range knownKeys {
			key := known()
			wg.Go(func() {
				every(ctx, time.Second/perSecond/2, func() { x.ask(l, mode+" known", key) })
			})
		}
		wg.Go(func() {
			every(ctx, 50*time.Millisecond, func() {
				key := fresh()
				wg.Go(func() { x.ask(l, mode+" fresh", key) })
			})
		})
	}
	pass(ctx, time.Second/2)
	x.during("2 open", func() {
		tag := keysOfSlot(x.slot, "others")()
		for i := range int(*moving / (2 * pace)) { // so that the limiters' keys leave at any time
			x.from.Do("set", fmt.Sprintf("%d{%s}", i, tag), i)
		}
		x.c.OpenSlot(x.from, x.to, x.slot)
		pass(ctx, *moving/4)
		x.awaitAll("2 open")
	})
	proxy := redistest.NewProxy(t, x.to.Addr())
	x.during("3 moving", func() {
		x.migrate(ctx, proxy, *moving/4)
		x.awaitAll("3 moving")
	})
	x.during("4 stalled", func() {
		proxy.Hold(true)
		time.AfterFunc(stall, func() { proxy.Hold(false) })
		began := time.Now()
		x.migrateOne(ctx, proxy)
		require.GreaterOrEqual(t, time.Since(began), stall)
		x.fault("", began)
	})
	x.during("5 moving", func() { x.migrate(ctx, proxy, *moving/2) })
	require.Positive(t, x.to.Calls("restore-asking", "restore"))
	x.during("6 settling", func() {
		for x.migrateOne(ctx, proxy) {
		}
		x.c.Reshard(x.from, x.to, []int{x.slot})
	})
	x.during("7 after", func() { // the circuit probes once a second
		x.awaitAll("7 after")
	})
	end()
	wg.Wait()
}

// migrate moves counters one by one for some time.
func (x *movingSlot) migrate(ctx context.Context, via *redistest.Proxy, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); pass(ctx, pace) {
		x.migrateOne(ctx, via)
	}
}

// migrateOne moves the keys of one counter, one by one, and reports whether there was one. Known ones come first.
func (x *movingSlot) migrateOne(ctx context.Context, via *redistest.Proxy) bool {
	host, port, _ := net.SplitHostPort(via.Addr())
	names := x.from.Do("cluster", "getkeysinslot", x.slot, 10_000).Val().([]any)
	if len(names) == 0 {
		return false
	}
	i := slices.IndexFunc(names, func(name any) bool { return strings.Contains(name.(string), "known") }) // they go first
	counter := strings.TrimSuffix(strings.TrimSuffix(names[max(i, 0)].(string), ":exp"), ":own")
	began := time.Now()
	for _, key := range []string{counter, counter + ":exp", counter + ":own"} {
		x.from.Do("migrate", host, port, key, 0, 5000, "replace")
		pass(ctx, pace)
	}
	key, _, _ := strings.Cut(strings.TrimPrefix(counter, "{"), "}")
	x.fault(key, began)
	return true
}

// fault records that one has passed.
func (x *movingSlot) fault(key string, began time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.faults[key] = append(x.faults[key], span{began, time.Now()})
	if strings.Contains(key, "known") {
		x.left++
	}
}

// awaitAll waits until keys of all kinds have been answered in a phase, fresh ones by an admission.
func (x *movingSlot) awaitAll(phase string) {
	require.Eventually(x.t, func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		for _, kind := range []string{"batched known", "batched fresh", "direct known", "direct fresh"} {
			o := x.got[phase+" "+kind]
			if o == nil || o.admitted == 0 && (o.refused == 0 || strings.HasSuffix(kind, "fresh")) {
				return false
			}
		}
		return true
	}, 30*time.Second, 10*time.Millisecond, phase)
}

// during names what happens now.
func (x *movingSlot) during(phase string, do func()) {
	x.mu.Lock()
	x.phase = phase
	x.mu.Unlock()
	do()
}

func (x *movingSlot) ask(l *reservoir.Limiter, kind, key string) {
	x.mu.Lock()
	phase := x.phase + " " + kind
	x.mu.Unlock()
	began := time.Now()
	r, err := l.Allow(context.Background(), key)
	ended := time.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	o := x.got[phase]
	if o == nil {
		o = &outcomes{errors: map[string]int{}}
		x.got[phase] = o
	}
	o.calls++
	o.slowest = max(o.slowest, ended.Sub(began))
	switch {
	case err != nil:
		o.errors[reason(err)]++
		x.failed = append(x.failed, failed{span{began, ended}, key, reason(err)})
		if reason(err) == "timeout" { // by the stall, or a busy machine
			x.faults[""] = append(x.faults[""], span{began, ended})
		}
	case r.Allowed:
		o.admitted++
		x.in[window{key, r.Reset}]++
	default:
		o.refused++
	}
}

// reason is an error in a word.
func reason(err error) string {
	for _, word := range []string{"TRYAGAIN", "MOVED", "ASK", "CLUSTERDOWN", "circuit"} {
		if strings.Contains(err.Error(), word) {
			return word
		}
	}
	if text := err.Error(); errors.Is(err, context.DeadlineExceeded) || strings.Contains(text, "timeout") || strings.Contains(text, "take longer than the window") {
		return "timeout"
	}
	return err.Error()
}

// every calls do at intervals until ctx ends.
func every(ctx context.Context, d time.Duration, do func()) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// pass lets time pass, under load.
func pass(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}
