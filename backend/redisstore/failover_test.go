package redisstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// failoverLimit is so long that no window ends in a test, and no limiter does
// anything by its timer.
var failoverLimit = reservoir.PerHour(200_000)

// TestFailoverWithLoss promotes a replica that lagged, under limiters that go on
// until the limit is exhausted. Side by side: limiters that tell the replica what
// they were granted, as they do, and some whose statements keep silent about it.
func TestFailoverWithLoss(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		batch []reservoir.Sizing
	}{
		{"adaptive", repeat(reservoir.Adaptive(1, 500), 4)}, // so small that nobody is refused before the primary dies
		{"fixed", repeat(reservoir.Fixed(50), 4)},
		{"both", append(repeat(reservoir.Adaptive(1, 500), 3), repeat(reservoir.Fixed(100), 3)...)},
	} {
		t.Run(row.name, func(t *testing.T) {
			control := newFailover(t, row.batch, true)
			control.run()
			f := newFailover(t, row.batch, false)
			f.run()
			t.Logf("without re-assertion: %v", control)
			t.Logf("with re-assertion:    %v", f)
			require.Equal(t, control.lost, control.over(), "all that was lost can be had again")
			require.LessOrEqual(t, f.over(), f.lost)
			require.Less(t, f.over(), control.over())
			require.Positive(t, f.reasserted())
			require.Zero(t, control.reasserted())
		})
	}
}

func repeat(s reservoir.Sizing, n int) (list []reservoir.Sizing) {
	for range n {
		list = append(list, s)
	}
	return list
}

// String is the outcome in figures.
func (f *failover) String() string {
	return fmt.Sprintf("%d operations with %d of %d tokens lost, %d admitted over the limit",
		f.lag, f.lost, f.limit(), f.over())
}

// failover is a primary with a replica that lags, and limiters.
type failover struct {
	t        *testing.T
	servers  *redistest.Replicated
	link     *redistest.Proxy
	store    *moving
	limiters []*reservoir.Limiter
	admitted atomic.Int64
	lag      int64 // operations that the replica missed
	lost     int64 // tokens charged in them
}

func newFailover(t *testing.T, batch []reservoir.Sizing, silent bool) *failover {
	t.Helper()
	f := &failover{t: t, servers: redistest.StartReplicated(t, 1)}
	f.link = f.servers.Link(0)
	f.store = &moving{silent: silent}
	f.store.move(f.servers.Primary.Client())
	for _, b := range batch {
		l, err := reservoir.New(f.store, failoverLimit, reservoir.WithBatch(b), reservoir.WithFetchTimeout(10*time.Second))
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		f.limiters = append(f.limiters, l)
	}
	return f
}

// run spends some of the limit, then much that the replica does not hear of, lets
// the primary die, and spends the rest.
func (f *failover) run() {
	f.t.Helper()
	f.spend(func(n int64) bool { return n < 5 })
	caughtUp(f.t, f.servers.Replicas[0].Client(), "k", f.used(f.servers.Primary))

	f.link.Hold(true)
	f.servers.Primary.ResetStats()
	f.spend(func(int64) bool { return f.store.used.Load() < f.limit()*8/10 })
	f.lag = f.servers.Primary.Calls("evalsha", "eval")
	require.Positive(f.t, f.lag)
	require.Positive(f.t, f.link.Held())
	require.Greater(f.t, f.used(f.servers.Primary), f.used(f.servers.Replicas[0]), "the replica lags")

	f.servers.Primary.Kill()
	f.link.Cut()
	f.servers.Promote(0)
	f.lost = f.charged() - f.used(f.servers.Replicas[0])
	f.store.move(f.servers.Replicas[0].Client())
	for before := int64(-1); before < f.admitted.Load(); { // until everybody is refused
		before = f.admitted.Load()
		f.spend(func(int64) bool { return true })
	}
	require.LessOrEqual(f.t, f.limit(), f.used(f.servers.Replicas[0]), "nothing remains; what was re-asserted late may be above")
}

// charged is what the limiters were granted, as far as they heard.
func (f *failover) charged() (n int64) {
	for _, l := range f.limiters {
		n += l.Stats().Taken - l.Stats().Returned
	}
	return n
}

func (f *failover) limit() int64 { return failoverLimit.Tokens }

func (f *failover) over() int64 { return max(f.admitted.Load()-f.limit(), 0) }

// spend lets all limiters spend at once, each while more says so of what it has
// spent, or until it is refused, and waits for the calls made ahead of need.
func (f *failover) spend(more func(n int64) bool) {
	f.t.Helper()
	var wg sync.WaitGroup
	for _, l := range f.limiters {
		wg.Go(func() {
			for n := int64(0); more(n); n++ {
				r, err := l.Allow(context.Background(), "k")
				if !assert.NoError(f.t, err) || !r.Allowed {
					return
				}
				f.admitted.Add(1)
			}
		})
	}
	wg.Wait()
	require.Eventually(f.t, func() bool { return f.store.calls.Load() == 0 }, 10*time.Second, time.Millisecond)
}

func (f *failover) used(s *redistest.Server) int64 {
	f.t.Helper()
	n, err := s.Client().Get(f.t.Context(), "{k}").Int64()
	require.NoError(f.t, err)
	return n
}

func (f *failover) reasserted() (n int64) {
	for _, l := range f.limiters {
		n += l.Stats().Reasserted
	}
	return n
}

// moving is a store that moves from one server to another. If it is silent, then
// clients' statements begin anew on the second.
type moving struct {
	silent bool
	calls  atomic.Int64 // syncs under way
	used   atomic.Int64 // of the limit, as last heard
	mu     sync.Mutex
	store  backend.Store
	moves  int
	known  map[string]bool // clients that the server has heard of since
}

func (m *moving) move(client *redis.Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.store, m.known = redisstore.New(client), make(map[string]bool)
	m.moves++
}

func (m *moving) current() backend.Store {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.store
}

func (m *moving) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	m.calls.Add(1)
	defer m.calls.Add(-1)
	m.forget(&r)
	reply, err := m.current().Sync(ctx, r)
	if err == nil {
		m.used.Store(r.Limit.Tokens - reply.Remaining)
	}
	return reply, err
}

func (m *moving) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	return m.current().Take(ctx, r)
}

func (m *moving) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	return m.current().Check(ctx, key, l)
}

func (m *moving) Settle(ctx context.Context, r backend.SettleRequest) (backend.SettleReply, error) {
	return m.current().Settle(ctx, r)
}

func (m *moving) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	return m.current().Reset(ctx, r)
}

// forget makes r, in a silent store that has moved, the statement of a client of
// another name, which was granted nothing before: in its old name the ledger
// would hand over once more what the client had been granted.
func (m *moving) forget(r *backend.SyncRequest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.silent || m.moves < 2 {
		return
	}
	if !m.known[r.Client] {
		r.Window, r.Granted, r.Returned, r.Total, r.Used = 0, 0, 0, 0, 0
	}
	m.known[r.Client] = true
	r.Client += "'"
}
