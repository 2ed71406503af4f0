package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestOptions(t *testing.T) {
	for _, row := range []struct {
		url      string
		addrs    []string
		login    string
		db       int
		tls      bool
		cluster  bool
		sentinel string
	}{
		{url: "redis://host", addrs: []string{"host:6379"}},
		{url: "redis://host:1/", addrs: []string{"host:1"}},
		{url: "redis://[::1]:7/3", addrs: []string{"[::1]:7"}, db: 3},
		{url: "redis://[::1]", addrs: []string{"[::1]:6379"}},
		{url: "redis://[fe80::1%25eth0]:7", addrs: []string{"[fe80::1%eth0]:7"}},
		{url: "rediss://u:p%40%2F%25%3A@h:1/15", addrs: []string{"h:1"}, login: "u p@/%:", db: 15, tls: true},
		{url: "redis://:pw@h", addrs: []string{"h:6379"}, login: " pw"},
		{url: "redis://u:a,b@h", addrs: []string{"h:6379"}, login: "u a,b"},
		{url: "redis-cluster://u:p@a,b:1,[::2]:3", addrs: []string{"a:6379", "b:1", "[::2]:3"}, login: "u p", cluster: true},
		{url: "rediss-cluster://a", addrs: []string{"a:6379"}, tls: true, cluster: true},
		{url: "redis-sentinel://:p@a,b:1/m", addrs: []string{"a:26379", "b:1"}, login: " p", sentinel: "m"},
		{url: "rediss-sentinel://a/m/2", addrs: []string{"a:26379"}, db: 2, tls: true, sentinel: "m"},
	} {
		o, err := redisstore.Options(row.url)
		require.NoError(t, err, row.url)
		require.Equal(t, row.addrs, o.Addrs, row.url)
		if row.login != "" {
			require.Equal(t, row.login, o.Username+" "+o.Password, row.url)
		}
		require.Equal(t, row.db, o.DB, row.url)
		require.Equal(t, row.tls, o.TLSConfig != nil, row.url)
		require.Equal(t, row.cluster, o.IsClusterMode, row.url)
		require.Equal(t, row.sentinel, o.MasterName, row.url)
		if row.tls {
			require.False(t, o.TLSConfig.InsecureSkipVerify)
			require.EqualValues(t, 0x303, o.TLSConfig.MinVersion)
		}
		require.Equal(t, -1, o.MaxRetries, "the store decides what may be repeated")
		require.Equal(t, 1, o.DialerRetries)
		require.True(t, o.ContextTimeoutEnabled)
		require.LessOrEqual(t, o.ReadTimeout, 200*time.Millisecond)
	}
}

// TestOptionsAreDiscreet: what is wrong with a URL may be a password.
func TestOptionsAreDiscreet(t *testing.T) {
	for _, url := range []string{
		"", "canary", "://canary", "http://canary", "redis-canary://h", "rediss", "redisscanary://h", "redis:canary@h",
		"redis://", "redis://canary@h", "redis://canary:@h", "redis://u:can%ary@h", "redis://u:can/ary@h", "redis://u:can#ary@h",
		"redis://u:can?ary@h", "redis://u:can ary@h", "redis://u:canary@", "redis://u:canary@h:0", "redis://u:canary@h:65536", "redis://u:canary@h:x", "redis://u:canary@::1", "redis-cluster://u:canary@a,u:canary@b",
		"redis://u:canary@h/canary", "redis://u:canary@h/-1", "redis://u:canary@h/99999", "redis://u:canary@a,b", "redis://u:1#canary@h", "redis://u:1?canary@h",
		"redis://u:12/34canary@h", "redis-cluster://u:canary@h/1", "redis-cluster://u:canary@a,,b", "redis-sentinel://u:canary@h", "redis-sentinel://u:canary@h//1", "redis-sentinel://u:canary@h/m/canary",
	} {
		_, err := redisstore.Options(url)
		require.ErrorContains(t, err, "reservoir: redis URL: ", "%q", url)
		_, err2 := redisstore.Open(url)
		_, err3 := redisstore.OpenShards(map[string][]string{"a": {url}})
		for _, err := range []error{err, err2, err3} {
			require.NotContains(t, fmt.Sprintf("%v %+v %#v", err, err, err), "ary", "%q", url)
		}
	}
}

// TestFaultNamesItsPart: also where the part is missing, or a slash cuts the password in two.
func TestFaultNamesItsPart(t *testing.T) {
	for url, part := range map[string]string{"": "it is empty", "redis://u:1/2@h:6379": "its user and password", "redis://h/x": "its path", "redis://h:x": "its port"} {
		_, err := redisstore.Options(url)
		require.ErrorContains(t, err, part, url)
	}
}

// TestOpen: by a URL alone to each kind of server.
func TestOpen(t *testing.T) {
	t.Parallel()
	server, cluster := redistest.Start(t), redistest.StartCluster(t, 3, 0)
	server.SetUser("user u on >p@ss ~api:* +@all")
	sentinel := redistest.StartSentinel(t, redistest.StartReplicated(t, 1), 1)
	for _, url := range []string{
		"redis://u:p%40ss@" + server.Addr(),
		"redis-cluster://" + cluster.Nodes[0].Addr() + "," + cluster.Nodes[1].Addr(),
		"redis-sentinel://" + sentinel.Sentinels[0].Addr() + "/" + sentinel.MasterName,
	} {
		s, err := redisstore.Open(url, redisstore.WithPrefix("api:"))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return takeWithin(s, "k", 10*time.Second) == nil }, 10*time.Second, time.Millisecond)
		require.NoError(t, s.Close())
		err = takeWithin(s, "k", 10*time.Second)
		require.ErrorContains(t, err, "closed")
		require.Equal(t, backend.Rejected, class(t, err))
		require.NoError(t, s.Close(), "again")
	}
	_, err := redisstore.Open("redis://h", redisstore.WithPrefix("{"))
	require.ErrorContains(t, err, "prefix")
}

// TestOpenShards: GitHub's layout by URLs. Requests go to primaries, checks to replicas.
func TestOpenShards(t *testing.T) {
	t.Parallel()
	shards := map[string][]string{}
	pairs := map[string]*redistest.Replicated{}
	for _, name := range []string{"a", "b"} {
		pairs[name] = redistest.StartReplicated(t, 1)
		shards[name] = []string{"redis://" + pairs[name].Primary.Addr(), "redis://" + pairs[name].Replicas[0].Addr()}
	}
	s, err := redisstore.OpenShards(shards, redisstore.WithPrefix("api:"))
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	for i := range 20 {
		key := fmt.Sprint("k", i)
		at := pairs[s.Shard(key)]
		require.Eventually(t, func() bool {
			_, err := s.Take(t.Context(), backend.TakeRequest{Key: key, Limit: limit10, Tokens: 3})
			return err == nil
		}, 10*time.Second, time.Millisecond)
		require.Eventually(t, func() bool {
			state, err := s.Check(t.Context(), key, limit10)
			return err == nil && state.Remaining <= 7
		}, 10*time.Second, time.Millisecond)
		require.Positive(t, at.Replicas[0].Calls("evalsha_ro", "eval_ro"))
		require.Positive(t, at.Primary.Client().Exists(t.Context(), "api:{"+key+"}").Val())
	}
	_, err = redisstore.OpenShards(nil)
	require.Error(t, err)
	_, err = redisstore.OpenShards(map[string][]string{"a": nil})
	require.ErrorContains(t, err, "no redis client")
}
