package counter

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-reservoir/reservoir/backend"
)

// The text of a counter, for stores that keep it as one value. Its first line has
// the format's name and version, the window's end, its length and the tokens charged.
// If the counter has a ledger, the line goes on with the total, the end of the learning
// time, the unattributed tokens, when the limit was exhausted, and a 1 if a reset opened
// the window. Then each client has a line: granted, returned, debt, refunded, 1 if it is
// present, name.
//
//	reservoir/2 1764000060000 60000 1250 1300 0 0 0
//	1000 0 0 0 1 "b"
//	300 50 0 0 0 "a"
const format = "reservoir/2"

const resetMark = " 1"

// ErrText means that a text is no counter.
var ErrText = errors.New("the value is not a counter of this version")

// AppendText implements encoding.TextAppender. It never fails. Equal counters have
// equal texts, so an unchanged text is an unchanged counter.
func (c *Counter) AppendText(b []byte) ([]byte, error) {
	b = fmt.Appendf(b, "%s %d %d %d", format, c.stop, c.length, c.used)
	if c.own != nil {
		b = fmt.Appendf(b, " %d %d %d %d", c.total, c.learn, c.unattributed, c.exhausted)
	}
	if c.reset {
		b = append(b, resetMark...)
	}
	b = append(b, '\n')
	for _, name := range slices.Sorted(maps.Keys(c.own)) {
		a := c.own[name]
		present := int64(0)
		if a.present {
			present = 1
		}
		for _, n := range []int64{a.granted, a.returned, a.debt, a.refunded, present} {
			b = strconv.AppendInt(b, n, 10)
			b = append(b, ' ')
		}
		b = append(strconv.AppendQuote(b, name), '\n')
	}
	return b, nil
}

// UnmarshalText implements encoding.TextUnmarshaler. The steps can go on from every
// counter that it accepts. After an error c must not be used.
func (c *Counter) UnmarshalText(text []byte) error {
	head, rest, whole := strings.Cut(string(text), "\n")
	name, numbers, _ := strings.Cut(head, " ")
	*c = Counter{}
	to := []*int64{&c.stop, &c.length, &c.used, &c.total, &c.learn, &c.unattributed, &c.exhausted}
	fields := strings.Split(numbers, " ")
	if len(fields) == len(to)+1 {
		numbers, c.reset = strings.CutSuffix(numbers, resetMark)
		fields = strings.Split(numbers, " ")
	}
	if !whole || name != format || len(fields) != 3 && len(fields) != len(to) {
		return ErrText
	}
	for i, field := range fields {
		var ok bool
		if *to[i], ok = number(field); !ok {
			return ErrText
		}
	}
	// Steps multiply the end and the length by 1000; 0 is no window.
	if c.stop == 0 || c.stop > backend.MaxTokens/1000 || c.length == 0 || c.length > backend.MaxWindow.Milliseconds() {
		return ErrText
	}
	if len(fields) == len(to) {
		c.open()
	}
	return c.accounts(rest)
}

// accounts reads the lines of the clients.
func (c *Counter) accounts(text string) error {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 6)
		if len(fields) != 6 || !strings.HasSuffix(line, "\n") || c.own == nil {
			return ErrText
		}
		var a account
		var present int64
		for i, to := range []*int64{&a.granted, &a.returned, &a.debt, &a.refunded, &present} {
			var ok bool
			if *to, ok = number(fields[i]); !ok {
				return ErrText
			}
		}
		name, err := strconv.Unquote(fields[5])
		if _, twice := c.own[name]; err != nil || twice || a.returned > a.granted+a.debt || present > 1 {
			return ErrText
		}
		a.present = present == 1
		c.present += present
		c.own[name] = a
	}
	return nil
}

// number reads a whole number of tokens or milliseconds.
func number(s string) (n int64, ok bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n >= 0 && n <= backend.MaxTokens
}
