package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// columns is how wide a live view may be.
const columns = 80

// drawable reports whether w is a terminal that a live view can be redrawn on: a
// line that wraps could not be.
func drawable(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" || !term.IsTerminal(int(f.Fd())) {
		return false
	}
	width, _, err := term.GetSize(int(f.Fd()))
	return err != nil || width == 0 || width >= columns // some do not know
}

// screen is a block of lines on a terminal that is redrawn in place.
type screen struct {
	w     io.Writer
	lines int // drawn, and above the cursor
}

// draw replaces the block by text, which is lines of less than columns that each
// end in a newline.
func (s *screen) draw(text string) {
	var up string
	if s.lines > 0 {
		up = fmt.Sprintf("\x1b[%dA", s.lines)
	}
	_, _ = io.WriteString(s.w, up+"\x1b[J"+text) // what is live may be lost; the report may not
	s.lines = strings.Count(text, "\n")
}

// every calls show each period until the function it returns is called, and not
// after that.
func every(period time.Duration, show func()) (stop func()) {
	over := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(period)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				show()
			case <-over:
				return
			}
		}
	})
	return func() {
		close(over)
		wg.Wait()
	}
}

// progress shows on a terminal how a load is going, and nothing elsewhere. It
// reads the limiter's counts, so that the callers need not share theirs.
func progress(w io.Writer, l *reservoir.Limiter) (stop func()) {
	if !drawable(w) {
		return func() {}
	}
	start := time.Now()
	s := &screen{w: w}
	end := every(time.Second, func() {
		st := l.Stats()
		s.draw(fmt.Sprintf("%.0f s: %s tokens, %s denied, %s errors, %s store calls\n", time.Since(start).Seconds(),
			table.Commas(st.Spent), table.Commas(st.Denied), table.Commas(st.Failed), table.Commas(st.StoreCalls)))
	})
	return func() {
		end()
		s.draw("")
	}
}
