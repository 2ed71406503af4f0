package sim

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReadTrace(t *testing.T) {
	const ms = time.Millisecond
	for _, row := range []struct {
		name, text string
		at         []time.Duration
		keys       string // of the requests, in order
	}{
		{"plain", "100.5,a\n101,b\n102.25,a\n", []time.Duration{0, 500 * ms, 1750 * ms}, "aba"},
		{"a header", "time,key\n1,a\n", []time.Duration{0}, "a"},
		{"RFC 3339, of two zones", "2023-11-14T22:13:20.25Z,a\n2023-11-14T23:13:20.5+01:00,b\n", []time.Duration{0, 250 * ms}, "ab"},
		{"both forms", "1700000000,a\n2023-11-14T22:13:21Z,b\n", []time.Duration{0, time.Second}, "ab"},
		{"nanoseconds", "1700000000.000000001,a\n1700000000.0000000029,b\n", []time.Duration{0, 1}, "ab"},
		{"not in order", "3,c\n1,a\n2,b\n1,d\n", []time.Duration{0, 0, time.Second, 2 * time.Second}, "adbc"},
		{"more columns, some of them", "1,a,GET,200\n2,b\n3,c,\n", []time.Duration{0, time.Second, 2 * time.Second}, "abc"},
		{"comments, empty lines, CRLF, blanks", "# a record\r\n\r\n 1 ,a\r\n#2,b\r\n3,c", []time.Duration{0, 2 * time.Second}, "ac"},
		{"a byte order mark", "\ufeff1,a\n", []time.Duration{0}, "a"},
		{"quotes", "\"1\",\"a\"\n", []time.Duration{0}, "a"},
	} {
		got, err := ReadTrace(strings.NewReader(row.text), MaxRequests)
		require.NoError(t, err, row.name)
		var at []time.Duration
		var keys string
		for _, q := range got.Requests {
			at, keys = append(at, q.At), keys+got.Keys[q.Key]
		}
		require.Equal(t, row.at, at, row.name)
		require.Equal(t, row.keys, keys, row.name)
		require.Greater(t, got.Length, at[len(at)-1], row.name)
	}
}

func TestReadTraceNamesTheLine(t *testing.T) {
	for _, row := range []struct {
		name, text string
		line       int // 0 = of the whole
		err        error
	}{
		{"one column", "1,a\n2\n", 2, ErrLine},
		{"not RFC 3339", "1,a\n2023-11-14T22:13:20,a\n", 2, ErrLine},
		{"before 1970", "1969-11-14T22:13:20Z,a\n", 1, ErrLine},
		{"milliseconds", "1700000000123,a\n", 1, ErrLine},
		{"no key", "1,a\n2,\n", 2, ErrLine},
		{"a long key", "1," + strings.Repeat("k", 4097) + "\n", 1, ErrLine},
		{"an open quote", "1,a\n2,\"b\n3,c\n", 3, ErrLine},
		{"after a quoted line break", "1,\"a\nb\"\nx,c\n", 3, ErrLine},
		{"nothing", "", 0, ErrSpan},
		{"two years", "0,a\n63072000,b\n", 0, ErrSpan},
	} {
		_, err := ReadTrace(strings.NewReader(row.text), MaxRequests)
		require.ErrorIs(t, err, row.err, row.name)
		want := row.err.Error()
		if row.line > 0 {
			want = fmt.Sprintf("line %d: %v", row.line, row.err)
		}
		require.EqualError(t, err, want, row.name)
	}
	_, err := ReadTrace(broken{}, MaxRequests)
	require.ErrorIs(t, err, errBroken)
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errBroken }

var errBroken = errors.New("broken")

func TestReadTraceStopsAtTheBound(t *testing.T) {
	_, err := ReadTrace(strings.NewReader("time,key\n1,a\n2,b\n"), 2)
	require.NoError(t, err)
	_, err = ReadTrace(strings.NewReader("1,a\n2,b\n3,c\n"), 2)
	require.ErrorIs(t, err, ErrMany)
}
