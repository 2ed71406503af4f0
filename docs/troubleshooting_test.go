package docs_test

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// The errors of docs/troubleshooting.md are those of real servers in the state that the page names.
func TestTroubleshooting(t *testing.T) {
	logging.Disable()
	s := redistest.Start(t)
	admin, ctx := s.Client(), t.Context()
	set := func(args ...any) { require.NoError(t, admin.Do(ctx, args...).Err()) }
	ask := func(url string, verify bool) string { return asked(t, url, verify) }
	at := "@" + s.Addr()

	set("acl", "setuser", "mute", "on", ">pw", "~*", "+@all", "resetchannels")
	set("acl", "setuser", "weak", "on", ">pw", "~*", "+@all", "-evalsha")
	set("acl", "setuser", "poor", "on", ">pw", "~*", "+@all", "-hmget")
	set("acl", "setuser", "astray", "on", ">pw", "~rl:*", "+@all")
	set("acl", "setuser", "full", "on", ">pw", "~*", "+@all", "&*")
	texts := []string{
		ask("redis://full:wrong"+at, false),
		ask("redis://weak:pw"+at, false),
		ask("redis://poor:pw"+at, false),
		ask("redis://astray:pw"+at, false),
		ask("redis://mute:pw"+at, true),
		reservoir.ErrExceedsLimit.Error(),
	}
	set("config", "set", "maxmemory", "1mb")
	texts = append(texts, ask("redis://full:pw"+at, false))
	set("config", "set", "maxmemory-policy", "allkeys-lru")
	texts = append(texts, ask("redis://full:pw"+at, true))
	s.Pause()
	texts = append(texts, ask("redis://full:pw"+at, false))
	s.Resume()
	set("config", "set", "requirepass", "pw")
	texts = append(texts, ask("redis://"+s.Addr(), false))
	s.Kill()
	texts = append(texts, ask("redis://"+s.Addr(), false))
	cluster, full := redistest.StartCluster(t, 3, 0), redistest.Start(t, "--maxclients", "1")
	require.NoError(t, full.Client().Ping(ctx).Err()) // it stays connected
	texts = append(texts,
		ask("redis://"+redistest.Start(t, "--cluster-enabled", "yes").Addr(), false), // without slots
		ask("redis://"+cluster.Nodes[0].Addr(), true),
		ask("redis://"+full.Addr(), false),
		ask("redis://"+redistest.Start(t, "--rename-command", "evalsha", "").Addr(), false))

	_, list, found := strings.Cut(documents(t)["docs/troubleshooting.md"], "## Errors")
	require.True(t, found)
	list, _, _ = strings.Cut(list, "\n\n`httplimit`")
	rows := regexp.MustCompile("(?m)^- (`[^`]+`(?:, `[^`]+`)*): ").FindAllStringSubmatch(list, -1)
	require.Greater(t, len(rows), 10)
	for _, row := range rows { // of several texts one is enough: which of them a hang causes is chance
		said := regexp.MustCompile("`(.*?)`").FindAllStringSubmatch(row[1], -1)
		require.True(t, slices.ContainsFunc(said, func(m []string) bool { return holds(texts, strings.Split(m[1], " … ")) }),
			"no error says %s:\n%s", row[1], strings.Join(texts, "\n"))
	}
}

// Calls take too long, or find nobody, for each cause that the page names.
func TestCauses(t *testing.T) {
	slow := regexp.MustCompile("i/o timeout|context deadline exceeded|no answer within the fetch timeout|the server got the command too late")
	far := redistest.NewProxy(t, redistest.Start(t).Addr())
	far.Delay(time.Second) // even the first calls end before they are connected
	require.Regexp(t, slow, asked(t, "redis://"+far.Addr(), false))
	require.Positive(t, far.Delayed())

	options, err := redisstore.Options("redis://" + redistest.Start(t).Addr())
	require.NoError(t, err)
	options.PoolSize = 2
	shared := redis.NewUniversalClient(options)
	defer shared.Close()
	for range 2 { // the program's own use of the client
		held := shared.(*redis.Client).Conn()
		defer held.Close()
		require.NoError(t, held.Ping(t.Context()).Err())
	}
	said := askedBy(t, redisstore.New(shared))
	require.Regexp(t, slow, said)
	require.Contains(t, said, "connections of the client's pool are in use")
	require.Zero(t, shared.PoolStats().IdleConns)

	hidden := redistest.Start(t, "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.9") // nobody listens there
	require.NoError(t, hidden.Client().ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	require.Contains(t, asked(t, "redis-cluster://"+hidden.Addr(), false), "dial tcp 127.0.0.9:")
}

// holds reports whether one of the texts has all the parts.
func holds(texts, parts []string) bool {
	return slices.ContainsFunc(texts, func(text string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
	})
}

// asked returns the errors of some requests, or of Verify.
func asked(t *testing.T, url string, verify bool) string {
	store, err := redisstore.Open(url)
	require.NoError(t, err)
	defer store.Close()
	if verify {
		return store.Verify(t.Context()).Error()
	}
	return askedBy(t, store)
}

// askedBy returns the errors of some requests.
func askedBy(t *testing.T, store *redisstore.Store) string {
	limiter, err := reservoir.New(store, reservoir.PerMinute(100))
	require.NoError(t, err)
	defer limiter.Close(context.Background())
	var all []string
	for range 7 { // five failures open the circuit
		_, err := limiter.Allow(t.Context(), "user:42")
		if _, ok := errors.AsType[*backend.Error](err); ok {
			all = append(all, err.Error())
		}
	}
	return strings.Join(all, "\n")
}
