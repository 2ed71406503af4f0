package table

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestText(t *testing.T) {
	rows := [][]string{{"", "a", "b"}, {"éé", "1", ""}, {"x", "22", "3"}}
	require.Equal(t, "     a    b\néé   1\nx    22   3\n", Text(rows, false))
	require.Equal(t, "       a  b\n  éé   1\n   x  22  3\n", Text(rows, true))
	require.Empty(t, Text(nil, true))
}

func TestCommas(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 999: "999", 1000: "1,000", -1000: "-1,000", -999: "-999", 1234567: "1,234,567", -1 << 63: "-9,223,372,036,854,775,808",
	} {
		require.Equal(t, want, Commas(n))
	}
}

func TestDigits(t *testing.T) {
	for text, v := range map[string]float64{
		"0": 0, "1234": 1234.4, "12.3": 12.345, "1.23": 1.2345, "0.12": 0.12345, "0.012": 0.012345, "1.2e-06": 1.2345e-6,
	} {
		require.Equal(t, text, Digits(v))
	}
	for d, want := range map[time.Duration]string{
		0: "0 ns", 110: "110 ns", 1234567: "1.23 ms", 1500 * time.Microsecond: "1.50 ms", 2500 * time.Millisecond: "2.50 s", 61 * time.Second: "61.0 s",
	} {
		require.Equal(t, want, Duration(d))
	}
	for share, want := range map[float64]string{
		0: "0 %", 1: "100 %", 0.5964: "59.6 %", 0.01: "1.00 %", 0.00051: "0.051 %", 0.0000072: "0.00072 %",
	} {
		require.Equal(t, want, Percent(share))
	}
}
