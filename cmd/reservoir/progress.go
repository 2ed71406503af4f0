package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// drawable reports whether w is a terminal that a bar can be redrawn on: a line that
// wraps could not be.
func drawable(w io.Writer) bool { return isTerminal(w) && widthOf(w) >= 80 }

// isTerminal reports whether w is a terminal that obeys commands.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// progress shows on a terminal how far something is, and nothing elsewhere.
type progress struct {
	bar *progressbar.ProgressBar // nil = nothing to see
}

// newProgress returns a bar for total steps; -1 is as many as it will be.
func newProgress(w io.Writer, hidden bool, total int64) *progress {
	if hidden {
		return new(progress)
	}
	return &progress{progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetWidth(14),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine of its own
	)}
}

// progressPeriod is that of looks at what is shown.
const progressPeriod = 100 * time.Millisecond

// follow shows a state until the function it returns is called. What is live may be
// lost; the report may not.
func (p *progress) follow(state func() (done int64, text string)) (stop func()) {
	if p.bar == nil {
		return func() {}
	}
	return every(progressPeriod, func() {
		done, text := state()
		p.bar.Describe(text)
		_ = p.bar.Set64(done)
	})
}

// limiter follows the requests of a limiter by its own counts, so that the callers need
// not share theirs.
func (p *progress) limiter(name string, l *reservoir.Limiter) (stop func()) {
	return p.follow(func() (int64, string) {
		s := l.Stats()
		return s.Spent + s.Denied + s.Failed, fmt.Sprintf("%s: %s store calls", name, table.Commas(s.StoreCalls))
	})
}

func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Finish()
		_ = p.bar.Clear() // an early end too
	}
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
