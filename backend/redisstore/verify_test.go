package redisstore_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// parts are the faults that an error of Verify joins, without those of what could not be
// checked.
func parts(t *testing.T, err error) (unverified int, faults error) {
	t.Helper()
	if err == nil {
		return 0, nil
	}
	for _, part := range err.(interface{ Unwrap() []error }).Unwrap() {
		if errors.Is(part, redisstore.ErrUnverified) {
			unverified++
			continue
		}
		_, ok := errors.AsType[*backend.Error](part)
		assert.True(t, ok, part)
		faults = errors.Join(faults, part)
	}
	return unverified, faults
}

// TestVerifyNamesAll: several faults of several servers are one error.
func TestVerifyNamesAll(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	s := redisstore.New(c.Client())
	require.NoError(t, s.Verify(t.Context()))

	node := redisstore.New(c.Nodes[0].Client(documented)) // a client that takes it for the whole
	require.ErrorContains(t, node.Verify(t.Context()), "use a redis-cluster:// URL")
	elsewhere := keysIn(c, c.SlotsOf(c.Nodes[1]), "k", 1)[0]
	_, err := charge(t.Context(), node, elsewhere, millions, 1)
	failure, _ := errors.AsType[*backend.Error](err)
	require.Equal(t, backend.Rejected, failure.Class)
	require.True(t, failure.KeyOnly)
	require.NotContains(t, err.Error(), c.Nodes[1].Addr())

	for i, policy := range []string{"noeviction", "allkeys-lru", "volatile-ttl"} {
		client := c.Nodes[i].Client()
		require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "100mb").Err())
		require.NoError(t, client.ConfigSet(t.Context(), "maxmemory-policy", policy).Err())
	}
	c.SetUser("user poor on >PASSWORD ~* &* +@all -hset -subscribe")
	err = redisstore.New(c.Client(clusterUser("poor"))).Verify(t.Context())
	for _, fault := range []string{"allkeys-lru", "volatile-ttl", "sync: store rejected", "reset: store rejected", "listen: store rejected"} {
		require.ErrorContains(t, err, fault)
	}
	require.NotContains(t, err.Error(), "maxmemory-policy noeviction,")
	require.NotRegexp(t, `verify:\w{26}`, err.Error(), "a key")
}

// TestVerifyOfAServerThatIsAway: it is one fault, not ten.
func TestVerifyOfAServerThatIsAway(t *testing.T) {
	server := redistest.Start(t)
	s := redisstore.New(server.Client(documented), redisstore.WithReplicas(server.Client(documented)))
	require.NoError(t, s.Verify(t.Context()))
	server.Kill()
	_, faults := parts(t, s.Verify(t.Context()))
	require.Equal(t, backend.Unavailable, class(t, faults))
	require.Len(t, faults.(interface{ Unwrap() []error }).Unwrap(), 1)

	closed := redisstore.New(server.Client(documented))
	require.NoError(t, closed.Close())
	require.Equal(t, backend.Rejected, class(t, closed.Verify(t.Context())))
}
