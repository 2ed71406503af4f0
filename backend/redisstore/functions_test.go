package redisstore_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/backendtest"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/lua"
)

// loadLibrary does what an operator does.
func loadLibrary(t *testing.T, servers ...*redistest.Server) {
	t.Helper()
	for _, s := range servers {
		require.NoError(t, s.Client().FunctionLoad(t.Context(), lua.Library()).Err())
	}
}

func TestSuiteByFunctions(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	loadLibrary(t, server)
	server.ResetStats()
	backendtest.Run(t, always(redisstore.New(server.Client(), redisstore.WithFunctions())))
	require.Positive(t, server.Calls("fcall"))
	require.Positive(t, server.Calls("fcall_ro"))
	require.Zero(t, server.Calls("eval", "evalsha", "eval_ro", "evalsha_ro"))
}

func TestSuiteByFunctionsOnCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	loadLibrary(t, cluster.Nodes...)
	backendtest.Run(t, always(redisstore.New(cluster.Client(), redisstore.WithFunctions())))
	for _, node := range cluster.Nodes {
		require.Positive(t, node.Calls("fcall"), "every master has had a part")
		require.Zero(t, node.Calls("eval", "evalsha"))
	}
}

// TestMissingLibrary: who has not loaded it is told what to load, and nothing of
// the sort is tried by the store.
func TestMissingLibrary(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	s := redisstore.New(client, redisstore.WithFunctions())
	server.ResetStats()
	for op, err := range allCalls(t.Context(), s, "k") {
		require.Equal(t, backend.Rejected, class(t, err), op)
		require.ErrorContains(t, err, lua.LibraryName(), op)
		require.ErrorContains(t, err, "FUNCTION LOAD", op)
	}
	require.EqualValues(t, 4, server.Calls("fcall", "fcall_ro"), "once each")
	require.Zero(t, server.Calls("eval", "eval_ro", "evalsha", "evalsha_ro"))
	require.Empty(t, contents(t, client))
	require.NoError(t, client.FunctionLoad(t.Context(), lua.Library()).Err())
	for op, err := range allCalls(t.Context(), s, "k") {
		require.NoError(t, err, op)
	}
}

// TestLibrariesSideBySide: while programs are updated, both versions serve, on the
// same windows as the scripts.
func TestLibrariesSideBySide(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	loadLibrary(t, server)
	version := strings.TrimPrefix(lua.LibraryName(), "reservoir_")
	old := strings.ReplaceAll(lua.Library(), version, "0ld0ld00")
	require.NoError(t, client.FunctionLoad(t.Context(), old).Err())
	take(t, redisstore.New(client), "k", 3)
	s := redisstore.New(client, redisstore.WithFunctions())
	require.EqualValues(t, 5, take(t, s, "k", 2).Remaining)
	require.NoError(t, client.FunctionDelete(t.Context(), "reservoir_0ld0ld00").Err())
	require.EqualValues(t, 4, take(t, s, "k", 1).Remaining)
}

func TestCheckOnReplicaByFunction(t *testing.T) {
	r := redistest.StartReplicated(t, 1)
	loadLibrary(t, r.Primary)
	replica := r.Replicas[0].Client()
	s := redisstore.New(r.Primary.Client(), redisstore.WithReplicas(replica), redisstore.WithFunctions())
	take(t, s, "k", 4)
	caughtUp(t, replica, "k", 4)
	require.EqualValues(t, 6, remaining(t, s, "k"))
	require.EqualValues(t, 1, r.Replicas[0].Calls("fcall_ro"))
	require.Zero(t, r.Primary.Calls("fcall_ro"))
}

// TestLostReplyOfFunction: what may be repeated does not depend on the form.
func TestLostReplyOfFunction(t *testing.T) {
	server := redistest.Start(t)
	loadLibrary(t, server)
	proxy := redistest.NewProxy(t, server.Addr())
	client := server.Client(func(o *redis.Options) { o.Addr = proxy.Addr() })
	s := redisstore.New(client, redisstore.WithFunctions())
	take(t, s, "k", 1)
	server.ResetStats()
	proxy.SwallowReply("fcall", 1)
	got, err := s.Sync(t.Context(), backend.SyncRequest{Key: "k", Client: "a", Limit: limit10, Want: 4, Strand: -1})
	require.NoError(t, err)
	require.EqualValues(t, 1, proxy.Swallowed())
	require.EqualValues(t, 2, server.Calls("fcall"))
	require.EqualValues(t, 4, got.Recovered)

	proxy.SwallowReply("fcall", 1)
	_, err = s.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 2})
	require.Equal(t, backend.Unknown, class(t, err))
	require.EqualValues(t, 2, proxy.Swallowed())
	require.EqualValues(t, 3, server.Calls("fcall"), "never again")
	require.EqualValues(t, 3, remaining(t, s, "k"))
}

// TestNoMemoryForFunctions: a full server refuses before anything is written, and
// checks go on.
func TestNoMemoryForFunctions(t *testing.T) {
	server := redistest.Start(t)
	loadLibrary(t, server)
	client := server.Client()
	s := redisstore.New(client, redisstore.WithFunctions())
	take(t, s, "k", 1)
	before := contents(t, client)
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	for op, err := range allCalls(t.Context(), s, "k") {
		if op == "check" {
			require.NoError(t, err)
			continue
		}
		require.Equal(t, backend.Rejected, class(t, err), op)
		require.ErrorContains(t, err, "OOM", op)
	}
	require.Equal(t, before, contents(t, client))
}
