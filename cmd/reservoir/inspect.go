package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
	"github.com/go-reservoir/reservoir/internal/placement"
)

const inspectAbout = `Shows what a store holds for a key: for each of its counters (60s, day@Europe/Berlin,
60s:roll …) that has an open window, the tokens charged in it (spent or held by a process),
its end, each client's part, and for how long a limit grants nothing, if it is held so. Two counters where you expect one mean that
processes use limits of two lengths or kinds. On a server it walks over all keys of the database,
in a cluster over those of a slot, which may not move meanwhile. It also shows the faults that a limiter would have with these servers:
see redisstore.Store.Verify. For that it makes some calls on a key of its own.`

// inspection is what a store holds for a key.
type inspection struct {
	Name     string    `json:"name,omitempty"` // of the limit
	Key      string    `json:"key"`
	Counters []counter `json:"counters"` // whose windows are open, or which are held
	Faults   []string  `json:"faults,omitempty"`
}

// counter is what a store holds in one counter.
type counter struct {
	Counter   string    `json:"counter"`
	Charged   int64     `json:"charged"`
	Limit     *int64    `json:"limit,omitempty"`     // nil without -limit,
	Remaining *int64    `json:"remaining,omitempty"` // because stores do not record limits
	Reset     string    `json:"reset,omitempty"`
	ResetMS   int64     `json:"reset_unix_ms"`
	LeftMS    int64     `json:"left_ms"`
	HeldMS    int64     `json:"held_ms,omitempty"` // for how much longer it is held; then no window need be open
	Clients   []account `json:"clients"`           // of a rolling limit without charged and share, because the store has only sums by time
	Direct    int64     `json:"no_clients"`        // part of Charged: calls without an account, other programs, clients that the store has lost
}

type account struct {
	Client  string  `json:"client"`
	Charged int64   `json:"charged"`
	Idle    int64   `json:"idle"`
	Share   float64 `json:"share"` // of all that is charged
}

// look is a command that reads keys.
type look struct {
	common
	*flagSet
	name    string
	counter string         // "" = all
	of      *backend.Limit // counter's
	limit   int64          // 0 = not given
	redis   *opened
	full    string // the store's name for the key
}

func newLook(f *flagSet) *look {
	l := &look{flagSet: f}
	f.want, f.validate = 1, l.validate
	f.commonFlags(&l.common)
	f.StringVar(&l.name, "name", "", "`name` of the limit, if the programs give it one by WithName")
	f.StringVar(&l.counter, "counter", "", "`name` of one counter, as inspect shows it: 60s, 1500ms, day@Europe/Berlin, 60s:roll")
	f.Int64Var(&l.limit, "limit", 0, "`tokens` per window, to show how many remain")
	return l
}

func (l *look) validate() (err error) {
	l.full, err = storeKey(l.name, l.Arg(0))
	if l.counter != "" && err == nil {
		l.of, err = limitOf(l.counter)
	}
	return cmp.Or(err, kept(
		rule{l.limit > 0 || !l.given("limit"), "limit", "1 or more"},
		rule{l.store != memory, "store", "a Redis, because a store in memory holds nothing for other processes"},
	))
}

// then returns an action that opens the store, and closes it after do.
func (l *look) then(do func(ctx context.Context, stdout io.Writer) error) action {
	return func(ctx context.Context, stdout io.Writer) (err error) {
		if l.redis, err = open(l.store, l.prefix, 4); err != nil {
			return err
		}
		defer l.redis.close()
		return do(ctx, stdout)
	}
}

// storeKey returns the store's name for key in a limiter with that name: see
// [reservoir.WithName], which also defines valid names. The limiter that it makes only
// validates the name.
func storeKey(name, key string) (string, error) {
	_, err := reservoir.New(memstore.New(), reservoir.PerSecond(1), reservoir.WithName(name))
	full := placement.Named(name, key)
	return full, cmp.Or(judged("name", err), judged("", backend.ValidateKey(key)), judged("", backend.ValidateKey(full)))
}

// periods are the calendar's, by name.
var periods = map[string]backend.Period{"day": backend.Day, "week": backend.Week, "month": backend.Month}

// limitOf returns a limit that counts in the counter.
func limitOf(name string) (*backend.Limit, error) {
	l := backend.Limit{Tokens: 1}
	length, rolls := strings.CutSuffix(name, ":roll")
	if period, zone, ok := strings.Cut(name, "@"); ok {
		l.Window, l.Calendar.Period = 24*time.Hour, periods[period]
		l.Calendar.Zone, _ = time.LoadLocation(zone)
	} else {
		l.Window, _ = time.ParseDuration(length)
		l.Rolls = rolls
	}
	if l.Validate() != nil || l.Counter() != name {
		return nil, usagef("bad value for flag -counter: want a name as 60s, 1500ms, 60s:roll or day@Europe/Berlin")
	}
	return &l, nil
}

func (l *look) inspect(ctx context.Context) (*inspection, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	all, err := l.redis.Store.(backend.Inspector).Inspect(ctx, l.full) // open makes no other stores for a look
	if err != nil {
		return nil, l.redis.named(err)
	}
	i := &inspection{Counters: []counter{}}
	i.Name, i.Key = placement.Split(l.full)
	for _, c := range all {
		if l.counter == "" || l.counter == c.Counter {
			i.Counters = append(i.Counters, l.counted(c))
		}
	}
	return i, nil
}

