package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
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

// RunWorker is the whole life of a worker process. It reports false in a process
// that is none.
func RunWorker() (bool, error) {
	text, ok := os.LookupEnv(workerEnv)
	if !ok {
		return false, nil
	}
	var t target
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return true, err
	}
	j, err := openJournal(t.Journal)
	if err != nil {
		return true, err
	}
	store, closeStore, err := t.open()
	if err != nil {
		return true, err
	}
	defer closeStore()
	if t.Skew != 0 {
		store = skewed{store, t.Skew}
	}
	return true, work(&t, j, store)
}

// work drives all keys until the runner asks to finish, and hands back.
func work(t *target, j *Journal, store backend.Store) error {
	var streams []*stream
	seen, err := openComplaints(t.Journal + complaintsSuffix)
	if err != nil {
		return err
	}
	for r := range role(roles) {
		for part, suffix := range t.Suffixes[r] {
			s, err := newStream(t, j, store, r, part, keyOf(r, suffix))
			if err != nil {
				return err
			}
			s.seen = seen
			streams = append(streams, s)
		}
	}
	var wg sync.WaitGroup
	for i, s := range streams {
		for c := range callers {
			wg.Go(func() { s.run(rand.New(rand.NewPCG(t.Seed, uint64(i*callers+c)))) })
		}
	}
	j.State.Store(running)
	wg.Wait()
	state := int64(closed)
	for _, s := range streams {
		if s.close() != nil {
			state = closedBad
		}
	}
	j.State.Store(state)
	return seen.close()
}

// stream is the requests for one key. Each key has a limiter of its own, so that
// its Stats can be held against its line.
type stream struct {
	role    role
	part    int // of the store
	key     string
	demand  demand
	every   time.Duration // between the requests of one caller
	journal *Journal
	line    *line
	limiter *reservoir.Limiter
	seen    *complaints
}

func newStream(t *target, j *Journal, store backend.Store, r role, part int, key string) (*stream, error) {
	d := demandOf(r, int64(t.parts()), t.Pace)
	s := &stream{
		role: r, part: part, key: key, demand: d, journal: j, line: &j.Lines[lineOf(r, part)],
		every: time.Second * time.Duration(callers*t.Fleet) / time.Duration(d.requests),
	}
	var err error
	s.limiter, err = reservoir.New(store, d.limit, append(r.options(), reservoir.WithBatch(d.sizing()), reservoir.WithFetchTimeout(t.Timeout),
		reservoir.WithHooks(reservoir.Hooks{StoreCall: s.called, ShardState: s.changed}))...)
	return s, err
}

func (s *stream) called(c reservoir.StoreCall) {
	s.line.Calls.Add(1)
	s.line.Held.Store(s.limiter.Stats().Held)
	if c.Err != nil {
		s.line.Faults.Add(1)
		return
	}
	s.line.LastOK.Store(time.Now().UnixNano())
}

func (s *stream) changed(c reservoir.ShardState) {
	s.line.Away.Store(0)
	if c.Away {
		s.line.Away.Store(1)
	}
}

// run makes one caller's requests by a schedule, so that slow answers do not
// make the load lighter.
func (s *stream) run(rng *rand.Rand) {
	next := time.Now().Add(rand.N(s.every))
	for s.journal.Finish.Load() == 0 {
		if early := time.Until(next); early > 0 {
			time.Sleep(early)
			s.journal.Latency[s.role][s.journal.Phase.Load()][wakeUp].add(time.Since(next))
		}
		if next = next.Add(s.every); time.Since(next) > arrears {
			next = time.Now()
		}
		n := 1 + rng.Int64N(2*s.demand.each())
		r := s.request(min(n, s.demand.limit.Tokens))
		switch {
		case s.role == tight && !r.Allowed:
			s.drain(n, r)
		case (s.role == ledger || s.role.fallsBack()) && r.Allowed && r.Source != reservoir.Fallback && rng.IntN(10) == 0:
			s.refund(n, r)
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
		r = s.request(n)
	}
}

func (s *stream) request(n int64) reservoir.Result {
	phase, away := s.journal.Phase.Load(), s.line.Away.Load() == 1
	begin := time.Now()
	r, err := s.limiter.AllowN(context.Background(), s.key, n)
	took := time.Since(begin)
	s.journal.Latency[s.role][phase][answerOf(r, err, away)].add(took)
	s.journal.answered(s.line, n, r, err, begin, took)
	if err != nil {
		s.seen.note(complaint{begin.Add(took), took, kind(phase), s.role, s.part, err.Error()})
	}
	return r
}

func (s *stream) refund(n int64, r reservoir.Result) {
	if s.limiter.Refund(context.Background(), s.key, r) == nil {
		s.line.Refunded.Add(n)
	}
}

func (s *stream) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := s.limiter.Close(ctx)
	s.line.Stats.store(s.limiter.Stats())
	return err
}

// open connects to the store, which takes no I/O.
func (t *target) open() (backend.Store, func(), error) {
	redis.SetLogger(silence{}) // faults are what this is about
	var clients []redis.UniversalClient
	closeAll := func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}
	if t.Cluster {
		clients = append(clients, t.cluster())
		return redisstore.New(clients[0]), closeAll, nil
	}
	shards := make(map[string]backend.Store)
	for i, addr := range t.Addrs {
		clients = append(clients, t.single(addr))
		shards[shardName(i)] = redisstore.New(clients[i])
	}
	if len(shards) == 1 {
		return shards[shardName(0)], closeAll, nil
	}
	store, err := sharding.New(shards)
	return store, closeAll, err
}

func shardName(i int) string { return fmt.Sprint("shard-", i) }

// single is a client as redisstore's documentation asks for.
func (t *target) single(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: addr, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: 2 * t.Timeout, ReadTimeout: 2 * t.Timeout, WriteTimeout: 2 * t.Timeout,
		ContextTimeoutEnabled: true, PoolSize: 16, MaintNotificationsConfig: noNotifications(),
	})
}

func (t *target) cluster() *redis.ClusterClient {
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: t.Addrs, Dialer: t.dial, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: 2 * t.Timeout, ReadTimeout: 2 * t.Timeout, WriteTimeout: 2 * t.Timeout,
		ContextTimeoutEnabled: true, PoolSize: 16, MaintNotificationsConfig: noNotifications(),
	})
}

func noNotifications() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// dial goes by the proxies, for a cluster's nodes tell their own addresses.
func (t *target) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if via, ok := t.Via[addr]; ok {
		addr = via
	}
	dialer := net.Dialer{Timeout: 2 * t.Timeout}
	return dialer.DialContext(ctx, network, addr)
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
