package redisstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/backendtest"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestSuiteWithReplicaAck(t *testing.T) {
	t.Parallel()
	r := redistest.StartReplicated(t, 1)
	r.Primary.ResetStats()
	backendtest.Run(t, always(redisstore.New(r.Primary.Client(), redisstore.WithReplicaAck(1, 10*time.Second))))
	require.Positive(t, r.Primary.Calls("wait"))
}

// replicatedPair is a primary and a replica that can be made to lag.
type replicatedPair struct {
	*redistest.Replicated
	link *redistest.Proxy
}

func newReplicatedPair(t *testing.T) *replicatedPair {
	t.Helper()
	r := redistest.StartReplicated(t, 1)
	return &replicatedPair{r, r.Link(0)}
}

// store is one with connections of its own, which have written nothing yet.
func (p *replicatedPair) store(timeout time.Duration) *redisstore.Store {
	return redisstore.New(p.Primary.Client(), redisstore.WithReplicaAck(1, timeout))
}

// brief is a time in which a replica that is held does not answer.
const brief = 20 * time.Millisecond

func (p *replicatedPair) used(t *testing.T, s *redistest.Server) string {
	t.Helper()
	return s.Client().Get(t.Context(), "{k}:60s").Val()
}

// TestGrantIsWithheldUntilReplicated: what is on the primary alone is granted to
// nobody, however often it is asked for, and is charged once.
func TestGrantIsWithheldUntilReplicated(t *testing.T) {
	p := newReplicatedPair(t)
	h := newHolder(nil, "a", "k", limit10)
	take(t, p.store(10*time.Second), "k", 1)
	p.link.Hold(true)
	p.Primary.ResetStats()
	for i := range int64(3) {
		h.s = p.store(brief)
		_, err := h.ask(t.Context(), 4, 0)
		require.ErrorIs(t, err, redisstore.ErrNotReplicated)
		require.Equal(t, backend.Unknown, class(t, err))
		require.EqualValues(t, i+1, p.Primary.Calls("evalsha"), "said once a call")
		require.Equal(t, "5", p.used(t, p.Primary), "the grant before it, which nobody read, went")
	}
	require.Positive(t, p.link.Held())
	require.Equal(t, "1", p.used(t, p.Replicas[0]), "the replica lags")

	p.link.Hold(false)
	h.s = p.store(10 * time.Second)
	got, err := h.ask(t.Context(), 4, 0)
	require.NoError(t, err)
	require.EqualValues(t, 4, got.Grant)
	require.EqualValues(t, 5, got.Remaining)
	require.Equal(t, "5", p.used(t, p.Replicas[0]), "no later than the answer")
}

// TestWithheldUntilReplicated: each kind of call that hands out tokens, spends, holds or voids is an error until a replica has it, and
// is carried out all the same. What does none of that is answered.
func TestWithheldUntilReplicated(t *testing.T) {
	p := newReplicatedPair(t)
	s := p.store(brief)
	for _, limit := range []backend.Limit{limit10, rolling10} {
		first, err := charge(t.Context(), p.store(10*time.Second), "k", limit, 1)
		require.NoError(t, err)
		p.link.Hold(true)
		p.Primary.ResetStats()
		used := backend.Statement{Window: first.Window, Change: 1, Runs: true}
		if limit.Rolls {
			used = backend.Statement{Rolling: backend.Rolling{Changes: []backend.Change{{Tokens: 1}}}}
		}
		byAccount := used
		byAccount.Client, byAccount.Life, byAccount.Seq = "a.1", 1, 1
		for i, q := range []backend.Statement{{Need: 2}, {Client: "b.1", Life: 1, Seq: 1, Want: 2, Need: 2}, used, byAccount} {
			q.Key, q.Limit = "k", limit
			_, err = s.Sync(t.Context(), q)
			require.ErrorIs(t, err, redisstore.ErrNotReplicated, "%s %d", limit.Counter(), i)
			require.Equal(t, backend.Unknown, class(t, err))
			require.EqualValues(t, i+1, p.Primary.Calls("wait"))
		}
		refused, err := charge(t.Context(), s, "k", limit, 4)
		require.NoError(t, err)
		require.Equal(t, []int64{0, 7}, []int64{refused.Grant, refused.Used})
		_, err = s.Sync(t.Context(), backend.Statement{Key: "k", Limit: limit, Hold: time.Hour})
		require.ErrorIs(t, err, redisstore.ErrNotReplicated)
		waits := p.Primary.Calls("wait")
		state, err := s.Check(t.Context(), "k", limit)
		require.NoError(t, err)
		require.Positive(t, state.Held)
		require.Equal(t, waits, p.Primary.Calls("wait"), "it does not wait")
		_, err = s.Reset(t.Context(), "k", limit)
		require.ErrorIs(t, err, redisstore.ErrNotReplicated)
		require.Equal(t, backend.Unknown, class(t, err))
		state, err = s.Check(t.Context(), "k", limit)
		require.NoError(t, err)
		require.EqualValues(t, 10, state.Remaining)
		require.Positive(t, p.link.Held())

		p.link.Hold(false)
		_, err = p.store(10*time.Second).Reset(t.Context(), "k", limit)
		require.NoError(t, err)
		state, err = redisstore.New(p.Replicas[0].Client()).Check(t.Context(), "k", limit)
		require.NoError(t, err)
		require.EqualValues(t, 10, state.Remaining, "no later than the answer")
	}
}

