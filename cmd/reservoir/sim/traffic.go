// Package sim replays traffic against real limiters, and counts what that costs.
//
// A [Traffic] is a list of requests, made from a description by [Shape] or read from a
// record by [ReadTrace]. A [Replay] makes them, each at its time, on one real Limiter for
// each process, and returns an [Outcome]. "reservoir tune" and the module test use it. The
// clock is virtual: an hour of traffic takes only as long as its decisions, and a busy
// machine does not change the outcome.
package sim

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
)

// MaxRequests bounds a traffic, because each request takes 16 bytes and is replayed for
// each policy.
const MaxRequests = 10_000_000

// Traffic is a list of requests, in order of their times.
type Traffic struct {
	Requests  []Request
	Tokens    int64 // per request
	Keys      []string
	Processes int
	Length    time.Duration // at least the last request's time
}

// Request is one request of a traffic.
type Request struct {
	At      time.Duration // since the beginning of the traffic
	Key     int32         // index in Traffic.Keys
	Process int32         // index of the process that receives it
}

// Shape describes a traffic whose requests arrive at random, independently of each other,
// and at a random process, as behind a load balancer.
type Shape struct {
	Rate      float64 // requests per second on average
	Tokens    int64   // per request
	Keys      int
	Zipf      float64 // exponent above 1 of a Zipf distribution that prefers the first keys; 0 = evenly
	Processes int
	Length    time.Duration
	Seed      uint64 // equal shapes make equal traffics
}

// Traffic makes the requests, but at most [MaxRequests].
func (s Shape) Traffic() Traffic {
	r := rand.New(rand.NewPCG(s.Seed, 1))
	t := Traffic{Keys: Keys(s.Keys), Tokens: s.Tokens, Processes: s.Processes, Length: s.Length}
	pick := Picker(r, s.Keys, s.Zipf)
	for at := 0.0; len(t.Requests) < MaxRequests; {
		if at += r.ExpFloat64() / s.Rate * float64(time.Second); at >= float64(s.Length) {
			break
		}
		t.Requests = append(t.Requests, Request{time.Duration(at), int32(pick()), r.Int32N(int32(s.Processes))})
	}
	return t
}

// Picker returns a function that picks one of n keys at random: evenly if zipf is 0,
// otherwise by a Zipf distribution with that exponent. The function is not safe for
// concurrent use.
func Picker(r *rand.Rand, n int, zipf float64) func() int {
	if zipf == 0 || n == 1 {
		return func() int { return r.IntN(n) }
	}
	z := rand.NewZipf(r, zipf, 1, uint64(n-1))
	return func() int { return int(z.Uint64()) }
}

// Keys returns n names: key-0, key-1 and so on.
func Keys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = "key-" + strconv.Itoa(i)
	}
	return keys
}

// Errors of [ReadTrace]. It adds the number of the line if one is at fault.
var (
	ErrLine = errors.New("want CSV: a time in Unix seconds, such as 1700000000.25, or in RFC 3339, such as 2023-11-14T22:13:20.25Z, and a key of 1 to 4,096 bytes")
	ErrMany = errors.New("too many requests")
	ErrSpan = errors.New("want at least one request, and at most 366 days from the first to the last")
)

