package torture

import (
	"cmp"
	"context"
	"encoding/gob"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/sharding"
)

const (
	workerEnv = "RESERVOIR_TORTURE" // holds the target; the process is a worker then

	// callers is the goroutines that ask for one key in one process.
	callers = 2

	// arrears is how far behind its schedule a caller makes up for.
	arrears = 500 * time.Millisecond

	closeTimeout = 10 * time.Second
)

// RunWorker is the whole life of a worker process: it drives all keys until its input
// ends, and hands back. It reports false in a process that is none.
func RunWorker() (bool, error) {
	text, ok := os.LookupEnv(workerEnv)
	if !ok {
		return false, nil
	}
	var t target
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return true, err
	}
	store, err := t.open()
	if err != nil {
		return true, err
	}
	finish := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(finish)
	}()
	if t.Skew != 0 {
		store = skewed{store, t.Skew}
	}
	return true, t.work(store, &journal{out: gob.NewEncoder(os.Stdout)}, finish)
}

func (t *target) work(store backend.Store, j *journal, finish <-chan struct{}) error {
	var streams []*stream
	var wg sync.WaitGroup
	for r := range role(roles) {
		for part := range t.parts() {
			s, err := newStream(t, j, store, lineID{r, part})
			if err != nil {
				return err
			}
			streams = append(streams, s)
		}
	}
	for i, s := range streams {
		for c := range callers {
			wg.Go(func() { s.run(rand.New(rand.NewPCG(t.Seed, uint64(i*callers+c))), finish) })
		}
	}
	wg.Wait()
	for _, s := range streams {
		s.close()
	}
	return nil
}

// skewed is a store that grants more than it charges, or less: what no store may
// do. Processes that use it are to be found out.
type skewed struct {
	backend.Store
	by int64 // tokens per grant
}

func (s skewed) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	reply, err := s.Store.Sync(ctx, r)
	if reply.Grant > 1 {
		reply.Grant += s.by
	}
	return reply, err
}

// stream is the requests for one key. Each key has a limiter of its own, so that
// its Stats can be held against its records.
type stream struct {
	id      lineID
	key     string
	demand  demand
	every   time.Duration // between the requests of one caller
	journal *journal
	limiter *reservoir.Limiter
	away    atomic.Bool // the breaker is open, as hooks tell
}

func newStream(t *target, j *journal, store backend.Store, id lineID) (*stream, error) {
	d := t.demand(id.Role, t.parts())
	s := &stream{
		id: id, key: t.Keys[id.Role][id.Part], demand: d, journal: j,
		every: time.Second * time.Duration(callers*t.Fleet) / time.Duration(d.requests),
	}
	var err error
	s.limiter, err = reservoir.New(store, d.limit, append(id.Role.options(d), reservoir.WithFetchTimeout(t.Timeout),
		reservoir.WithHooks(reservoir.Hooks{StoreCall: s.called, ShardState: s.changed}))...)
	return s, err
}

func (s *stream) note(r record, err error) {
	if r.Key = s.id; err != nil {
		r.Err = err.Error()
	}
	s.journal.note(r)
}

func (s *stream) called(c reservoir.StoreCall) {
	s.note(record{What: called, At: time.Now().Add(-c.Duration), Took: c.Duration, N: s.limiter.Stats().Held}, c.Err)
}

func (s *stream) changed(c reservoir.ShardState) {
	s.away.Store(c.Away)
}

// run makes one caller's requests by a schedule, so that slow answers do not
// make the load lighter.
func (s *stream) run(rng *rand.Rand, finish <-chan struct{}) {
	next := time.Now().Add(rand.N(s.every))
	for {
		select {
		case <-finish:
			return
		default:
		}
		var woke time.Duration
		if early := time.Until(next); early > 0 {
			time.Sleep(early)
			woke = time.Since(next)
		}
		if next = next.Add(s.every); time.Since(next) > arrears {
			next = time.Now()
		}
		n := min(1+rng.Int64N(2*s.demand.each()), s.demand.limit.Tokens)
		r := s.request(n, woke)
		switch {
		case s.id.Role == tight && !r.Allowed:
			s.drain(n, r)
		case s.id.Role.settles() && r.Allowed && r.Source != reservoir.Fallback && rng.IntN(10) == 0:
			used := rng.Int64N(n)
			if s.limiter.Settle(context.Background(), s.key, r, used) == nil {
				s.note(record{What: refunded, N: n - used}, nil)
			}
		}
	}
}

// drain asks for what is left. Else the last tokens of a window, fewer than most
// requests want, would hide that there are some too many.
func (s *stream) drain(n int64, r reservoir.Result) {
	for range 4 {
		if n = min(n, r.Remaining); n < 1 || r.Allowed {
			return
		}
		r = s.request(n, 0)
	}
}

func (s *stream) request(n int64, woke time.Duration) reservoir.Result {
	away, begin := s.away.Load(), time.Now()
	r, err := s.limiter.AllowN(context.Background(), s.key, n)
	s.note(record{What: asked, At: begin, Took: time.Since(begin), Woke: woke, N: n, Result: r, Away: away}, err)
	return r
}

func (s *stream) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := s.limiter.Close(ctx)
	stats := s.limiter.Stats()
	s.note(record{What: closed, Stats: &stats}, err)
}

// open connects to the store, which takes no I/O.
func (t *target) open() (backend.Store, error) {
	redis.SetLogger(silence{}) // faults are what this is about
	if t.Topology != sharded {
		return redisstore.New(t.client(t.Addrs...)), nil
	}
	shards := make(map[string]backend.Store)
	for i, name := range shardNames {
		shards[name] = redisstore.New(t.client(t.Addrs[i]))
	}
	return sharding.New(shards)
}

var shardNames = []string{"shard-0", "shard-1", "shard-2"}

// target is the scenario, and where processes find its store. It is passed on in their
// environment.
type target struct {
	scenario
	Addrs []string          // of the server; of the shards; of the cluster's nodes
	Via   map[string]string // a cluster's node → the proxy before it
	Keys  [roles][]string   // by part; which names lie on which is the topology's business
}

func (t *target) parts() int { return len(t.Keys[0]) }

// client is as redisstore's documentation asks for. That of a cluster, whose nodes tell
// their own addresses, goes by the proxies.
func (t *target) client(addrs ...string) redis.UniversalClient {
	return redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: addrs, IsClusterMode: t.Topology == clustered, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: 2 * t.Timeout, ReadTimeout: 2 * t.Timeout, WriteTimeout: 2 * t.Timeout,
		ContextTimeoutEnabled: true, PoolSize: 16, MaintNotificationsConfig: noNotifications(),
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return (&net.Dialer{Timeout: 2 * t.Timeout}).DialContext(ctx, network, cmp.Or(t.Via[addr], addr))
		},
	})
}

func noNotifications() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
