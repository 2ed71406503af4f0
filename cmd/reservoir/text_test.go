package main

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestText(t *testing.T) {
	for share, want := range map[float64]string{
		0: "0.0 %", 1: "100.0 %", 0.5964: "59.6 %", 0.01: "1.0 %", 0.00051: "0.051 %", 0.0000072: "0.00072 %",
	} {
		require.Equal(t, want, percent(share))
	}
	for d, want := range map[time.Duration]string{
		0: "0s", 110: "110ns", 1234567: "1.23ms", 2500 * time.Millisecond: "2.5s", 61 * time.Second: "1m1s",
	} {
		require.Equal(t, want, short(d))
	}
	require.Equal(t, "plain:é", quoted("plain:é"))
	require.Equal(t, `"\x1b[2J"`, quoted("\x1b[2J"))
	require.Equal(t, `"a b"`, quoted("a b"))
	require.Equal(t, `"\x9b2J"`, quoted("\x9b2J"), "CSI in one byte")
	require.Equal(t, `"\u009b2J"`, quoted("\u009b2J"))
	require.Equal(t, "a ?[2J ?2J ?c é", oneLine(errors.New("reservoir: a\n\x1b[2J \x9b2J\t\u009bc é")))
}
