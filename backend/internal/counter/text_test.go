package counter

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

func text(t testing.TB, c *Counter) string {
	t.Helper()
	b, err := c.AppendText(nil)
	require.NoError(t, err)
	return string(b)
}

// TestText: a counter with everything in it comes back as it was.
func TestText(t *testing.T) {
	c := &Counter{stop: 1_764_000_060_000, used: backend.MaxTokens, learn: 3, dry: 4, total: 5, loose: 6, own: map[string]account{
		"b": {1000, 0}, "a": {300, 50}, " \n\"\x00\xff%\u2028": {backend.MaxTokens, backend.MaxTokens}, "": {1, 1},
	}}
	var got Counter
	require.NoError(t, got.UnmarshalText([]byte(text(t, c))))
	require.Equal(t, c, &got)

	c.own = map[string]account{"b": {1000, 0}, "a": {300, 50}}
	require.Equal(t, "reservoir/1 1764000060000 9007199254740991 3 4 5 6\n300 50 \"a\"\n1000 0 \"b\"\n", text(t, c))
}

// TestForeignText: what somebody else wrote, or half of it, is no counter.
func TestForeignText(t *testing.T) {
	const head = "reservoir/1 1764000060000 5 0 0 5 0\n"
	require.NoError(t, new(Counter).UnmarshalText([]byte(head+"5 1 \"a\"\n")))
	for _, text := range []string{
		"", "7", "reservoir/1", "reservoir/1 1 2 3 4 5 6", "reservoir/2 1764000060000 5 0 0 5 0\n",
		"reservoir/1 0 5 0 0 5 0\n", "reservoir/1 -1 5 0 0 5 0\n", "reservoir/1 9007199254741 5 0 0 5 0\n",
		"reservoir/1 1764000060000 -5 0 0 5 0\n", "reservoir/1 1764000060000 9007199254740992 0 0 5 0\n",
		"reservoir/1 1764000060000 5 0 0 5\n", "reservoir/1 1764000060000 5 0 0 5 0 0\n", "reservoir/1 1764000060000  5 0 0 5 0\n",
		"reservoir/1 1764000060000 5 x 0 5 0\n", "reservoir/1 1764000060000 5 0 1e3 5 0\n", "reservoir/1 1764000060000 5 0 0 5 -1\n",
		head + "5 1 \"a\"", head + "5 1 a\n", head + "5 6 \"a\"\n", head + "0 0 \"a\"\n", head + "5 1\n", head + "\n",
		head + "5 1 \"a\"\n5 1 \"a\"\n", head + "5 -1 \"a\"\n", head + "x 1 \"a\"\n",
	} {
		require.ErrorIs(t, new(Counter).UnmarshalText([]byte(text)), errText, "%q", text)
	}
}

// FuzzText: whatever is accepted has one text, and the steps go on from it.
func FuzzText(f *testing.F) {
	const now = 1_764_000_000_000_000
	f.Add("reservoir/1 1764000060000 5 0 0 5 0\n5 1 \"a\"\n")
	f.Add("reservoir/1 1764000060000 5 1764000000001 1764000000001 7 2\n")
	f.Fuzz(func(t *testing.T, s string) {
		var c, again Counter
		if c.UnmarshalText([]byte(s)) != nil {
			return
		}
		first := text(t, &c)
		require.NoError(t, again.UnmarshalText([]byte(first)))
		require.Equal(t, first, text(t, &again))

		limit := backend.Limit{Tokens: 10, Window: backend.MaxWindow}
		reply := c.Sync(backend.SyncRequest{Key: "k", Client: "a", Limit: limit, Want: 20, Need: 20, Strand: -1}, now)
		require.LessOrEqual(t, reply.Grant-reply.Recovered, limit.Tokens)
		require.NoError(t, again.UnmarshalText([]byte(text(t, &c))))
		require.False(t, strings.Contains(text(t, &again), "-"), text(t, &again))
	})
}
