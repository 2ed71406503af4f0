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
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

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

// followLimiter follows the requests of a limiter by its own counts, so that the callers
// need not share theirs.
func followLimiter(w io.Writer, total int64, name string, l *reservoir.Limiter) (stop func()) {
	return follow(w, total, func() (int64, string) {
		s := l.Stats()
		done := s.Spent + s.Denied + s.Failed
		return done, fmt.Sprintf("%s: %s requests, %s store calls", name, table.Commas(done), table.Commas(s.StoreCalls))
	})
}
