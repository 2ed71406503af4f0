package redisstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/backendtest"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// always returns a factory of the one store.
func always(s backend.Store) func(*testing.T) backend.Store {
	return func(*testing.T) backend.Store { return s }
}

// forgetful is a store whose ledgers and rings the suite can delete.
type forgetful struct {
	*redisstore.Store
	client *redis.Client
}

func (f forgetful) LoseLedger(ctx context.Context, key, counter string) error {
	return f.client.Del(ctx, "{"+key+"}:"+counter+":own").Err()
}

// LoseCount and LoseEnd delete half of a window.
func (f forgetful) LoseCount(ctx context.Context, key, counter string) error {
	return f.client.Del(ctx, "{"+key+"}:"+counter).Err()
}

func (f forgetful) LoseEnd(ctx context.Context, key, counter string) error {
	return f.client.Del(ctx, "{"+key+"}:"+counter+":exp").Err()
}

// LoseRing deletes a rolling limit, and KeepRing lets none expire.
func (f forgetful) LoseRing(ctx context.Context, key, counter string) error {
	return f.client.Del(ctx, "{"+key+"}:"+counter).Err()
}

func (f forgetful) KeepRing(ctx context.Context, key, counter string) error {
	return f.client.Persist(ctx, "{"+key+"}:"+counter).Err()
}

func TestSuite(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	t.Run("plain", func(t *testing.T) {
		backendtest.Run(t, always(forgetful{redisstore.New(server.Client()), server.Client()}))
	})
	t.Run("prefix", func(t *testing.T) {
		backendtest.Run(t, always(redisstore.New(server.Client(), redisstore.WithPrefix("rl:"))))
	})
	t.Run("RESP2", func(t *testing.T) {
		client := server.Client(func(o *redis.Options) { o.Protocol = 2 })
		backendtest.Run(t, always(redisstore.New(client)))
	})
}

func TestSuiteOnCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	backendtest.Run(t, always(redisstore.New(cluster.Client())))
	for _, node := range cluster.Nodes {
		require.Positive(t, node.Calls("evalsha"), "every master has had a part")
	}
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	sentinels := startSentinels(t, redistest.StartReplicated(t, 1), 1)
	backendtest.Run(t, always(redisstore.New(failoverClient(t, sentinels))))
}

func TestCheckOnReplica(t *testing.T) {
	r := redistest.StartReplicated(t, 1)
	replica := r.Replicas[0].Client()
	s := redisstore.New(r.Primary.Client(), redisstore.WithReplicas(replica))

	window := take(t, s, "k", 4).Window
	caughtUp(t, replica, "k", 4)
	r.Primary.ResetStats()
	r.Replicas[0].ResetStats()
	require.EqualValues(t, 6, remaining(t, s, "k"))
	require.Zero(t, r.Primary.Calls("evalsha", "eval"))
	require.Positive(t, r.Replicas[0].Calls("evalsha_ro", "eval_ro"))

	// A window that is over, which the replica still holds.
	over := storeclock.With(t.Context(), window.Time().Add(time.Microsecond))
	state, err := s.Check(over, "k", limit10)
	require.NoError(t, err)
	require.Equal(t, backend.State{Remaining: 10}, state)

	// A replica that lags: the check is stale, the decision is not.
	link := r.Link(0)
	link.Hold(true)
	take(t, s, "k", 6)
	require.EqualValues(t, 6, remaining(t, s, "k"))
	require.Zero(t, take(t, s, "k", 1).Grant)
	link.Hold(false)
	caughtUp(t, replica, "k", 10)

	// A replica that is gone.
	r.Replicas[0].Kill()
	r.Primary.ResetStats()
	require.Zero(t, remaining(t, s, "k"))
	require.Positive(t, r.Primary.Calls("evalsha", "eval"))
}

// TestCheckOnReplicaThatRefuses: what a replica has against it, another password
// say, is no reason for the primary.
func TestCheckOnReplicaThatRefuses(t *testing.T) {
	r := redistest.StartReplicated(t, 1)
	refused := r.Replicas[0].Client(redistest.User("unheard-of", "wrong"))
	require.ErrorContains(t, refused.Ping(t.Context()).Err(), "WRONGPASS")
	s := redisstore.New(r.Primary.Client(), redisstore.WithReplicas(refused))
	take(t, s, "k", 4)
	r.Primary.ResetStats()
	require.EqualValues(t, 6, remaining(t, s, "k"))
	require.EqualValues(t, 1, r.Primary.Calls("eval"))

	// The primary's own refusal is the end of it.
	alone := redisstore.New(r.Primary.Client(redistest.User("unheard-of", "wrong")), redisstore.WithReplicas(refused))
	_, err := alone.Check(t.Context(), "k", limit10)
	require.Equal(t, backend.Rejected, class(t, err))
}

// TestCheckOnReplicaThatHangs: it takes half of the caller's time, and the primary answers.
func TestCheckOnReplicaThatHangs(t *testing.T) {
	t.Parallel()
	r := redistest.StartReplicated(t, 1)
	s := redisstore.New(r.Primary.Client(), redisstore.WithReplicas(r.Replicas[0].Client()))
	take(t, s, "k", 4)
	r.Replicas[0].Pause()
	defer r.Replicas[0].Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	state, err := s.Check(ctx, "k", limit10)
	require.NoError(t, err)
	require.EqualValues(t, 6, state.Remaining)
	require.Positive(t, r.Primary.Calls("evalsha", "eval"))
}

func TestCheckOnClusterReplicas(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	s := redisstore.New(cluster.Client())
	for i := range 20 {
		take(t, s, fmt.Sprint("k", i), 3)
	}
	announceReplicas(t, cluster)
	replicas := cluster.Client(func(o *redis.ClusterOptions) { o.ReadOnly, o.DialerRetries = true, 1 })
	s = redisstore.New(cluster.Client(), redisstore.WithReplicas(replicas))
	ask := func() {
		for i := range 20 {
			key := fmt.Sprint("k", i)
			require.Eventually(t, func() bool {
				state, err := s.Check(context.Background(), key, limit10)
				return err == nil && state.Remaining == 7
			}, 5*time.Second, 2*time.Millisecond)
		}
	}
	cluster.ResetStats()
	ask()
	for _, node := range cluster.Nodes[3:] {
		require.Positive(t, node.Calls("evalsha_ro", "eval_ro"), "every replica has answered")
	}
	for _, node := range cluster.Nodes[3:] {
		node.Kill()
	}
	ask()
}
