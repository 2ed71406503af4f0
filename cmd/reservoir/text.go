package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/term"

	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// widthOf returns the width of w in characters if w is a terminal, and no limit
// otherwise.
func widthOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return math.MaxInt
}

// write writes text to w, wrapped to its width.
func write(w io.Writer, text string) error {
	_, err := io.WriteString(w, table.Fit(text, widthOf(w)))
	return err
}

// emit writes a result as JSON or as text.
func emit(w io.Writer, asJSON bool, v any, text string) error {
	if !asJSON {
		return write(w, text)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// quoted returns s, in quotes unless a terminal shows s unchanged. A byte that is not
// UTF-8 may be a terminal command, such as 0x9b.
func quoted(s string) string {
	if q := strconv.Quote(s); s == "" || q != `"`+s+`"` || strings.Contains(s, " ") {
		return q
	}
	return s
}

// oneLine returns the text of err on one line, without the prefix of the library's errors
// and without the name of a file, which may be private. It replaces unprintable characters
// by "?", because a server's reply may hold terminal commands.
func oneLine(err error) string {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		err = p.Err
	}
	text := strings.Join(strings.Fields(strings.ToValidUTF8(err.Error(), "?")), " ")
	return strings.TrimPrefix(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text), "reservoir: ")
}

// isTerminal reports whether w is a terminal that understands control sequences.
func isTerminal(w io.Writer) bool {
	return os.Getenv("TERM") != "dumb" && widthOf(w) < math.MaxInt
}

// follow shows progress if w is a terminal, until the returned function is called. A
// total of 0 means that the total is unknown.
func follow(w io.Writer, total int64, state func() (done int64, text string)) (stop func()) {
	if !isTerminal(w) {
		return func() {}
	}
	const clear = "\r\x1b[K"
	over := make(chan struct{})
	go func() {
		for tick := time.Tick(100 * time.Millisecond); ; {
			select {
			case <-tick:
				done, text := state()
				if total > 0 {
					text = fmt.Sprintf("%3.0f %%  %s", 100*min(sim.Ratio(done, total), 1), text)
				}
				line := []rune(text)
				fmt.Fprint(w, clear+string(line[:min(len(line), widthOf(w)-1)])) // a line that wraps could not be redrawn
			case <-over:
				return
			}
		}
	}()
	return func() {
		over <- struct{}{} // nothing is shown after this
		fmt.Fprint(w, clear)
	}
}
