package redisstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// warned collects warnings.
type warned chan redisstore.Warning

func (w warned) take() redisstore.Option {
	return redisstore.WithWarnings(func(x redisstore.Warning) { w <- x })
}

// one expects exactly one warning, now or soon.
func (w warned) one(t *testing.T) redisstore.Warning {
	t.Helper()
	select {
	case x := <-w:
		return x
	case <-time.After(10 * time.Second):
		require.FailNow(t, "no warning")
		return redisstore.Warning{}
	}
}

var evicting = []string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}

// looked waits until the server has been asked for its memory policy. Its own
// clients, of the test, ask for other sections.
func looked(t *testing.T, server *redistest.Server, atLeast int64) {
	t.Helper()
	require.Eventually(t, func() bool { return server.Calls("info") >= atLeast }, 10*time.Second, time.Millisecond)
}

func TestWarnsOfEvictionOnce(t *testing.T) {
	server := redistest.Start(t, evicting...)
	w := make(warned, 10)
	s := redisstore.New(server.Client(), w.take())
	require.Empty(t, w, "not before there is a call")
	_, err := s.Take(t.Context(), backend.TakeRequest{Key: "canary", Limit: limit10, Tokens: 1})
	require.NoError(t, err)
	got := w.one(t)
	require.Equal(t, redisstore.Warning{Policy: "allkeys-lru", MaxMemory: 100 << 20}, got)
	require.Contains(t, got.String(), "noeviction")
	require.NotContains(t, got.String(), "canary")
	require.NotContains(t, got.String(), server.Addr())
	for i := range 50 {
		take(t, s, fmt.Sprint(i), 1)
	}
	require.Empty(t, w)
	take(t, redisstore.New(server.Client(), w.take()), "k", 1)
	w.one(t) // another store is another program's matter
}

// TestWarningKeepsNobody: it is not on the callers' path.
func TestWarningKeepsNobody(t *testing.T) {
	server := redistest.Start(t, evicting...)
	begun, end := make(chan struct{}), make(chan struct{})
	s := redisstore.New(server.Client(), redisstore.WithWarnings(func(redisstore.Warning) { close(begun); <-end }))
	take(t, s, "k", 1)
	<-begun
	take(t, s, "k", 1)
	close(end)
}

func TestNoWarningWithoutCause(t *testing.T) {
	for _, args := range [][]string{
		nil,
		{"--maxmemory", "100mb", "--maxmemory-policy", "noeviction"},
		{"--maxmemory-policy", "allkeys-lru"}, // and no bound
	} {
		server := redistest.Start(t, args...)
		w := make(warned, 10)
		before := server.Calls("info") // which asks itself
		take(t, redisstore.New(server.Client(), w.take()), "k", 1)
		looked(t, server, before+3) // the second of the test's and at least one of the store's
		require.Empty(t, w, args)
	}
}

// TestNoRightToINFO: no warning, no error, and no second try.
func TestNoRightToINFO(t *testing.T) {
	server := redistest.Start(t, evicting...)
	server.SetUser("user u on >pw ~* +@all -info")
	w := make(warned, 10)
	s := redisstore.New(server.Client(redistest.User("u", "pw")), w.take())
	for range 3 {
		take(t, s, "k", 1)
	}
	require.Eventually(t, func() bool { return denials(t, server, "info") == 1 }, 10*time.Second, time.Millisecond)
	take(t, s, "k", 1)
	require.EqualValues(t, 1, denials(t, server, "info"))
	require.Empty(t, w)
}

// denials is how often the command was refused for want of a right.
func denials(t *testing.T, server *redistest.Server, command string) (n int64) {
	t.Helper()
	log, err := server.Client().ACLLog(context.Background(), 100).Result()
	require.NoError(t, err)
	for _, entry := range log {
		if entry.Object == command {
			n += entry.Count
		}
	}
	return n
}

func TestWithoutWarnings(t *testing.T) {
	server := redistest.Start(t, evicting...)
	server.SetUser("user u on >pw ~* +@all -info")
	s := redisstore.New(server.Client(redistest.User("u", "pw")), redisstore.WithWarnings(nil))
	for i := range 20 {
		take(t, s, fmt.Sprint(i), 1)
	}
	require.Zero(t, denials(t, server, "info"))
}

func TestWarnsOfEvictionInCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	for _, node := range cluster.Nodes[1:] {
		require.NoError(t, node.Client().ConfigSet(t.Context(), "maxmemory", "100mb").Err())
		require.NoError(t, node.Client().ConfigSet(t.Context(), "maxmemory-policy", "volatile-ttl").Err())
	}
	w := make(warned, 10)
	s := redisstore.New(cluster.Client(), w.take())
	for i := range 50 {
		take(t, s, fmt.Sprint("first", i), 1)
	}
	require.Equal(t, "volatile-ttl", w.one(t).Policy)
	for i := range 50 {
		take(t, s, fmt.Sprint(i), 1)
	}
	require.Empty(t, w, "one for the store, not one for a node")
}
