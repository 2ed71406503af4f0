package sim

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Faults of a record of traffic. They come in a *LineError where they have a line.
var (
	ErrColumns = errors.New("want two columns, a time and a key")
	ErrTime    = errors.New("want a time in Unix seconds, as 1700000000.25, or in RFC 3339, as 2023-11-14T22:13:20.25Z")
	ErrMillis  = errors.New("a time after the year 9999: want Unix seconds, not milliseconds")
	ErrKey     = errors.New("want a key of 1 to 4,096 bytes")
	ErrCSV     = errors.New("not CSV: a quote that is not closed, not doubled or not at a field's ends")
	ErrEmpty   = errors.New("no requests")
	ErrMany    = fmt.Errorf("more than %d requests", MaxRequests)
	ErrSpan    = errors.New("more than 366 days from the first request to the last")
)

// LineError is what is wrong with a line of a record. Its text does not repeat
// the line, whose keys may be somebody's.
type LineError struct {
	Line int // from 1
	Err  error
}

// Error names the line and its fault.
func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns the fault.
func (e *LineError) Unwrap() error { return e.Err }

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

// trace is a record while it is read.
type trace struct {
	most      int // requests
	rand      *rand.Rand
	processes int32
	stamps    []stamped
	keys      []string
	index     map[string]int32 // of keys
}

func newTrace(processes int, seed uint64) *trace {
	r := rand.New(rand.NewPCG(seed, 2))
	return &trace{most: MaxRequests, rand: r, processes: int32(processes), index: make(map[string]int32)}
}

// stamped is a request at a wall time.
type stamped struct {
	sec int64
	Request
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
		case len(t.stamps) == t.most:
			return ErrMany
		}
		if err := t.add(fields); err != nil {
			line, _ := c.FieldPos(0)
			return &LineError{line, err}
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
		return &LineError{p.Line, ErrCSV}
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
	sec, nsec, err := instant(strings.TrimSpace(fields[0]))
	if err != nil {
		return err
	}
	if backend.ValidateKey(fields[1]) != nil {
		return ErrKey
	}
	key, ok := t.index[fields[1]]
	if !ok {
		key = int32(len(t.keys))
		name := strings.Clone(fields[1]) // or it would hold the whole line
		t.keys = append(t.keys, name)
		t.index[name] = key
	}
	at := Request{At: time.Duration(nsec), Key: key, Process: t.rand.Int32N(t.processes)}
	t.stamps = append(t.stamps, stamped{sec, at})
	return nil
}

// instant reads a time of either form as Unix seconds and the ns after them.
func instant(s string) (sec, nsec int64, err error) {
	if strings.ContainsRune(s, 'T') || strings.ContainsRune(s, 't') {
		at, err := time.Parse(time.RFC3339, s)
		if err != nil || at.Unix() < 0 {
			return 0, 0, ErrTime
		}
		return at.Unix(), int64(at.Nanosecond()), nil
	}
	whole, part, fraction := strings.Cut(s, ".")
	if !numeric(whole) || fraction && !numeric(part) {
		return 0, 0, ErrTime
	}
	sec, err = strconv.ParseInt(whole, 10, 64)
	const year10000 = 253_402_300_800
	if err != nil || sec >= year10000 {
		return 0, 0, ErrMillis
	}
	part = (part + "000000000")[:9] // not by a float, which has no room for ns
	nsec, _ = strconv.ParseInt(part, 10, 64)
	return sec, nsec, nil
}

func numeric(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
}

// traffic puts the requests in order and counts their times from the first.
func (t *trace) traffic() (Traffic, error) {
	if len(t.stamps) == 0 {
		return Traffic{}, ErrEmpty
	}
	slices.SortStableFunc(t.stamps, func(a, b stamped) int {
		if a.sec != b.sec {
			return int(a.sec - b.sec)
		}
		return int(a.At - b.At)
	})
	first, last := t.stamps[0], t.stamps[len(t.stamps)-1]
	if last.sec-first.sec > int64(maxSpan/time.Second) {
		return Traffic{}, ErrSpan
	}
	all := Traffic{Requests: make([]Request, len(t.stamps)), Keys: t.keys, Processes: int(t.processes)}
	for i, s := range t.stamps {
		all.Requests[i] = s.Request
		all.Requests[i].At += time.Duration(s.sec-first.sec)*time.Second - first.At
	}
	all.Length = all.Requests[len(all.Requests)-1].At + 1
	return all, nil
}
