package placement

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNamed(t *testing.T) {
	require.Equal(t, "k", Named("", "k"))
	require.Equal(t, "n\x1fk", Named("n", "k"))
	require.Equal(t, "n\x1fa\x1f\x1fb", Named("n", "a\x1fb"))
	require.Equal(t, "n\x1f\x1fk", Named("", "n\x1fk"), "no user is called like another limit's")
}

// No two pairs have one key in the store, and the pair is found again.
func TestSplitReversesNamed(t *testing.T) {
	seen := make(map[string]bool)
	for _, name := range []string{"", "n", "per second"} {
		for _, key := range []string{"k", "\x1f", "\x1fk", "k\x1f\x1f", "a\x1fb", "n\x1fk", "\x1f\x1f\x1f"} {
			stored := Named(name, key)
			require.False(t, seen[stored], "%q", stored)
			seen[stored] = true
			gotName, gotKey := Split(stored)
			require.Equal(t, [2]string{name, key}, [2]string{gotName, gotKey})
		}
	}
}
