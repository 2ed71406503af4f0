package main

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQuoted(t *testing.T) {
	require.Equal(t, "plain:é", quoted("plain:é"))
	require.Equal(t, `"\x1b[2J"`, quoted("\x1b[2J"))
	require.Equal(t, `"a b"`, quoted("a b"))
	require.Equal(t, `"\x9b2J"`, quoted("\x9b2J"), "CSI in one byte")
	require.Equal(t, `"\u009b2J"`, quoted("\u009b2J"))
	require.Equal(t, "a ?[2J ?2J ?c é", oneLine(errors.New("reservoir: a\n\x1b[2J \x9b2J\t\u009bc é")))
}
