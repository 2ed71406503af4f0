package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

const demoAbout = `Shows the main idea with nothing to install: a few keys with limits are called for
many times a second, first with batches of tokens and then, the same requests,
with a store call each. The store is the embedded one, which stands for Redis.`

// The demo's traffic. Demand is above the limit on most keys and below on one.
const (
	demoWindow = 500 * time.Millisecond
	demoRate   = 250_000 // calls per second over all keys
)

var demoKeys = []struct {
	name   string
	limit  int64 // tokens per window
	weight int   // of 10 calls
}{
	{"home page", 40_000, 5},
	{"search", 20_000, 3},
	{"checkout", 15_000, 1},
	{"log in", 2_000, 1},
}

func demoLimit(key string) (l reservoir.Limit) {
	for _, k := range demoKeys {
		if k.name == key {
			l = reservoir.Limit{Tokens: k.limit, Window: demoWindow}
		}
	}
	return l
}

func runDemo(ctx context.Context, args []string, stdout, _ io.Writer) error {
	f := newFlags("demo [-duration d]", demoAbout)
	duration := f.Duration("duration", 4*time.Second, "how long, both runs together")
	if err := f.parse(args, 0, stdout); err != nil {
		return err
	}
	if err := kept(rule{*duration >= 10*time.Millisecond && *duration <= time.Hour, "duration", "10ms to 1h"}); err != nil {
		return err
	}
	requests := int64(duration.Seconds() / 2 * demoRate)
	batches, err := demoRun(ctx, stdout, requests, "with batches")
	if err != nil {
		return err
	}
	direct, err := demoRun(ctx, stdout, requests, "without batches", reservoir.WithDirect())
	if err != nil {
		return err
	}
	text := demoText(widthOf(stdout), batches, direct)
	if missing := 2*requests - batches.Requests - direct.Requests; ctx.Err() != nil {
		text = fmt.Sprintf("stopped early: %s of %s requests were not made\n\n", table.Commas(missing), table.Commas(2*requests)) + text
	}
	if err := write(stdout, text); err != nil {
		return err
	}
	return batches.judge()
}

// demoRun makes the same calls each time, against a store of its own.
func demoRun(ctx context.Context, w io.Writer, requests int64, title string, opts ...reservoir.Option) (*report, error) {
	t := &traffic{workers: 8, tokens: 1, rate: demoRate, requests: requests, seed: 1}
	for _, k := range demoKeys {
		t.keys = append(t.keys, slices.Repeat([]string{k.name}, k.weight)...)
	}
	l, err := reservoir.New(memstore.New(), demoLimit(demoKeys[0].name), append(opts, reservoir.WithLimits(demoLimit))...)
	if err != nil {
		return nil, err
	}
	done := followLimiter(w, requests, title, l)
	r := t.run(ctx, l)
	done()
	if err := l.Close(context.Background()); err != nil {
		return nil, err
	}
	r.complete(l.Stats())
	return r, r.verdict(nil)
}

// judge is an error if a limit was exceeded, which is what the demo denies.
func (r *report) judge() error {
	for _, k := range demoKeys {
		if most := r.most(k.name); most > k.limit {
			return fmt.Errorf("%s was admitted %s of %s in a window", k.name, table.Commas(most), table.Commas(k.limit))
		}
	}
	return nil
}

// demoText sets the two runs side by side.
func demoText(width int, a, b *report) string {
	rows := [][]string{{"", "with batches", "without batches"}}
	count := func(name string, n func(*report) int64) {
		rows = append(rows, []string{name, table.Commas(n(a)), table.Commas(n(b))})
	}
	count("requests", func(r *report) int64 { return r.Requests })
	count("admitted", func(r *report) int64 { return r.Allowed })
	count("refused", func(r *report) int64 { return r.Denied })
	count("store calls", func(r *report) int64 { return r.StoreCalls })
	rows = append(rows, []string{"store calls, share of requests", percent(a.StoreCallsPerRequest), percent(b.StoreCallsPerRequest)})
	for _, k := range demoKeys {
		count(fmt.Sprintf("%s, most in a window of %s", k.name, table.Commas(k.limit)), func(r *report) int64 { return r.most(k.name) })
	}
	return table.Within(width, rows, false) + "\nTokens are charged in the store by the batch, before any is spent, and spent from\n" +
		"memory: so nearly no request waits for the store, and no window goes over its limit.\n"
}
