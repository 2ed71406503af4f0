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
	most := int64(backend.MaxTokens)
	c := &Counter{stop: 1_764_000_060_000, length: 60_000, used: most, ledger: ledger{
		total: 5, learn: 3, unattributed: 6, exhausted: 4, present: 2, reset: true,
		own: map[string]account{
			"b": {granted: 1000, present: true}, "a": {300, 50, 20, 7, true}, " \n\"\x00\xff%\u2028": {most, most, most, most, false}, "": {},
		},
	}}
	var got Counter
	require.NoError(t, got.UnmarshalText([]byte(text(t, c))))
	require.Equal(t, c, &got)

	delete(c.own, "")
	delete(c.own, " \n\"\x00\xff%\u2028")
	require.Equal(t, "reservoir/2 1764000060000 60000 9007199254740991 5 3 6 4 1\n300 50 20 7 1 \"a\"\n1000 0 0 0 1 \"b\"\n", text(t, c))

	// A window without a ledger is another thing than one whose ledger is empty.
	for _, c := range []*Counter{{stop: 1, length: 1, used: 7}, {stop: 1, length: 1, used: 7, ledger: ledger{own: map[string]account{}}}} {
		require.NoError(t, got.UnmarshalText([]byte(text(t, c))))
		require.Equal(t, c, &got)
	}
}

// TestForeignText: what somebody else wrote, or half of it, is no counter.
func TestForeignText(t *testing.T) {
	const head = "reservoir/2 1764000060000 60000 5 5 0 0 0\n"
	require.NoError(t, new(Counter).UnmarshalText([]byte(head+"5 1 0 0 1 \"a\"\n")))
	require.NoError(t, new(Counter).UnmarshalText([]byte(head+"5 8 3 0 1 \"a\"\n")), "debt may be returned too")
	for _, text := range []string{
		"", "7", "reservoir/2", "reservoir/2 1 2 3", "reservoir/1 1764000060000 5 0 0 5 0\n", "reservoir/3 1764000060000 60000 5\n",
		"reservoir/2 0 60000 5\n", "reservoir/2 -1 60000 5\n", "reservoir/2 9007199254741 60000 5\n",
		"reservoir/2 1764000060000 0 5\n", "reservoir/2 1764000060000 31622400001 5\n", "reservoir/2 1764000060000 -60000 5\n",
		"reservoir/2 1764000060000 60000 -5\n", "reservoir/2 1764000060000 60000 9007199254740992\n",
		"reservoir/2 1764000060000 60000 5 5 0 0\n", "reservoir/2 1764000060000 60000 5 5 0 0 0 0\n", "reservoir/2 1764000060000 60000 5 1\n", "reservoir/2 1764000060000 60000 5 5 0 0 0 1 1\n", "reservoir/2 1764000060000  60000 5\n",
		"reservoir/2 1764000060000 60000 5 x 0 0 0\n", "reservoir/2 1764000060000 60000 5 5 0 1e3 0\n", "reservoir/2 1764000060000 60000 5 5 0 0 -1\n",
		"reservoir/2 1764000060000 60000 5\n5 1 0 0 1 \"a\"\n", // an account without a ledger
		head + "5 1 0 0 1 \"a\"", head + "5 1 0 0 1 a\n", head + "5 6 0 0 1 \"a\"\n", head + "5 9 3 0 1 \"a\"\n", head + "5 1 0 0 2 \"a\"\n", head + "5 1 0 0\n", head + "\n",
		head + "5 1 0 0 1 \"a\"\n5 1 0 0 1 \"a\"\n", head + "5 -1 0 0 1 \"a\"\n", head + "x 1 0 0 1 \"a\"\n", head + "5 1 0 -1 1 \"a\"\n",
	} {
		require.ErrorIs(t, new(Counter).UnmarshalText([]byte(text)), ErrText, "%q", text)
	}
}

// FuzzText: whatever is accepted has one text, and the steps go on from it.
func FuzzText(f *testing.F) {
	const now = 1_764_000_000_000_000
	f.Add("reservoir/2 1764000060000 60000 5 5 0 0 0\n5 1 2 3 1 \"a\"\n")
	f.Add("reservoir/2 1764000060000 31622400000 5 7 1764000000001 2 1764000000001\n")
	f.Add("reservoir/2 1764000060000 31622400000 5\n")
	f.Add("reservoir/2 1764000060000 31622400000 0 0 0 0 0 1\n")
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
