package sim

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Errors of [ReadTrace]. It adds the number of the line if one is at fault.
var (
	ErrColumns = errors.New("want two columns, a time and a key")
	ErrTime    = errors.New("want a time in Unix seconds, such as 1700000000.25, or in RFC 3339, such as 2023-11-14T22:13:20.25Z")
	ErrMillis  = errors.New("a time after the year 2262: want Unix seconds, not milliseconds")
	ErrKey     = errors.New("want a key of 1 to 4,096 bytes")
	ErrCSV     = errors.New("not CSV: a quote that is not closed, not doubled or not at a field's ends")
	ErrEmpty   = errors.New("no requests")
	ErrMany    = errors.New("too many requests")
	ErrSpan    = errors.New("more than 366 days from the first request to the last")
)

const maxSpan = 366 * 24 * time.Hour

// ReadTrace reads recorded traffic of at most so many requests: CSV with a time and a key
// in its first two columns; further ones are ignored, as are empty lines and lines that
// begin with #. A first line whose time begins with a letter is a header. The lines need
// not be in order, because a record of several processes rarely is. Records do not say
// which process served a request, so the seed assigns each request to one of processes.
// An error has the number of the line and not its text, because a key may be private.
func ReadTrace(in io.Reader, processes int, seed uint64, most int) (Traffic, error) {
	t := Traffic{Processes: processes}
	r, index := rand.New(rand.NewPCG(seed, 2)), make(map[string]int32)
	c := csv.NewReader(in)
	c.FieldsPerRecord, c.ReuseRecord, c.Comment = -1, true, '#'
	for first := true; ; first = false {
		fields, err := c.Read()
		bad, unreadable := errors.AsType[*csv.ParseError](err)
		switch {
		case err == io.EOF:
			return t.inOrder()
		case unreadable:
			return Traffic{}, fmt.Errorf("line %d: %w", bad.Line, ErrCSV)
		case err != nil:
			return Traffic{}, err
		case first && header(fields[0]):
			continue
		case len(t.Requests) == most:
			return Traffic{}, fmt.Errorf("%w: more than %d", ErrMany, most)
		}
		at, err := parseLine(fields)
		if err != nil {
			line, _ := c.FieldPos(0)
			return Traffic{}, fmt.Errorf("line %d: %w", line, err)
		}
		key, known := index[fields[1]]
		if !known {
			key = int32(len(t.Keys))
			t.Keys = append(t.Keys, strings.Clone(fields[1])) // so that it does not keep the whole line
			index[t.Keys[key]] = key
		}
		t.Requests = append(t.Requests, Request{at, key, r.Int32N(int32(processes))})
	}
}

// header reports whether a field begins with a letter, after the byte order mark that
// spreadsheets write.
func header(s string) bool {
	s = strings.TrimSpace(strings.TrimPrefix(s, "\ufeff"))
	return s != "" && (s[0]|0x20 >= 'a' && s[0]|0x20 <= 'z')
}

// parseLine reads a time of either form as the time since 1970. It uses no float, because
// floats lose nanoseconds.
func parseLine(fields []string) (time.Duration, error) {
	if len(fields) < 2 {
		return 0, ErrColumns
	}
	s := strings.TrimSpace(strings.TrimPrefix(fields[0], "\ufeff"))
	whole, part, fraction := strings.Cut(s, ".")
	at, err := time.ParseDuration(s + "s")
	switch date, notDate := time.Parse(time.RFC3339, s); {
	case notDate == nil && date.Unix() >= 0 && date.Year() < 2262:
		at = time.Duration(date.UnixNano())
	case notDate == nil && date.Unix() >= 0:
		return 0, ErrMillis
	case !numeric(whole) || fraction && !numeric(part):
		return 0, ErrTime
	case err != nil:
		return 0, ErrMillis
	}
	if backend.ValidateKey(fields[1]) != nil {
		return 0, ErrKey
	}
	return at, nil
}

func numeric(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// inOrder sorts the requests and counts their times from the first.
func (t Traffic) inOrder() (Traffic, error) {
	n := len(t.Requests)
	if n == 0 {
		return Traffic{}, ErrEmpty
	}
	slices.SortStableFunc(t.Requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	first := t.Requests[0].At
	for i := range t.Requests {
		t.Requests[i].At -= first
	}
	last := t.Requests[n-1].At
	if last > maxSpan {
		return Traffic{}, ErrSpan
	}
	t.Length = last + 1
	return t, nil
}
