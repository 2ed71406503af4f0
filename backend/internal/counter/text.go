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

// The text of a counter, for stores that keep it as one value: a line of the
// format's name and version, the window's end, the tokens charged in it, until when
// it learns, when it was used up, how much was granted in all and how much is loose, and
// a line per client: granted, returned, name.
//
//	reservoir/1 1764000060000 1250 0 0 1300 0
//	1000 0 "b"
//	300 50 "a"
const format = "reservoir/1"

var errText = errors.New("the value is not a counter of this version")

// AppendText implements encoding.TextAppender. It never fails. Equal counters have
// equal texts: an unchanged text is an unchanged counter.
func (c *Counter) AppendText(b []byte) ([]byte, error) {
	b = fmt.Appendf(b, "%s %d %d %d %d %d %d\n", format, c.stop, c.used, c.learn, c.dry, c.total, c.loose)
	for _, name := range slices.Sorted(maps.Keys(c.own)) {
		a := c.own[name]
		b = strconv.AppendInt(b, a.granted, 10)
		b = append(b, ' ')
		b = strconv.AppendInt(b, a.returned, 10)
		b = append(b, ' ')
		b = append(strconv.AppendQuote(b, name), '\n')
	}
	return b, nil
}

// UnmarshalText implements encoding.TextUnmarshaler. Whatever it accepts is a
// counter that the steps can go on from. After an error c is not to be used.
func (c *Counter) UnmarshalText(text []byte) error {
	head, rest, whole := strings.Cut(string(text), "\n")
	name, numbers, _ := strings.Cut(head, " ")
	fields := strings.Split(numbers, " ")
	if !whole || name != format || len(fields) != 6 {
		return errText
	}
	*c = Counter{}
	for i, to := range []*int64{&c.stop, &c.used, &c.learn, &c.dry, &c.total, &c.loose} {
		var ok bool
		if *to, ok = number(fields[i]); !ok {
			return errText
		}
	}
	// The end is multiplied by 1000, and 0 is no window.
	if c.stop == 0 || c.stop > backend.MaxTokens/1000 {
		return errText
	}
	return c.ledger(rest)
}

func (c *Counter) ledger(text string) error {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
		if len(fields) != 3 || !strings.HasSuffix(line, "\n") {
			return errText
		}
		granted, ok := number(fields[0])
		returned, fine := number(fields[1])
		name, err := strconv.Unquote(fields[2])
		if _, twice := c.own[name]; !ok || !fine || err != nil || twice || granted < 1 || returned > granted {
			return errText
		}
		if c.own == nil {
			c.own = make(map[string]account)
		}
		c.own[name] = account{granted, returned}
	}
	return nil
}

// number reads a whole number of tokens or milliseconds.
func number(s string) (n int64, ok bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n >= 0 && n <= backend.MaxTokens
}
