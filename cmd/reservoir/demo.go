package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

const demoAbout = `Shows the main idea with nothing to install: a few keys with limits are called for
many times a second, first with batches of tokens and then, the same requests,
with a store call each. The store is the embedded one, which stands for Redis.`

// The demo's traffic. Demand is above the limit on most keys and below on one.
const (
	demoWindow  = 500 * time.Millisecond
	demoRate    = 250_000 // calls per second over all keys
	demoWorkers = 8
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

// demoTraffic makes the same calls each time it is run.
func demoTraffic(requests int64) *traffic {
	t := &traffic{workers: demoWorkers, tokens: 1, rate: demoRate, requests: requests, seed: 1}
	for i, k := range demoKeys {
		t.keys, t.slots = append(t.keys, k.name), append(t.slots, slices.Repeat([]int{i}, k.weight)...)
	}
	return t
}

// trial is one run of the traffic.
type trial struct {
	title string
	sum   *tally
	stats reservoir.Stats
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
	batches, err := try(ctx, stdout, requests, "with batches")
	if err != nil {
		return err
	}
	direct, err := try(ctx, stdout, requests, "without batches", reservoir.WithDirect())
	if err != nil {
		return err
	}
	text := summary(widthOf(stdout), batches, direct)
	if missing := 2*requests - batches.sum.requests - direct.sum.requests; ctx.Err() != nil {
		text = fmt.Sprintf("stopped early: %s of %s requests were not made\n\n", table.Commas(missing), table.Commas(2*requests)) + text
	}
	if err := write(stdout, text); err != nil {
		return err
	}
	return batches.judge()
}

// try runs the traffic against a store of its own, in sight.
func try(ctx context.Context, w io.Writer, requests int64, title string, opts ...reservoir.Option) (*trial, error) {
	l, err := reservoir.New(memstore.New(), demoLimit(demoKeys[0].name), append(opts, reservoir.WithLimits(demoLimit))...)
	if err != nil {
		return nil, err
	}
	done := show(w, title, l, requests)
	sum := demoTraffic(requests).run(ctx, l)
	done()
	if err := l.Close(context.Background()); err != nil {
		return nil, err
	}
	return &trial{title, sum, l.Stats()}, sum.verdict(nil)
}

// show shows a run of the demo until the function it returns is called: a bar on a
// terminal, a line now and then elsewhere.
func show(w io.Writer, title string, l *reservoir.Limiter, requests int64) (stop func()) {
	if isTerminal(w) {
		return followLimiter(w, requests, title, l)
	}
	start := time.Now()
	line := func() {
		s := l.Stats()
		_ = write(w, fmt.Sprintf("%s, %.1f s: %s requests, %s admitted, %s refused, %s store calls\n", title, time.Since(start).Seconds(),
			table.Commas(s.Spent+s.Denied), table.Commas(s.Spent), table.Commas(s.Denied), table.Commas(s.StoreCalls)))
	}
	end := every(5*progressPeriod, line)
	return func() { end(); line() }
}

// most is the most tokens that were spent in one window of key i.
func (t *trial) most(i int) (most int64) {
	for w, n := range t.sum.windows {
		if w.key == i {
			most = max(most, n)
		}
	}
	return most
}

// judge is an error if a limit was exceeded, which is what the demo denies.
func (t *trial) judge() error {
	for i, k := range demoKeys {
		if most := t.most(i); most > k.limit {
			return fmt.Errorf("%s was admitted %s of %s in a window", k.name, table.Commas(most), table.Commas(k.limit))
		}
	}
	return nil
}

// summary sets the two runs side by side.
func summary(width int, a, b *trial) string {
	var rows [][]string
	row := func(name string, value func(*trial) string) {
		rows = append(rows, []string{name, value(a), value(b)})
	}
	count := func(name string, n func(*trial) int64) {
		row(name, func(t *trial) string { return table.Commas(n(t)) })
	}
	row("", func(t *trial) string { return t.title })
	count("requests", func(t *trial) int64 { return t.sum.requests })
	count("admitted", func(t *trial) int64 { return t.sum.allowed })
	count("refused", func(t *trial) int64 { return t.sum.denied })
	count("store calls", func(t *trial) int64 { return t.stats.StoreCalls })
	row("store calls, share of requests", func(t *trial) string { return percent(sim.Ratio(t.stats.StoreCalls, t.sum.requests)) })
	for i, k := range demoKeys {
		count(fmt.Sprintf("%s, most in a window of %s", k.name, table.Commas(k.limit)), func(t *trial) int64 { return t.most(i) })
	}
	return table.Within(width, rows, false) + "\nTokens are charged in the store by the batch, before any is spent, and spent from\n" +
		"memory: so nearly no request waits for the store, and no window goes over its limit.\n"
}
