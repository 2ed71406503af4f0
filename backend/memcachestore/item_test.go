package memcachestore

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

// TestNames: each key has a name of its own, which memcached takes.
func TestNames(t *testing.T) {
	s := New(nil, WithPrefix(strings.Repeat("p", maxPrefix)))
	long := strings.Repeat("k", maxKey)
	hashed := s.name(long)
	keys := []string{
		"a", "A", "%61", "a ", " a", "a\n", "a\r\n", "a\r\nflush_all\r\n", "a\x00", "a\x7f", "a/b", "a%2Fb", "a//b", "#", "a#b", "+", "%",
		"%25", "\xff", "\xfe", "ü", "\u0085", "\u2028", long, long + "k", strings.Repeat("%", 100), strings.Repeat(" ", 84),
		strings.TrimPrefix(hashed, s.prefix+"/"), strings.Repeat("\xff", backend.MaxKeyLen), strings.Repeat("k", backend.MaxKeyLen),
		strings.Repeat("k", maxKey-maxPrefix-1), strings.Repeat("k", maxKey-maxPrefix),
	}
	seen := make(map[string]string)
	for _, key := range keys {
		name := s.name(key)
		require.NotContains(t, seen, name, "%q and %q share a name", key, seen[name])
		seen[name] = key
		legal(t, name)
	}
	require.Equal(t, "reservoir/user:42", New(nil).name("user:42"), "ordinary keys are their own")
	require.NotEqual(t, New(nil, WithPrefix("a")).name("b/c"), New(nil, WithPrefix("a/b")).name("c"))
}

func legal(t *testing.T, name string) {
	t.Helper()
	require.LessOrEqual(t, len(name), maxKey)
	for _, c := range []byte(name) {
		require.Greater(t, c, byte(' '))
		require.Less(t, c, byte(0x7f))
	}
}

// FuzzNames: two keys never share a name.
func FuzzNames(f *testing.F) {
	f.Add("a/b", "a%2Fb")
	f.Add("#", strings.Repeat("k", maxKey))
	f.Fuzz(func(t *testing.T, a, b string) {
		s := New(nil)
		legal(t, s.name(a))
		require.Equal(t, a == b, s.name(a) == s.name(b))
	})
}

// TestExpiration: what memcached makes of the number is an instant after the
// window's end, and not long after it.
func TestExpiration(t *testing.T) {
	const day = 24 * time.Hour
	for _, now := range []time.Time{time.Unix(1_764_000_000, 0), time.Unix(math.MaxInt32-40*86400, 0)} {
		for _, left := range []time.Duration{
			-time.Hour, 0, time.Millisecond, time.Second, time.Hour, 30*day - 7*time.Second, 30*day - 6*time.Second, 30*day - 5*time.Second,
			30*day - time.Second, 30 * day, 30*day + time.Second, 31 * day, backend.MaxWindow,
		} {
			n := int64(expiration(left, now))
			if now.Add(left+farGrace).Unix() > math.MaxInt32 && left >= 30*day {
				require.Zero(t, n, "no such time can be said: never")
				continue
			}
			require.Positive(t, n, "0 is never, and less is at once")
			if n <= 30*24*60*60 { // as memcached reads it
				n += now.Unix()
			}
			require.WithinRange(t, time.Unix(n, 0), now.Add(left).Add(grace), now.Add(max(left, 0)+farGrace), "%v", left)
		}
	}
}

// TestLongWindows: no window is read as a time of 1970.
func TestLongWindows(t *testing.T) {
	s := over(t, start(t).Addr())
	const day = 24 * time.Hour
	for _, window := range []time.Duration{time.Second, 30*day - 6*time.Second, 30*day - time.Second, 30 * day, 30*day + time.Second, 31 * day, backend.MaxWindow} {
		l := backend.Limit{Tokens: 10, Window: window}
		_, err := s.Take(t.Context(), backend.TakeRequest{Key: window.String(), Limit: l, Tokens: 3})
		require.NoError(t, err)
		state, err := s.Check(t.Context(), window.String(), l)
		require.NoError(t, err)
		require.EqualValues(t, 7, state.Remaining, "%v", window)
	}
}

// TestSetUp: a fault of the set-up is told before a call meets it, and by calls.
func TestSetUp(t *testing.T) {
	good := dial(t, "127.0.0.1:1")
	for what, s := range map[string]*Store{
		"no client":    New(nil),
		"slash":        New(good, WithPrefix("a/b")),
		"blank":        New(good, WithPrefix("a b")),
		"control":      New(good, WithPrefix("a\n")),
		"other blank":  New(good, WithPrefix("a\u2028")),
		"long":         New(good, WithPrefix(strings.Repeat("p", maxPrefix+1))),
		"not UTF-8":    New(good, WithPrefix("\xff")),
		"other script": New(good, WithPrefix("ü")),
	} {
		failed(t, s.Err(), backend.Rejected)
		_, err := s.Check(t.Context(), "k", limit10)
		require.Equal(t, "check", failed(t, err, backend.Rejected).Op, what)
	}
	require.NoError(t, New(good).Err())
	require.NoError(t, New(good, WithPrefix("")).Err())
}
