package redisstore_test

import (
	"crypto/tls"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// TestOptions compares all fields, so nothing else of a URL reaches the client.
func TestOptions(t *testing.T) {
	verified := &tls.Config{MinVersion: tls.VersionTLS12} // no ServerName, so each server's own is verified
	at := func(addrs ...string) []string { return addrs }
	for url, want := range map[string]redis.UniversalOptions{
		"redis://host":                      {Addrs: at("host:6379")},
		"redis://host:1/":                   {Addrs: at("host:1")},
		"redis://[::1]:7/3":                 {Addrs: at("[::1]:7"), DB: 3},
		"redis://[::1]":                     {Addrs: at("[::1]:6379")},
		"redis://[fe80::1%25eth0]:7":        {Addrs: at("[fe80::1%eth0]:7")},
		"rediss://u:p%40%2F%25%3A@h:1/15":   {Addrs: at("h:1"), Username: "u", Password: "p@/%:", DB: 15, TLSConfig: verified},
		"rediss://u%40x:%23%3F+%26@h?db=15": {Addrs: at("h:6379"), Username: "u@x", Password: "#?+&", DB: 15, TLSConfig: verified},
		"redis://:pw@h":                     {Addrs: at("h:6379"), Password: "pw"},
		"redis://u:a,b@h":                   {Addrs: at("h:6379"), Username: "u", Password: "a,b"},
		"unix:///run/r.sock":                {Addrs: at("/run/r.sock")},
		"unix://u:p%40@/run/%40r?db=2":      {Addrs: at("/run/@r"), Username: "u", Password: "p@", DB: 2},

		"redis-cluster://u:p%2F@a?addr=b:1&addr=[::2]:3": {Addrs: at("a:6379", "b:1", "[::2]:3"), Username: "u", Password: "p/", IsClusterMode: true},
		"redis-cluster://[::1]/":                         {Addrs: at("[::1]:6379"), IsClusterMode: true},
		"rediss-cluster://a?addr=b:1":                    {Addrs: at("a:6379", "b:1"), TLSConfig: verified, IsClusterMode: true},

		"redis-sentinel://a?master_name=m":                     {Addrs: at("a:26379"), MasterName: "m"},
		"redis-sentinel://[::1]:?master_name=m":                {Addrs: at("[::1]:26379"), MasterName: "m"},
		"rediss-sentinel://a:1/2?master_name=m&addr=b:3":       {Addrs: at("a:1", "b:3"), MasterName: "m", DB: 2, TLSConfig: verified},
		"redis-sentinel://a?master_name=m&password=p%26%2B%40": {Addrs: at("a:26379"), MasterName: "m", Password: "p&+@"},
		"redis-sentinel://s:q%40@a?master_name=m&username=u&password=p": {Addrs: at("a:26379"), MasterName: "m",
			SentinelUsername: "s", SentinelPassword: "q@", Username: "u", Password: "p"},
	} {
		want.MaxRetries, want.DialerRetries, want.ContextTimeoutEnabled = -1, 1, true // the store decides what may be repeated
		want.DialTimeout, want.ReadTimeout, want.WriteTimeout, want.ConnMaxIdleTime = 2*time.Second, 5*time.Second, 5*time.Second, time.Minute
		if want.IsClusterMode {
			want.ReadTimeout, want.WriteTimeout = 2*time.Second, 2*time.Second
		}
		want.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		o, err := redisstore.Options(url)
		require.NoError(t, err, url)
		require.Equal(t, want, *o, url)
	}
}

// TestOptionsAreDiscreet: what is wrong with a URL may be a password. What the parsers
// themselves would let pass, or show, stands here for each of them.
func TestOptionsAreDiscreet(t *testing.T) {
	urls := []string{
		"", "canary", "://canary", "http://canary", "redis-canary://h", "rediss", "redisscanary://h", "redis:canary@h", "unix:canary",
		"redis://u:canary@h/canary", "redis://u:canary@h/-1", "redis://u:canary@h?db=canary", "redis://u:12/34canary@h", "redis://u:1?db=canary@h",
		"unix://u:canary@", "unix://u:canary@h/s", "unix://u:1/canary@/s", "unix://canary/s", "unix-cluster://u:canary@/s",
		"redis://u:canary@h?pool_size=1", "rediss://u:canary@h?skip_verify=true", "rediss://u:canary@h?skip_verify", "rediss://u:canary@h?skip%5Fverify=0",
		"redis-cluster://u:canary@h?read_only=true", "redis-sentinel://h?master_name=m&read_timeout=9s", "redis-cluster://u:canary@h/1", "redis-cluster://u:canary@h?db=1", "redis-cluster://u:canary@h?addr=canary", "redis-cluster://u:canary@h?addr=u:canary@b:1",
		"redis-cluster://u:canary@a,u:canary@b", "redis-cluster://u:1/canary@h", "redis-cluster://u:canary@h?master_name=m", "redis-cluster://h?password=canary",
		"redis-sentinel://u:canary@h", "redis-sentinel://u:canary@h/canary?master_name=m", "redis-sentinel://h?master_name=m&db=canary",
		"redis-sentinel://h?master_name=m&username=canary", "redis-sentinel://h?master_name=m&username=canary&password=", "redis-sentinel://h?master_name=m&password=",
		"redis-sentinel://h?master_name=m&password=can#ary", "redis-sentinel://h?master_name=m&password=canary#", "redis-sentinel://h?master_name=m&password=can&ary", "redis-sentinel://h?master_name=m&password=can;ary",
		"redis-sentinel://h?master_name=m&password=%zzcanary", "redis-sentinel://h?master_name=m&password=c@nary", "redis-sentinel://u:canary@h/m", "redis-sentinel://h?addr=canary&master_name=m",
	}
	for _, scheme := range []string{"redis", "rediss", "redis-cluster", "rediss-cluster", "redis-sentinel", "rediss-sentinel"} {
		for _, rest := range []string{
			"", ":1", "canary@h", "canary:@h", ":@h", "u:can%ary@h", "u:%zzcanary@h", "u:can/ary@h", "u:can#ary@h", "u:can?ary@h", "u:can ary@h", "u:c@nary@h",
			"u:canary@", "u:canary@:1", "u:canary@h:x", "u:canary@h:canary", "u:canary@[::1", "u:canary@::1", "u:canary@h:1:2", "u:canary@a,b", "u:canary@a:1,b:2", "u:canary@h/1/2",
			"u:1#canary@h", "u:1?canary@h", "u:1?pool_size=canary@h", "u:12/34canary@h",
		} {
			urls = append(urls, scheme+"://"+rest+"?master_name=m", scheme+"://"+rest)
		}
	}
	for _, url := range urls {
		_, err := redisstore.Options(url)
		require.ErrorContains(t, err, "reservoir: redis URL: want redis://", "%q", url)
		_, err2 := redisstore.Open(url)
		_, err3 := redisstore.OpenShards(map[string][]string{"a": {"redis://h", url}})
		for _, err := range []error{err, err2, err3} {
			require.NotContains(t, fmt.Sprintf("%v %+v %#v", err, err, err), "ary", "%q", url)
		}
	}
}

// TestOpen: by a URL alone to each kind of server.
func TestOpen(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "redis.sock")
	server, cluster, servers := redistest.Start(t, "--unixsocket", socket), redistest.StartCluster(t, 3, 0), redistest.StartReplicated(t, 1)
	server.SetUser("user u on >p@ss ~api:* +@all")
	servers.Primary.SetUser("user u on >p@ss ~api:* +@all")
	sentinel := startSentinels(t, servers, 1)[0]
	sentinel.SetUser("user s on >q@ss allchannels +@all")
	for _, url := range []string{
		"redis://u:p%40ss@" + server.Addr(),
		"unix://u:p%40ss@" + socket + "?db=1",
		"redis-cluster://127.0.0.1:1?addr=" + cluster.Nodes[1].Addr(),
		"redis-sentinel://s:q%40ss@" + sentinel.Addr() + "/3?username=u&password=p%40ss&master_name=" + masterName,
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
			_, err := charge(t.Context(), s, key, limit10, 3)
			return err == nil
		}, 10*time.Second, time.Millisecond)
		require.Eventually(t, func() bool {
			state, err := s.Check(t.Context(), key, limit10)
			return err == nil && state.Remaining <= 7
		}, 10*time.Second, time.Millisecond)
		require.Positive(t, at.Replicas[0].Calls("evalsha_ro", "eval_ro"))
		require.Positive(t, at.Primary.Client().Exists(t.Context(), "api:{"+key+"}:60s").Val())
	}
	_, err = redisstore.OpenShards(nil)
	require.Error(t, err)
	_, err = redisstore.OpenShards(map[string][]string{"a": nil})
	require.ErrorContains(t, err, "no redis client")
}
