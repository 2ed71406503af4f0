package lua

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLibraryIsTheScripts(t *testing.T) {
	text := Library()
	require.True(t, strings.HasPrefix(text, "#!lua name="+LibraryName()+"\n"))
	for op, source := range map[string]string{"sync": Sync, "take": Take, "check": Check, "refund": Refund} {
		require.Equal(t, 1, strings.Count(text, source), op)
		require.Equal(t, 1, strings.Count(text, "'"+FunctionName(op)+"'"), op)
	}
	require.Regexp(t, `^reservoir_[0-9a-f]{8}$`, LibraryName())
}

// A name says what is behind it: with another script, all names are others.
func TestLibraryNameFollowsTheScripts(t *testing.T) {
	before := functions
	defer func() { functions = before }()
	name, text := LibraryName(), registered("")
	functions = append(functions[:0:0], before...)
	functions[1].source += "-- changed\n"
	require.NotEqual(t, text, registered(""), "the name is a hash of this")
	require.Contains(t, FunctionName("take"), strings.TrimPrefix(name, "reservoir_"))
}
