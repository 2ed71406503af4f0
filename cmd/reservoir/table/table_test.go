package table

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestText(t *testing.T) {
	rows := [][]string{{"", "a", "b"}, {"éé", "1", ""}, {"x", "22", "3"}}
	require.Equal(t, "     a    b\néé   1\nx    22   3\n", Text(rows, false))
	require.Equal(t, "       a  b\n  éé   1\n   x  22  3\n", Text(rows, true))
	require.Empty(t, Text(nil, true))
}

func TestWrap(t *testing.T) {
	require.Equal(t, "one two\nthree", Wrap("one two three", 8))
	require.Equal(t, "é é\né", Wrap("é é é", 3))
	require.Equal(t, "lo\nng\nx", Wrap(" long x", 2))
	require.Equal(t, "a\nlo\nng", Wrap("a long", 2))
	require.Empty(t, Wrap("", 8))
	require.Equal(t, "it is\n5.0 % of\nit", Wrap("it is 5.0 % of it", 9), "a number keeps its sign")
}

func TestFit(t *testing.T) {
	require.Equal(t, "short   text\n", Fit("short   text\n", 12))
	require.Equal(t, "a\n  -flag\n    with a\n     word\n\nb", Fit("a\n  -flag\n    with a word\n\nb", 10))
	require.Equal(t, "key     a\n  b", Fit("key     a b", 10), "columns stay where there is room")
	for width := range 40 {
		for line := range strings.Lines(Fit("     words of some lengths, indented\nand longones\n", max(width, 5))) {
			require.LessOrEqual(t, len(strings.TrimSuffix(line, "\n")), max(width, 5))
		}
	}
}

func TestWithin(t *testing.T) {
	rows := [][]string{{"key", "charged"}, {"a", "1,000"}, {"b", "20"}}
	require.Equal(t, Text(rows, false), Within(15, rows, false))
	require.Equal(t, "key       a\ncharged   1,000\n\nkey       b\ncharged   20\n", Within(10, rows, false))
}

func TestCommas(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 999: "999", 1000: "1,000", -1000: "-1,000", -999: "-999", 1234567: "1,234,567", -1 << 63: "-9,223,372,036,854,775,808",
	} {
		require.Equal(t, want, Commas(n))
	}
}
