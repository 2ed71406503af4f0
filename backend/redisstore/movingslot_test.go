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
)

// TestMovingSlot is what callers get while a slot moves, key by key, from one master to another, with windows
// of a second. Known keys were in use before, and ask twice as much as they may; fresh keys come up on the way. One
// MIGRATE meets a target that stalls, so keys live longer than their window.
//
// In any case no window is exceeded, known keys are served until the stall, and all keys soon after the slot has
// moved. The rest is printed, and is to become better. Today no fresh key is served meanwhile, because Redis says
// TRYAGAIN to a command of several keys that are not there yet; and the circuit that the stall opens often stays
// open until the slot has moved, for known keys, too, because its probes try the same two keys in turns, and these may be
// fresh ones. All keys of the scene are in the slot; elsewhere most are not.
func TestMovingSlot(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2, 0)
	for _, node := range c.Nodes {
		node.Do("config", "set", "cluster-node-timeout", 15000) // no node is taken for dead while it stalls
	}
	from, to := c.Nodes[0], c.Nodes[1]
	x := &movingSlot{t: t, c: c, from: from, to: to, slot: c.SlotsOf(from)[7], got: map[string]*outcomes{}, in: map[window]int64{}}
	x.play()
	for w, n := range x.in {
		require.LessOrEqual(t, n, int64(perSecond), "%v", w)
	}
	for _, phase := range slices.Sorted(maps.Keys(x.got)) {
		t.Logf("%-25s %v", phase, x.got[phase])
	}
	for _, mode := range []string{"batched", "direct"} {
		for _, phase := range []string{"2 open", "3 moving"} {
			known := x.got[phase+" "+mode+" known"]
			require.Positive(t, known.admitted+known.refused, phase) // nearly all, unless the machine is busy
		}
	}
}

// movingSlot is two limiters whose keys are all in the slot.
type movingSlot struct {
	t        *testing.T
	c        *redistest.Cluster
	from, to *redistest.Server
	slot     int

	mu    sync.Mutex
	phase string
	got   map[string]*outcomes
	in    map[window]int64 // admitted
}

type window struct {
	key  string
	ends time.Time
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
		l, err := reservoir.New(redisstore.New(x.c.Client(documentedCluster)), reservoir.PerSecond(perSecond), append(opts, reservoir.WithFetchTimeout(time.Second))...)
		require.NoError(t, err)
		defer func() { assert.NoError(t, l.Close(context.Background())) }()
		keys := keysOfSlot(x.slot, mode)
		for range knownKeys {
			key := keys()
			wg.Go(func() {
				every(ctx, time.Second/perSecond/2, func() { x.ask(l, mode+" known", key) })
			})
		}
		wg.Go(func() {
			every(ctx, 50*time.Millisecond, func() {
				key := keys()
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
	})
	proxy := redistest.NewProxy(t, x.to.Addr())
	x.during("3 moving", func() { x.migrate(ctx, proxy, *moving/4) })
	x.during("4 stalled", func() {
		proxy.Hold(true)
		time.AfterFunc(stall, func() { proxy.Hold(false) })
		began := time.Now()
		x.migrateOne(proxy)
		require.GreaterOrEqual(t, time.Since(began), stall)
	})
	x.during("5 moving", func() { x.migrate(ctx, proxy, *moving/2) })
	require.Positive(t, x.to.Calls("restore-asking", "restore"))
	x.during("6 settling", func() { x.c.Reshard(x.from, x.to, []int{x.slot}) })
	x.during("7 after", func() { // the circuit probes once a second
		require.Eventually(t, x.servesAll, 30*time.Second, 10*time.Millisecond)
	})
	end()
	wg.Wait()
}

// migrate moves keys of Redis one by one for some time.
func (x *movingSlot) migrate(ctx context.Context, via *redistest.Proxy, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); pass(ctx, pace) {
		x.migrateOne(via)
	}
}

func (x *movingSlot) migrateOne(via *redistest.Proxy) {
	host, port, _ := net.SplitHostPort(via.Addr())
	for _, key := range x.from.Do("cluster", "getkeysinslot", x.slot, 1).Val().([]any) {
		x.from.Do("migrate", host, port, key, 0, 5000, "replace")
	}
}

// servesAll reports whether keys of all kinds have been admitted since the slot has moved.
func (x *movingSlot) servesAll() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, kind := range []string{"batched known", "batched fresh", "direct known", "direct fresh"} {
		if after := x.got["7 after "+kind]; after == nil || after.admitted == 0 {
			return false
		}
	}
	return true
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
	took := time.Since(began)
	x.mu.Lock()
	defer x.mu.Unlock()
	o := x.got[phase]
	if o == nil {
		o = &outcomes{errors: map[string]int{}}
		x.got[phase] = o
	}
	o.calls++
	o.slowest = max(o.slowest, took)
	switch {
	case err != nil:
		o.errors[reason(err)]++
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
	switch {
	case errors.Is(err, reservoir.ErrConflict):
		return "conflict"
	case errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "timeout"):
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

// keysOfSlot returns a function that returns another key of the slot each time.
func keysOfSlot(slot int, name string) func() string {
	var mu sync.Mutex
	i := 0
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		for {
			i++
			if key := fmt.Sprint(name, i); slotOf(key) == slot {
				return key
			}
		}
	}
}

// slotOf is Redis' CRC16 of a key's tag, which Cluster.SlotOf would have to ask for.
func slotOf(tag string) int {
	crc := uint16(0)
	for _, b := range []byte(tag) {
		crc ^= uint16(b) << 8
		for range 8 {
			if over := crc&0x8000 != 0; over {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % 16384)
}