// counted is the contents of a counter as the command shows it.
func (l *look) counted(c backend.Contents) counter {
	out := counter{
		Counter: c.Counter, Charged: c.Used, Direct: c.Used, Clients: []account{}, ResetMS: c.Window.End, LeftMS: c.Left.Milliseconds(), HeldMS: c.Held.Milliseconds(),
	}
	if c.Window.End != 0 {
		out.Reset = c.Window.Time().Format("2006-01-02T15:04:05.000Z07:00") // RFC 3339, as precise as a window's end
	}
	if l.limit > 0 {
		rest := max(l.limit-c.Used, 0)
		if c.Held > 0 {
			rest = 0
		}
		out.Limit, out.Remaining = &l.limit, &rest
	}
	for _, a := range c.Clients {
		out.Direct -= a.Mine
		out.Clients = append(out.Clients, account{a.Client, a.Mine, a.Idle, sim.Ratio(a.Mine, c.Used)})
	}
	if out.Direct = max(out.Direct, 0); out.rolls() {
		out.Direct = 0
	}
	return out
}

func inspectFlags(f *flagSet) action {
	l := newLook(f)
	return l.then(func(ctx context.Context, stdout io.Writer) error {
		i, err := l.inspect(ctx)
		if err != nil {
			return err
		}
		i.Faults = l.verify(ctx)
		return emit(stdout, l.json, i, i.text())
	})
}

// verify returns what [redisstore.Store.Verify] says of the store.
func (l *look) verify(ctx context.Context) (faults []string) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	parts := []error{l.redis.Store.(*redisstore.Store).Verify(ctx)}
	if joined, ok := parts[0].(interface{ Unwrap() []error }); ok {
		parts = joined.Unwrap()
	}
	for _, part := range parts {
		if part != nil {
			faults = append(faults, l.redis.named(part).Error())
		}
	}
	return faults
}

func (i *inspection) text() string {
	s := fmt.Sprintf("key        %s\n", quoted(i.Key))
	if i.Name != "" {
		s = fmt.Sprintf("name       %s\n", quoted(i.Name)) + s
	}
	if len(i.Counters) == 0 {
		s += "window     none is open: nothing has been charged since the last one ended\n"
		s += "           (-prefix and -name must be those of the programs' store and limit)\n"
		if !strings.HasPrefix(i.Key, "user:") && !strings.HasPrefix(i.Key, "addr:") {
			s += "           (httplimit's keys begin with user: or addr:)\n"
		}
	}
	charged := int64(0)
	for _, c := range i.Counters {
		s += c.text()
		charged += c.Charged
	}
	if charged > 0 {
		s += "\nclient: a limiter of a process; charged: spent or held by it; idle: held, and needed by nobody there\n"
	}
	for n, fault := range i.Faults {
		s += map[bool]string{true: "\n"}[n == 0] + "fault      " + fault + "\n"
	}
	return s
}

func (c *counter) text() string {
	s := fmt.Sprintf("\ncounter    %s\ncharged    %s, spent or held by a process\n", quoted(c.Counter), table.Commas(c.Charged))
	if c.Limit != nil {
		s += fmt.Sprintf("remaining  %s of %s\n", table.Commas(*c.Remaining), table.Commas(*c.Limit))
	}
	if c.Reset != "" {
		s += fmt.Sprintf("reset      %s, in %v\n", c.Reset, time.Duration(c.LeftMS)*time.Millisecond)
	}
	if c.HeldMS > 0 {
		s += fmt.Sprintf("held       for %v: it grants nothing\n", time.Duration(c.HeldMS)*time.Millisecond)
	}
	if rows := c.shares(); c.Charged > 0 && len(rows) > 1 {
		s += "\n" + table.Text(rows, false)
	}
	return s
}

func (c *counter) rolls() bool { return strings.HasSuffix(c.Counter, ":roll") }

// shares returns a row for each client, and one for what no client has, below a heading.
func (c *counter) shares() [][]string {
	rows := [][]string{{"client", "share", "charged", "idle"}}
	for _, a := range c.Clients {
		share, charged := table.Percent(a.Share), table.Commas(a.Charged)
		if c.rolls() {
			share, charged = "–", "–"
		}
		rows = append(rows, []string{quoted(a.Client), share, charged, table.Commas(a.Idle)})
	}
	if c.Direct > 0 {
		rows = append(rows, []string{"no client", table.Percent(sim.Ratio(c.Direct, c.Charged)), table.Commas(c.Direct), "–"})
	}
	return rows
}

const resetAbout = `Ends the open windows of a key, so that the next request opens a fresh one, and shows what
they had. Use it for a user who was limited by mistake. Without -counter it resets
each counter that has an open window or grants nothing. Processes learn of it by a message; one that gets
none may spend what it holds of the old window until its next store call.`

func resetFlags(f *flagSet) action {
	l := newLook(f)
	return l.then(func(ctx context.Context, stdout io.Writer) error {
		was, err := l.inspect(ctx)
		if err != nil {
			return err
		}
		limits := []*backend.Limit{l.of}
		if l.of == nil {
			limits = nil
			for _, c := range was.Counters {
				limit, err := limitOf(c.Counter)
				if err != nil {
					return fmt.Errorf("the store holds a counter with a name that is none: %s", quoted(c.Counter))
				}
				limits = append(limits, limit)
			}
		}
		for _, limit := range limits {
			if err := l.reset(ctx, *limit); err != nil {
				return err
			}
		}
		text := was.text()
		if len(limits) > 0 {
			text = "Reset. The key had:\n\n" + text
		}
		return emit(stdout, l.json, was, text)
	})
}

// reset voids the window of the limit's counter.
func (l *look) reset(ctx context.Context, limit backend.Limit) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	_, err := l.redis.Reset(ctx, l.full, limit)
	return l.redis.named(err)
}