// TestAckOfPipeline: calls that share a pipeline share a WAIT.
func TestAckOfPipeline(t *testing.T) {
	const n = 200
	p := newReplicatedPair(t)
	s := p.store(10 * time.Second)
	take(t, s, "warm", 1)
	p.Primary.ResetStats()
	errs := make(chan error, n)
	p.link.Hold(true)
	for i := range n {
		go func() {
			_, err := charge(context.Background(), s, fmt.Sprint("k", i), limit10, 1)
			errs <- err
		}()
	}
	require.Eventually(t, func() bool { return p.Primary.Calls("evalsha") >= 4 && p.link.Held() > 0 }, 10*time.Second, time.Millisecond)
	require.Empty(t, errs, "nobody is answered ahead of the replica")
	p.link.Hold(false)
	for range n {
		require.NoError(t, <-errs)
	}
	require.EqualValues(t, n, p.Primary.Calls("evalsha"))
	require.Less(t, p.Primary.Calls("wait"), int64(n/2))
}

// TestAckIsRefused: the charge is made, so the outcome is not "rejected". The error repeats no
// argument.
func TestAckIsRefused(t *testing.T) {
	poor, old := redistest.Start(t), redistest.Start(t, "--rename-command", "wait", "")
	poor.SetUser("user u on >pw ~* +@all -wait")
	for says, client := range map[string]*redis.Client{
		"NOPERM":          poor.Client(redistest.User("u", "pw")),
		"unknown command": old.Client(),
	} {
		s := redisstore.New(client, redisstore.WithReplicaAck(1, time.Second))
		_, err := charge(t.Context(), s, "k", limit10, 1)
		require.ErrorIs(t, err, redisstore.ErrNotReplicated)
		require.Equal(t, backend.Unknown, class(t, err))
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), "with args")
	}
}

// TestAckOnCluster: WAIT goes where the script went, from the first call on.
func TestAckOnCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	for _, key := range []string{"foo", "k1", "k2", "k3"} {
		owner := cluster.NodeOf("{" + key + "}")
		s := redisstore.New(cluster.Client(), redisstore.WithReplicaAck(1, 10*time.Second))
		for i := range int64(3) {
			cluster.ResetStats()
			require.EqualValues(t, 9-i, take(t, s, key, 1).Remaining)
			require.Positive(t, owner.Calls("wait"), key)
			require.Equal(t, owner.Calls("eval", "evalsha"), cluster.Calls("wait"), key)
		}
		two := redisstore.New(cluster.Client(), redisstore.WithReplicaAck(2, brief))
		_, err := charge(t.Context(), two, key, limit10, 1)
		require.ErrorIs(t, err, redisstore.ErrNotReplicated, "each master has one replica")
		require.Regexp(t, "[01] of 2", err.Error())
	}
}

// TestAckOfDebt: debt that no replica has is not confirmed, so that it is named as an excess
// if a failover forgets it.
func TestAckOfDebt(t *testing.T) {
	t.Parallel()
	r := redistest.StartReplicated(t, 1)
	link := r.Link(0)
	limit := reservoir.PerHour(100)
	l, err := reservoir.New(redisstore.New(r.Primary.Client(), redisstore.WithReplicaAck(1, 20*time.Millisecond)), limit,
		reservoir.WithFixedBatch(1), reservoir.WithFetchTimeout(2*time.Second))
	require.NoError(t, err)
	first, err := l.AllowN(t.Context(), "k", 50)
	require.NoError(t, err)
	require.True(t, first.Allowed)
	link.Hold(true)
	require.NoError(t, l.Settle(t.Context(), first, 80)) // 30 more
	require.ErrorIs(t, l.Close(t.Context()), redisstore.ErrNotReplicated)
	require.Positive(t, link.Held())
	s := l.Stats()
	require.EqualValues(t, 30, s.Overdrawn)

	r.Primary.Kill()
	link.Cut()
	r.Promote(0)
	state, err := redisstore.New(r.Replicas[0].Client()).Check(t.Context(), "k", backend.Limit(limit))
	require.NoError(t, err)
	require.LessOrEqual(t, s.Spent+state.Remaining-s.Overdrawn, limit.Tokens)
}
