package sim

import (
	"bufio"
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

// Faults of a record of traffic. The errors of a line name it.
var (
	ErrColumns = errors.New("want two columns, a time and a key")
	ErrTime    = errors.New("want a time in Unix seconds, as 1700000000.25, or in RFC 3339, as 2023-11-14T22:13:20.25Z")
	ErrMillis  = errors.New("a time after the year 2262: want Unix seconds, not milliseconds")
	ErrKey     = errors.New("want a key of 1 to 4,096 bytes")
	ErrCSV     = errors.New("not CSV: a quote that is not closed, not doubled or not at a field's ends")
	ErrEmpty   = errors.New("no requests")
	ErrMany    = fmt.Errorf("more than %d requests", MaxRequests)
	ErrSpan    = errors.New("more than 366 days from the first request to the last")
)

// atLine says which line of a record is at fault, from 1. The text does not repeat the line,
// whose keys may be somebody's.
func atLine(line int, err error) error { return fmt.Errorf("line %d: %w", line, err) }

const maxSpan = 366 * 24 * time.Hour

// ReadTrace reads recorded traffic: CSV with a time and a key in its first two
// columns; further ones are ignored, as are empty lines and lines that begin with
// #. A first line whose time begins with a letter is a header. The lines need not
// be in order, for a record of several processes rarely is. Records do not say
// which process a request came to, so each comes to a random one of processes,
// which the seed decides.
func ReadTrace(in io.Reader, processes int, seed uint64) (Traffic, error) {
	t := newTrace(processes, seed)
	if err := t.read(in); err != nil {
		return Traffic{}, err
	}
	return t.traffic()
}

// trace is a record while it is read. The times of its requests are since 1970.
type trace struct {
	Traffic
	most  int // requests
	rand  *rand.Rand
	index map[string]int32 // of keys
}

func newTrace(processes int, seed uint64) *trace {
	r := rand.New(rand.NewPCG(seed, 2))
	return &trace{Traffic: Traffic{Processes: processes}, most: MaxRequests, rand: r, index: make(map[string]int32)}
}

func (t *trace) read(in io.Reader) error {
	c := csv.NewReader(withoutMark(in))
	c.FieldsPerRecord, c.ReuseRecord, c.Comment = -1, true, '#'
	for first := true; ; first = false {
		fields, err := c.Read()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return fault(err)
		case first && header(fields):
			continue
		case len(t.Requests) == t.most:
			return ErrMany
		}
		if err := t.add(fields); err != nil {
			line, _ := c.FieldPos(0)
			return atLine(line, err)
		}
	}
}

// withoutMark skips the byte order mark that spreadsheets write.
func withoutMark(in io.Reader) io.Reader {
	b := bufio.NewReader(in)
	if mark, err := b.Peek(3); err == nil && string(mark) == "\ufeff" {
		_, _ = b.Discard(3) // just seen
	}
	return b
}

// fault is an error of the CSV reader, or of what it reads from.
func fault(err error) error {
	if p, ok := errors.AsType[*csv.ParseError](err); ok {
		return atLine(p.Line, ErrCSV)
	}
	return err
}

func header(fields []string) bool {
	s := strings.TrimSpace(fields[0])
	return s != "" && (s[0]|0x20 >= 'a' && s[0]|0x20 <= 'z')
}

func (t *trace) add(fields []string) error {
	if len(fields) < 2 {
		return ErrColumns
	}
	at, err := instant(strings.TrimSpace(fields[0]))
	if err != nil {
		return err
	}
	if backend.ValidateKey(fields[1]) != nil {
		return ErrKey
	}
	key, ok := t.index[fields[1]]
	if !ok {
		key = int32(len(t.Keys))
		name := strings.Clone(fields[1]) // or it would hold the whole line
		t.Keys = append(t.Keys, name)
		t.index[name] = key
	}
	t.Requests = append(t.Requests, Request{At: at, Key: key, Process: t.rand.Int32N(int32(t.Processes))})
	return nil
}

// instant reads a time of either form, as the time since 1970. It goes through no float,
// which has no room for ns.
func instant(s string) (time.Duration, error) {
	if strings.ContainsAny(s, "Tt") {
		at, err := time.Parse(time.RFC3339, s)
		switch {
		case err != nil || at.Unix() < 0:
			return 0, ErrTime
		case at.Year() >= 2262:
			return 0, ErrMillis
		}
		return time.Duration(at.UnixNano()), nil
	}
	whole, part, fraction := strings.Cut(s, ".")
	if !numeric(whole) || fraction && !numeric(part) {
		return 0, ErrTime
	}
	at, err := time.ParseDuration(s + "s")
	if err != nil {
		return 0, ErrMillis
	}
	return at, nil
}

func numeric(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// traffic puts the requests in order and counts their times from the first.
func (t *trace) traffic() (Traffic, error) {
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
	return t.Traffic, nil
}
