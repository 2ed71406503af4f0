package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// watch shows a run of the demo until the function it returns is called: a view
// redrawn in place on a terminal, a line now and then elsewhere.
func watch(w io.Writer, title string, l *reservoir.Limiter, store *memstore.Store) (stop func()) {
	start := time.Now()
	if drawable(w) {
		s := &screen{w: w}
		show := func() { s.draw(view(title, time.Since(start), l, store)) }
		end := every(demoPeriod, show)
		return func() {
			end()
			s.draw("")
		}
	}
	show := func() { fmt.Fprintln(w, counts(title, time.Since(start), l.Stats())) }
	end := every(5*demoPeriod, show)
	return func() {
		end()
		show()
	}
}

// counts is a run so far in a line.
func counts(title string, t time.Duration, s reservoir.Stats) string {
	return fmt.Sprintf("%s, %.1f s: %s requests, %s admitted, %s refused, %s store calls", title, t.Seconds(),
		table.Commas(s.Spent+s.Denied), table.Commas(s.Spent), table.Commas(s.Denied), table.Commas(s.StoreCalls))
}

// view is a run so far: each key's window as the store holds it, and the counts.
func view(title string, t time.Duration, l *reservoir.Limiter, store *memstore.Store) string {
	const width = 24
	var b strings.Builder
	fmt.Fprintf(&b, "%-10s %-*s %19s %12s\n", "key", width, "used of this window", "", "resets in")
	for _, k := range demoKeys {
		c, err := store.Inspect(context.Background(), k.name)
		if err != nil {
			continue // not by a live context and a name
		}
		fmt.Fprintf(&b, "%-10s %s %8s of %7s %9d ms\n", k.name, bar(sim.Ratio(c.Used, k.limit), width),
			table.Commas(c.Used), table.Commas(k.limit), c.Left.Milliseconds())
	}
	s := l.Stats()
	fmt.Fprintf(&b, "\n%s, %.1f s: %s requests\n%s admitted, %s refused, %s store calls\n\n", title, t.Seconds(),
		table.Commas(s.Spent+s.Denied), table.Commas(s.Spent), table.Commas(s.Denied), table.Commas(s.StoreCalls))
	return b.String()
}
