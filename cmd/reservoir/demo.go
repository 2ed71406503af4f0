package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

const demoAbout = `Shows the main idea with nothing to install: many requests a second ask for one
limited key, first with batches of tokens and then with a store call for each
request. The embedded store stands in for Redis.`

const demoRate = 250_000 // calls per second, three times the limit

var demoLimit = reservoir.Limit{Tokens: 40_000, Window: 500 * time.Millisecond}

func demoFlags(f *flagSet) action {
	duration := f.Duration("duration", 4*time.Second, "length of both runs together")
	return func(ctx context.Context, stdout, _ io.Writer) error {
		if err := kept(rule{*duration >= 10*time.Millisecond && *duration <= time.Hour, "duration", "10ms to 1h"}); err != nil {
			return err
		}
		return demo(ctx, int64(duration.Seconds()/2*demoRate), stdout)
	}
}

// demo makes the requests twice.
func demo(ctx context.Context, requests int64, stdout io.Writer) error {
	t := &traffic{sim.Shape{Rate: demoRate, Tokens: 1}, []string{"home page"}, 8, requests}
	for _, run := range []struct {
		title  string
		sizing reservoir.Option
	}{{"with batches", reservoir.WithBatch(reservoir.Adaptive(1, 0))}, {"without batches", reservoir.WithDirect()}} {
		l, err := reservoir.New(memstore.New(), demoLimit, run.sizing)
		if err != nil {
			return err
		}
		r, fault := t.drive(ctx, l, run.title, stdout)
		if err := cmp.Or(write(stdout, run.title+"\n"+r.text(demoLimit)+"\n"), fault); err != nil {
			return err
		}
		if r.most() > demoLimit.Tokens {
			return fmt.Errorf("%s were admitted in a window of %s", table.Commas(r.most()), table.Commas(demoLimit.Tokens))
		}
	}
	if ctx.Err() != nil {
		return nil // the reports say that they are of a part
	}
	return write(stdout, "The store charges tokens in batches before any is spent, and requests spend them from\n"+
		"memory. So almost no request waits for the store, and no window goes over its limit.\n")
}
