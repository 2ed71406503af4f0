package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

const resetAbout = `Gives a key a fresh window, of which nothing is charged, and shows it: for a user who
was limited by mistake. What processes hold of the old window may be spent until they
next speak to the store. A process that refuses the key asks again after a
twentieth of the window on average, or longer. Where no window is open nothing is
done.`

func runReset(ctx context.Context, args []string, stdout, _ io.Writer) error {
	l, f := new(look), newFlags("reset -store URL [flags] KEY", resetAbout)
	calendar := f.Bool("calendar", false, "the fresh window ends when the open one does, for limits by the calendar (a\nmillisecond before, for an end is a window's name)")
	if err := l.parse(f, args, stdout); err != nil {
		return err
	}
	defer l.store.Close()
	was, err := l.at(ctx, l.full)
	if err != nil {
		return err
	}
	var end backend.Window
	if *calendar {
		end = backend.Window(was.ResetMS)
	}
	now, done, err := l.reset(ctx, end)
	if err != nil {
		return err
	}
	return emit(stdout, l.json, now, func(width int) string {
		if !done {
			return now.text(width)
		}
		return fmt.Sprintf("A fresh window is open. In the old one %s were charged.\n\n", table.Commas(was.Charged)) + now.text(width)
	})
}

// reset opens a fresh window, if one is open, and looks at it. A window belongs to limits of
// one length, which the store tells who asks with another.
func (l *look) reset(ctx context.Context, end backend.Window) (now *inspection, done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	q := backend.ResetRequest{Key: l.full, Limit: backend.Limit{Tokens: max(l.limit, 1), Window: time.Minute}, End: end}
	s, err := l.store.Reset(ctx, q)
	if err == nil && s.Length != 0 {
		q.Limit.Window = s.Length
		s, err = l.store.Reset(ctx, q)
	}
	if err != nil {
		return nil, false, l.store.explained(err)
	}
	now, err = l.at(ctx, l.full)
	return now, s.Window != 0 && s.Length == 0, err
}
