package torture

import (
	"cmp"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"reflect"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/sharding"
)

const (
	workerEnv = "RESERVOIR_TORTURE" // holds the scenario, and makes the process a worker
	callers   = 2                   // goroutines that ask for one key in one process
)

// RunWorker is the main function of a worker process. It uses all keys until a
// SIGTERM, closes the limiters and returns true. In any other process it returns false
// at once. It panics if it cannot start.
func RunWorker() bool {
	text, ok := os.LookupEnv(workerEnv)
	if !ok {
		return false
	}
	var t scenario
	must(0, json.Unmarshal([]byte(text), &t))
	store := t.open()
	if t.Skew != 0 {
		store = skewed{store, t.Skew}
	}
	finish, end := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer end()
	j, rng := gob.NewEncoder(os.Stdout), rand.New(rand.NewPCG(t.Seed, 0))
	var wg sync.WaitGroup
	for r := range role(roles) {
		for part := range t.Parts {
			s, seed := newStream(&t, j, store, lineID{r, part}), rng.Uint64()
			wg.Go(func() { s.live(finish, seed) })
		}
	}
	wg.Wait()
	return true
}

// must ends a process that cannot start.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// record is one event in a process's journal.
type record struct {
	Key    lineID
	What   what
	At     time.Time        // when it happened; when a request or a call began
	Took   time.Duration    // of a request or a call
	Woke   time.Duration    // how late the machine woke the caller, if it slept
	N      int64            // tokens; if settled, used above the charge, of a request that began Took before; if called, held in memory after the call; if closed, shards unheard until then
	Result reservoir.Result // of a request
	Gen    int64            // the generation of its window
	Away   bool             // the circuit is open, by the last hook
	Err    string           // the error of a request, a call or Close
	Stats  *reservoir.Stats // of the limiter that was closed
}

// lineID names a key.
type lineID struct {
	Role role
	Part int // of the store
}

type what int

const (
	asked what = iota
	settled
	renewed // its window was reset, or may have been
	called  // the store
	changed // the breaker
	closed
)

// read calls take with each record, until the process has ended.
func read(from io.Reader, take func(*record)) {
	for in := gob.NewDecoder(from); ; {
		r := new(record)
		if in.Decode(r) != nil {
			return
		}
		take(r)
	}
}

// open opens the store. It does no I/O.
func (sc *scenario) open() backend.Store {
	if sc.Topology != sharded {
		return redisstore.New(sc.client(sc.Addrs...))
	}
	shards := make(map[string]backend.Store)
	for i, name := range shardNames {
		shards[name] = redisstore.New(sc.client(sc.Addrs[i]))
	}
	return must(sharding.New(shards))
}

var shardNames = []string{"shard-0", "shard-1", "shard-2"}

// client connects by the proxies, even to addresses that the nodes of a cluster announce.
func (sc *scenario) client(addrs ...string) redis.UniversalClient {
	o := must(redisstore.Options("redis://" + addrs[0]))
	o.Addrs, o.IsClusterMode, o.PoolSize = addrs, sc.Topology == clustered, 16
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = 2*sc.Timeout, 2*sc.Timeout, 2*sc.Timeout
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return (&net.Dialer{Timeout: 2 * sc.Timeout}).DialContext(ctx, network, cmp.Or(sc.Via[addr], addr))
	}
	return redis.NewUniversalClient(o)
}

// skewed is a broken store, which grants more than it charges, or less. The judge has to
// find it out.
type skewed struct {
	backend.Store
	by int64 // tokens per grant
}

func (s skewed) Sync(ctx context.Context, q backend.Statement) (backend.Reply, error) {
	reply, err := s.Store.Sync(ctx, q)
	if reply.Grant > 1 {
		by := s.by
		if len(reply.Grants) > 0 { // of the rolling limit, which is smaller
			by = min(by, 50)
			reply.Grants[0].Tokens += by
		}
		reply.Grant += by
	}
	return reply, err
}

// stream makes the requests for one key. Each key has its own limiter, so that the
// limiter's Stats can be compared with the key's records.
type stream struct {
	id      lineID
	key     string
	demand  demand
	every   time.Duration // between the requests of one caller
	journal *gob.Encoder
	limiter *reservoir.Limiter
	away    atomic.Bool // the circuit is open, by the last hook
}

func newStream(t *scenario, journal *gob.Encoder, store backend.Store, id lineID) *stream {
	d := t.demand(id.Role)
	s := &stream{
		id: id, key: t.Keys[id.Role][id.Part], demand: d, journal: journal,
		every: time.Second * time.Duration(callers*t.Fleet) / time.Duration(d.requests),
	}
	options := append(uses[id.Role].options, reservoir.WithFetchTimeout(t.Timeout),
		reservoir.WithHooks(reservoir.Hooks{StoreCall: s.called, ShardState: s.changed}))
	if d.batch > 0 {
		options = append(options, reservoir.WithFixedBatch(d.batch))
	}
	if id.Role == rolling && t.Skew == 0 { // processes that count one limit in different ways
		options = append(options, [][]reservoir.Option{nil, {reservoir.WithDirect()}, {reservoir.WithMaxKeys(0)},
			{reservoir.WithFixedBatch(d.limit.Tokens / 10), reservoir.WithIdle(shortWindow / 2)}}[t.Seed%4]...)
	}
	s.limiter = must(reservoir.New(store, d.limit, options...))
	return s
}

