package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// widthOf is how many letters a line of w has room for: those of a terminal, or any.
func widthOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return math.MaxInt
}

// write writes a text to w, within its width.
func write(w io.Writer, text string) error {
	_, err := io.WriteString(w, table.Fit(text, widthOf(w)))
	return err
}

// emit writes a result as JSON, or what text makes of it for lines of so many letters.
func emit(w io.Writer, asJSON bool, v any, text func(width int) string) error {
	if !asJSON {
		return write(w, text(widthOf(w)))
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// prose breaks each paragraph into lines of at most so many letters, and no more than
// can be read.
func prose(s string, width int) string {
	paragraphs := strings.Split(s, "\n\n")
	for i, p := range paragraphs {
		paragraphs[i] = table.Wrap(p, min(width, 80)) + "\n"
	}
	return strings.Join(paragraphs, "\n")
}

// percent writes a share with as many decimals as it takes to tell it from none.
func percent(share float64) string {
	p := 100 * share
	decimals := 1
	if p > 0 && p < 1 {
		decimals = min(1-int(math.Floor(math.Log10(p))), 6)
	}
	return strconv.FormatFloat(p, 'f', decimals, 64) + " %"
}

// short writes a duration with three digits or so: 110ns, 1.25ms, 2.5s.
func short(d time.Duration) string {
	unit := time.Nanosecond
	for 1000*unit <= d && unit < time.Second {
		unit *= 1000
	}
	return d.Round(max(unit/100, 1)).String()
}

// quoted is s as it is if a terminal shows it as it is, and in quotes otherwise. A
// byte that is no UTF-8 may be a command to a terminal, as 0x9b is.
func quoted(s string) string {
	if s == "" || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r == '"' || r == ' ' || !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// oneLine is the text of err on one line and without the prefix that the
// library's errors have already. What a terminal may take for a command, which a
// server's reply may hold, is a "?".
func oneLine(err error) string {
	text := strings.Join(strings.Fields(strings.ToValidUTF8(err.Error(), "?")), " ")
	return strings.TrimPrefix(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text), "reservoir: ")
}

// isTerminal reports whether w is a terminal that obeys commands.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// follow shows on a terminal how far something is, until the function it returns is called,
// and nothing elsewhere. A total of 0 is not known.
func follow(w io.Writer, total int64, state func() (done int64, text string)) (stop func()) {
	if !isTerminal(w) {
		return func() {}
	}
	const clear = "\r\x1b[K"
	over := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(100 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				done, text := state()
				line := []rune(progressBar(done, total) + text)
				fmt.Fprint(w, clear+string(line[:min(len(line), widthOf(w)-1)])) // a line that wraps could not be redrawn
			case <-over:
				fmt.Fprint(w, clear)
				return
			}
		}
	})
	return func() {
		close(over)
		wg.Wait()
	}
}

// progressBar is a share of a total as a bar, and in percent.
func progressBar(done, total int64) string {
	if total == 0 {
		return ""
	}
	const width = 14
	share := min(sim.Ratio(done, total), 1)
	full := int(share * width)
	return fmt.Sprintf("%s%s %3.0f %%  ", strings.Repeat("█", full), strings.Repeat("░", width-full), 100*share)
}
