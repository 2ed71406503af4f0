package table

import (
	"testing"

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