// note writes a record to the runner's pipe at once, so that a killed process loses at
// most one record of each goroutine.
func (s *stream) note(r record, err error) {
	if r.Key = s.id; err != nil {
		r.Err = err.Error()
	}
	if r.At.IsZero() {
		r.At = time.Now()
	}
	_ = s.journal.Encode(r) // without the runner, SIGPIPE ends this process
}

func (s *stream) called(c reservoir.StoreCall) {
	s.note(record{What: called, At: time.Now().Add(-c.Duration), Took: c.Duration, N: s.limiter.Stats().Held}, c.Err)
}

func (s *stream) changed(c reservoir.ShardState) {
	s.away.Store(c.Away)
	s.note(record{What: changed, Away: c.Away}, nil)
}

// live makes the requests for the key until finish is done, and closes the limiter.
func (s *stream) live(finish context.Context, seed uint64) {
	var wg sync.WaitGroup
	for c := range callers {
		rng := rand.New(rand.NewPCG(seed, uint64(c)))
		wg.Go(func() { s.run(finish, rng) })
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	unheard := s.limiter.Stats().Unsubscribed
	err := s.limiter.Close(ctx)
	stats := s.limiter.Stats()
	s.note(record{What: closed, N: unheard, Stats: &stats}, err)
}

// run makes one caller's requests by a schedule, so that slow answers do not make the
// load lighter. A caller makes up for half a second at most.
func (s *stream) run(finish context.Context, rng *rand.Rand) {
	var before record
	next := time.Now().Add(rand.N(s.every))
	for finish.Err() == nil {
		var woke time.Duration
		if early := time.Until(next); early > 0 {
			time.Sleep(early)
			woke = time.Since(next)
		}
		if next = next.Add(s.every); time.Since(next) > time.Second/2 {
			next = time.Now()
		}
		n := min(1+rng.Int64N(2*s.demand.each()), s.demand.limit.Tokens)
		now := s.request(n, woke, s.id.Role == rolling && rng.IntN(4) == 0)
		if !now.Result.Allowed && (s.id.Role == tight || s.id.Role == rolling || s.demand.renewed) {
			s.drain(now)
		}
		switch {
		case s.demand.renewed:
			before = s.renew(rng, before, now)
		case s.id.Role == rolling && now.Result.Allowed && rng.IntN(4) == 0: // the process may be killed after the record
			used, at := rng.Int64N(now.N), time.Now()
			s.note(record{What: settled, At: at, Took: at.Round(0).Sub(now.At.Round(0)), N: used - now.N}, nil) // by the clock of records
			_ = s.limiter.Settle(context.Background(), now.Result, used)
		case s.demand.batch > 0 && now.Result.Allowed && now.Result.Source != reservoir.Fallback && rng.IntN(10) == 0:
			used := rng.Int64N(2 * n)
			if s.limiter.Settle(context.Background(), now.Result, used) == nil {
				s.note(record{What: settled, N: used - n}, nil)
			}
		}
	}
}

// drain asks for what is left. Otherwise the last tokens of a window, too few for most
// requests, would hide a small excess.
func (s *stream) drain(r record) {
	for range 4 {
		n := min(r.N, r.Result.Remaining)
		if n < 1 || r.Result.Allowed {
			return
		}
		r = s.request(n, 0, false)
	}
}

// request makes a request or, if waits is set, one that waits for a window at most.
func (s *stream) request(n int64, woke time.Duration, waits bool) record {
	r := record{What: asked, At: time.Now(), Woke: woke, N: n, Away: s.away.Load()}
	var err error
	if waits {
		ctx, cancel := context.WithTimeout(context.Background(), shortWindow)
		defer cancel()
		if r.Result, err = s.limiter.WaitN(ctx, s.key, n); ctx.Err() != nil || errors.Is(err, reservoir.ErrDeadline) {
			err = nil // it was refused, by its own deadline
		}
	} else {
		r.Result, err = s.limiter.AllowN(context.Background(), s.key, n)
	}
	r.Took = time.Since(r.At)
	r.Gen = reflect.ValueOf(r.Result).FieldByName("gen").Int() // what Reset divides may end at one instant
	s.note(r, err)
	return r
}

// renew resets the key now and then, but not often, because a key allows fewer than a
// thousand resets a day. It settles a charge above its amount when the charge's window is
// no longer open, and returns the charge to settle later. It records settlements and
// resets first, because the process may be killed after them.
func (s *stream) renew(rng *rand.Rand, before, now record) record {
	if rng.IntN(250) == 0 {
		s.note(record{What: renewed, N: 1}, nil)
		s.note(record{What: renewed}, s.limiter.Reset(context.Background(), s.key))
	}
	if before.Result.Allowed && now.Result.Allowed && !now.Result.Reset.Equal(before.Result.Reset) {
		s.note(record{What: settled, N: now.N}, nil)
		_ = s.limiter.Settle(context.Background(), before.Result, before.N+now.N)
	} else if before.Result.Allowed {
		return before
	}
	return now
}
