package redisstore

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

// tagged is what all keys of a limit begin with.
var tagged = tagOf

func TestTagged(t *testing.T) {
	for key, want := range map[string]string{
		"user123":    "{user123}",
		"bob":        "{bob}",
		"bob:exp":    "{bob:exp}",
		"a/b.c-d_e":  "{a/b.c-d_e}",
		"日本":         "{日本}",
		"a b":        "{a%20b}",
		"}x":         "{%7Dx}",
		"{}":         "{%7B%7D}",
		"x}1":        "{x%7D1}",
		"%7D":        "{%257D}",
		"\x00\n\x7f": "{%00%0A%7F}",
		"\xff\xc3":   "{\xff\xc3}",
	} {
		require.Equal(t, want, tagged("", key))
		require.Equal(t, "rl:"+want, tagged("rl:", key))
		require.Equal(t, [3]string{"rl:" + want + ":60s", "rl:" + want + ":60s:exp", "rl:" + want + ":60s:own"}, keysOf("rl:", key, "60s"))
		for _, counter := range []string{"60s", "1500ms", "60s:roll", "day@Europe/Berlin", ""} {
			back, of, ok := split(keysOf("rl:", key, counter)[0], "rl:")
			require.True(t, ok)
			require.Equal(t, []string{key, counter}, []string{back, of})
		}
	}
	for _, other := range []string{"", "rl:", "rl:k", "rl:{k", "{k}:60s", "rl:{%zz}:60s"} {
		_, _, ok := split(other, "rl:")
		require.False(t, ok, other)
	}
}

// TestCallIsOneAllocation: all its arguments lie in it. The other one is the counter's name.
func TestCallIsOneAllocation(t *testing.T) {
	s, ctx := New(redis.NewClient(&redis.Options{})), t.Context()
	t.Cleanup(func() { _ = s.client.Close() })
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		c := s.newCall(ctx, syncScript, "user:123456", backend.Limit{Tokens: 1000, Window: time.Hour})
		c.numbers(1<<40, 1<<41, 1<<42)
		c.declare(3)
	}), 2.0)
}

func FuzzTagged(f *testing.F) {
	for _, key := range []string{"k", "", "}", "{}", "x}1", "%7D", "%", "\x00", "\r\n", "\xff", "\u2028", "日本", strings.Repeat("}", 50)} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		inner, ok := strings.CutPrefix(tagged("rl:", key), "rl:{")
		inner, closed := strings.CutSuffix(inner, "}")
		require.True(t, ok && closed)
		back, err := url.PathUnescape(inner)
		require.NoError(t, err)
		require.Equal(t, key, back, "one to one")
		require.NotRegexp(t, `[{}\x00-\x20\x7f]`, inner)
	})
}

func TestSetUp(t *testing.T) {
	good := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer good.Close()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	for _, row := range []struct {
		what   string
		client redis.UniversalClient
		opts   []Option
		want   string
	}{
		{"a client", good, nil, ""},
		{"a prefix", good, []Option{WithPrefix("rl:v1:")}, ""},
		{"a replica", good, []Option{WithReplicas(good)}, ""},
		{"nil", nil, nil, "no redis client"},
		{"a nil client", (*redis.Client)(nil), nil, "no redis client"},
		{"a nil cluster", (*redis.ClusterClient)(nil), nil, "no redis client"},
		{"a ring", ring, nil, "sharding package"},
		{"a nil replica", good, []Option{WithReplicas(nil)}, "no redis client"},
		{"a ring of replicas", good, []Option{WithReplicas(good, ring)}, "sharding package"},
		{"an open brace", good, []Option{WithPrefix("{x")}, "prefix"},
		{"a closed brace", good, []Option{WithPrefix("x}")}, "prefix"},
		{"a blank", good, []Option{WithPrefix("a b")}, "prefix"},
		{"a line", good, []Option{WithPrefix("a\n")}, "prefix"},
		{"NUL", good, []Option{WithPrefix("\x00")}, "prefix"},
		{"another control character", good, []Option{WithPrefix("\u0085")}, "prefix"},
	} {
		s := New(row.client, row.opts...)
		if row.want == "" {
			require.NoError(t, s.Err(), row.what)
			continue
		}
		require.ErrorContains(t, s.Err(), row.want, row.what)
		_, err := s.Check(t.Context(), "k", limit10)
		require.ErrorIs(t, err, s.err, row.what)
	}
}