// ReadTrace reads recorded traffic of at most so many requests: CSV with a time and a key
// in its first two columns; it ignores further columns, empty lines and lines that begin
// with #. A first line whose time begins with a letter is a header. The lines need not be
// in order, because a record of several processes rarely is. Records do not say which
// process served a request, so the seed assigns each request to one of processes. An
// error has the number of the line and not its text, because a key may be private.
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
			return Traffic{}, fmt.Errorf("line %d: %w", bad.Line, ErrLine)
		case err != nil:
			return Traffic{}, err
		case len(t.Requests) == most:
			return Traffic{}, fmt.Errorf("%w: more than %d", ErrMany, most)
		}
		begin := strings.TrimSpace(strings.TrimPrefix(fields[0], "\ufeff")) // spreadsheets write a byte order mark
		if first && begin != "" && unicode.IsLetter(rune(begin[0])) {
			continue
		}
		at, err := parseTime(begin)
		if err != nil || len(fields) < 2 || backend.ValidateKey(fields[1]) != nil {
			line, _ := c.FieldPos(0)
			return Traffic{}, fmt.Errorf("line %d: %w", line, ErrLine)
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

var unixSeconds = regexp.MustCompile(`^\d+(\.\d+)?$`)

// parseTime returns a time of either form as the time since 1970. It uses no float,
// because floats lose nanoseconds.
func parseTime(s string) (time.Duration, error) {
	if unixSeconds.MatchString(s) {
		return time.ParseDuration(s + "s") // milliseconds are more than a Duration holds
	}
	date, err := time.Parse(time.RFC3339, s)
	if err == nil && (date.Year() < 1970 || date.Year() > 2261) {
		err = ErrLine // more than a Duration holds, too
	}
	return time.Duration(date.UnixNano()), err
}

// inOrder sorts the requests and counts their times from the first.
func (t Traffic) inOrder() (Traffic, error) {
	n := len(t.Requests)
	if n == 0 {
		return Traffic{}, ErrSpan
	}
	slices.SortStableFunc(t.Requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	first := t.Requests[0].At
	for i := range t.Requests {
		t.Requests[i].At -= first
	}
	last := t.Requests[n-1].At
	if last > 366*24*time.Hour {
		return Traffic{}, ErrSpan
	}
	t.Length = last + 1
	return t, nil
}

// Policy is a way to fetch tokens.
type Policy struct {
	Name   string
	Option reservoir.Option
}

// ErrPolicy is the error for an unknown policy.
var ErrPolicy = errors.New("want direct, fixed (several sizes), a size, ladder, adaptive, adaptive:min-max, stranding:share")

// Policies returns the named policies, in order and without duplicates, for a limit of
// tokens, or [ErrPolicy]. A number is a batch of that size, and fixed stands for a
// thousandth, a hundredth and a tenth of the limit. The ladder is Rockset's rule, from 10
// tokens to a tenth of the limit. The 0 in adaptive:5-0 means no upper bound.
func Policies(names []string, tokens int64) (list []Policy, err error) {
	add := func(name string, o reservoir.Option) {
		if !slices.ContainsFunc(list, func(p Policy) bool { return p.Name == name }) {
			list = append(list, Policy{name, o})
		}
	}
	fixed := func(n int64) { add(fmt.Sprint("fixed ", n), reservoir.WithBatch(reservoir.Fixed(n))) }
	for _, name := range names {
		kind, figures, _ := strings.Cut(name, ":")
		low, high, _ := strings.Cut(figures, "-")
		least, noLeast := strconv.ParseInt(low, 10, 64)
		most, noMost := strconv.ParseInt(high, 10, 64)
		share, noShare := strconv.ParseFloat(figures, 64)
		size, noSize := strconv.ParseInt(name, 10, 64)
		switch {
		case name == "direct":
			add(name, reservoir.WithDirect())
		case name == "fixed":
			for _, part := range []int64{1000, 100, 10} {
				fixed(max(tokens/part, 1))
			}
		case noSize == nil && size >= 1:
			fixed(size)
		case name == "ladder":
			add(name, reservoir.WithBatch(reservoir.Ladder(min(10, tokens), max(tokens/10, min(10, tokens)))))
		case name == "adaptive":
			add(name, reservoir.WithBatch(reservoir.Adaptive(1, 0)))
		case kind == "adaptive" && noLeast == nil && noMost == nil && least >= 1 && (most == 0 || most >= least):
			add("adaptive "+figures, reservoir.WithBatch(reservoir.Adaptive(least, most)))
		case kind == "stranding" && noShare == nil && share >= 0 && share <= 1:
			add("stranding "+figures, reservoir.WithStranding(share))
		default:
			return nil, ErrPolicy
		}
	}
	return list, nil
}
