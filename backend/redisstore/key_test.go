package redisstore

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// tagged is the first of a limit's keys.
func tagged(prefix, key string) string { return keysOf(prefix, key)[0] }

func TestTagged(t *testing.T) {
	for key, want := range map[string]string{
		"user123":      "{user123}",
		"bob":          "{bob}",
		"bob:exp":      "{bob:exp}",
		"a/b.c-d_e":    "{a/b.c-d_e}",
		"日本":           "{日本}",
		"a b":          "{a%20b}",
		"}x":           "{%7Dx}",
		"{}":           "{%7B%7D}",
		"x}1":          "{x%7D1}",
		"%7D":          "{%257D}",
		"\x00\n\x7f":   "{%00%0A%7F}",
		"\xff\xc3":     "{%FF%C3}",
		"\u0085\u009f": "{%C2%85%C2%9F}",
		"\u2028":       "{%E2%80%A8}",
		"\ufffd":       "{\ufffd}", // a good rune, though it stands for bad ones
	} {
		require.Equal(t, want, tagged("", key))
		require.Equal(t, "rl:"+want, tagged("rl:", key))
	}
}

// unescape is the inverse of escape.
func unescape(t *testing.T, s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		require.Less(t, i+2, len(s))
		high, low := strings.IndexByte("0123456789ABCDEF", s[i+1]), strings.IndexByte("0123456789ABCDEF", s[i+2])
		require.True(t, high >= 0 && low >= 0, s)
		b.WriteByte(byte(high<<4 | low))
		i += 2
	}
	return b.String()
}

var hostile = []string{
	"k", "", "}", "{", "{}", "}x", "x}1", "x}2", "%7D", "%", "%%", "bob", "bob:exp", "\x00", "\n", "\r\n", " ",
	"\xff", "\xc3\x28", "\u0085", "\u2028", "\u2029", "\u009b", "\ufffd", "日本", strings.Repeat("}", 50),
}

func FuzzTagged(f *testing.F) {
	for _, key := range hostile {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		tag := tagged("rl:", key)
		require.True(t, strings.HasPrefix(tag, "rl:{") && strings.HasSuffix(tag, "}"))
		inner := tag[4 : len(tag)-1]
		require.Equal(t, key, unescape(t, inner), "one to one")
		require.NotContains(t, inner, "{")
		require.NotContains(t, inner, "}")
		require.True(t, utf8.ValidString(inner))
		require.False(t, strings.ContainsFunc(inner, func(r rune) bool {
			return unicode.IsControl(r) || r == ' ' || r == '\u2028' || r == '\u2029'
		}), "%q", inner)
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
