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

const inspectAbout = `Shows what a store holds for a key: the tokens charged in its open window (spent or
held by a process), the end of the window, and each client's share (granted and not
given back). It also shows the faults that a limiter would have with these servers:
see redisstore.Store.Verify. For that it makes some calls on a key of its own.`

// inspection is what a store holds for a key.
type inspection struct {
	Name      string    `json:"name,omitempty"` // of the limit
	Key       string    `json:"key"`
	Open      bool      `json:"open"` // a window is open
	Charged   int64     `json:"charged"`
	Limit     *int64    `json:"limit,omitempty"`     // nil without -limit,
	Remaining *int64    `json:"remaining,omitempty"` // because stores do not record limits
	Reset     string    `json:"reset,omitempty"`
	ResetMS   int64     `json:"reset_unix_ms,omitempty"`
	LeftMS    int64     `json:"left_ms"`
	Clients   []account `json:"clients"`
	Direct    int64     `json:"no_clients"` // part of Charged: direct calls, programs without a ledger, debt
	Faults    []string  `json:"faults,omitempty"`
}

type account struct {
	Client   string  `json:"client"`
	Granted  int64   `json:"granted"`
	Returned int64   `json:"returned"`
	Share    float64 `json:"share"` // of Charged
}

// look is a command that reads keys.
type look struct {
	common
	*flagSet
	name  string
	limit int64 // 0 = not given
	redis *opened
	full  string // the store's name for the key
}

func newLook(f *flagSet) *look {
	l := &look{flagSet: f}
	f.want, f.validate = 1, l.validate
	f.commonFlags(&l.common)
	f.StringVar(&l.name, "name", "", "`name` of the limit, if the programs give it one by WithName")
	f.Int64Var(&l.limit, "limit", 0, "`tokens` per window, to show how many remain")
	return l
}

func (l *look) validate() (err error) {
	l.full, err = storeKey(l.name, l.Arg(0))
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

func (l *look) inspect(ctx context.Context) (*inspection, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	c, err := l.redis.Store.(backend.Inspector).Inspect(ctx, l.full) // open makes no other stores for a look
	if err != nil {
		return nil, l.redis.named(err)
	}
	i := &inspection{Open: c.Window != 0, Charged: c.Used, Clients: []account{}, Direct: c.Used}
	i.Name, i.Key = placement.Split(l.full)
	if l.limit > 0 {
		rest := max(l.limit-c.Used, 0)
		i.Limit, i.Remaining = &l.limit, &rest
	}
	if i.Open {
		i.Reset = c.Window.Time().Format("2006-01-02T15:04:05.000Z07:00") // RFC 3339, as precise as a window's end
		i.ResetMS, i.LeftMS = int64(c.Window), c.Left.Milliseconds()
	}
	for _, a := range c.Clients {
		held := max(a.Granted-a.Returned, 0) // what is returned may be debt
		i.Direct -= held
		i.Clients = append(i.Clients, account{a.Client, a.Granted, a.Returned, sim.Ratio(held, c.Used)})
	}
	i.Direct = max(i.Direct, 0)
	return i, nil
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
	if i.Open {
		s += fmt.Sprintf("charged    %s, spent or held by a process\n", table.Commas(i.Charged))
	} else {
		s += "window     none is open: nothing has been charged since the last one ended\n"
		if i.Name == "" {
			s += "           (the keys of a limit with a name need -name)\n"
		}
		if !strings.HasPrefix(i.Key, "user:") && !strings.HasPrefix(i.Key, "addr:") {
			s += "           (httplimit's keys begin with user: or addr:)\n"
		}
	}
	if i.Limit != nil {
		s += fmt.Sprintf("remaining  %s of %s\n", table.Commas(*i.Remaining), table.Commas(*i.Limit))
	}
	if i.Open {
		s += fmt.Sprintf("reset      %s, in %v\n", i.Reset, time.Duration(i.LeftMS)*time.Millisecond)
	}
	if i.Charged > 0 {
		s += "\n" + table.Text(i.shares(), false)
		s += "\nclient: a limiter of a process; share: of what is charged, granted less given back\n"
	}
	for n, fault := range i.Faults {
		s += map[bool]string{true: "\n"}[n == 0] + "fault      " + fault + "\n"
	}
	return s
}

// shares returns a row for each client, and one for what no client has, below a heading.
func (i *inspection) shares() [][]string {
	rows := [][]string{{"client", "share", "granted", "given back"}}
	for _, a := range i.Clients {
		rows = append(rows, []string{quoted(a.Client), table.Percent(a.Share), table.Commas(a.Granted), table.Commas(a.Returned)})
	}
	if i.Direct > 0 {
		rows = append(rows, []string{"direct calls", table.Percent(sim.Ratio(i.Direct, i.Charged)), table.Commas(i.Direct), "–"})
	}
	return rows
}

const resetAbout = `Opens a fresh window for a key, in which nothing is charged, and shows it. Use it for
a user who was limited by mistake. Processes learn of it by a message; one that gets
none may spend what it holds of the old window until its next store call. Nothing
happens if no window is open.`

func resetFlags(f *flagSet) action {
	l := newLook(f)
	calendar := f.Bool("calendar", false, "the fresh window ends when the open one does, for calendar limits (a\n"+
		"millisecond earlier, because its end identifies a window)")
	window := f.Duration("window", 0, "`length` of the limit's window")
	f.validate = func() error {
		return cmp.Or(l.validate(), judged("window", backend.Limit{Tokens: 1, Window: *window}.Validate()))
	}
	return l.then(func(ctx context.Context, stdout io.Writer) error {
		was, err := l.inspect(ctx)
		if err != nil {
			return err
		}
		var end backend.Window
		if *calendar {
			end = backend.Window(was.ResetMS)
		}
		done, err := l.reset(ctx, end, *window)
		if err != nil {
			return err
		}
		now, err := l.inspect(ctx)
		if err != nil {
			return err
		}
		text := now.text()
		if done {
			text = fmt.Sprintf("A fresh window is open. The old one had %s charged.\n\n", table.Commas(was.Charged)) + text
		}
		return emit(stdout, l.json, now, text)
	})
}

// reset replaces the open window, if any and if it has that length, by a fresh one.
func (l *look) reset(ctx context.Context, end backend.Window, window time.Duration) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	s, err := l.redis.Reset(ctx, backend.ResetRequest{Key: l.full, Limit: backend.Limit{Tokens: max(l.limit, 1), Window: window}, End: end})
	if err == nil && s.Length != 0 {
		return false, usagef("bad value for flag -window: the open window's length is %v", s.Length)
	}
	return s.Window != 0, l.redis.named(err)
}
