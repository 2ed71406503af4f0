package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

const inspectAbout = `Shows what a store holds for a key: what is used of its open window, when that
ends, and what each client was granted and gave back. It changes nothing.`

// inspection is what a store holds for a key.
type inspection struct {
	Name      string    `json:"name,omitempty"` // of the limit
	Key       string    `json:"key"`
	Open      bool      `json:"open"` // whether a window is
	Used      int64     `json:"used"`
	Limit     *int64    `json:"limit,omitempty"`     // the limit is the programs', not the store's:
	Remaining *int64    `json:"remaining,omitempty"` // only told if -limit is given
	Reset     string    `json:"reset,omitempty"`
	ResetMS   int64     `json:"reset_unix_ms,omitempty"`
	LeftMS    float64   `json:"left_ms"`
	Clients   []account `json:"clients"`
}

type account struct {
	Client   string `json:"client"`
	Granted  int64  `json:"granted"`
	Returned int64  `json:"returned"`
}

// timeFormat is RFC 3339 with the milliseconds that a window's end has.
const timeFormat = "2006-01-02T15:04:05.000Z07:00"

func newInspection(name, key string, c backend.Contents, limit int64) *inspection {
	i := &inspection{Name: name, Key: key, Open: c.Window != 0, Used: c.Used, Clients: []account{}}
	if limit > 0 {
		rest := max(limit-c.Used, 0)
		i.Limit, i.Remaining = &limit, &rest
	}
	if i.Open {
		i.Reset, i.ResetMS = c.Window.Time().Format(timeFormat), int64(c.Window)
		i.LeftMS = float64(c.Left.Microseconds()) / 1000
	}
	for _, a := range c.Clients {
		i.Clients = append(i.Clients, account{a.Client, a.Granted, a.Returned})
	}
	return i
}

func runInspect(ctx context.Context, args []string, stdout, _ io.Writer) error {
	f := newFlags("inspect -store URL [flags] KEY", inspectAbout)
	stores, prefix := f.storeFlags()
	name := f.String("name", "", "`name` of the limit, if the programs give it one by WithName")
	limit := f.Int64("limit", 0, "`tokens` per window, of which to tell the rest")
	format := f.formatFlag()
	if err := f.parse(args, 1, stdout); err != nil {
		return err
	}
	asJSON, err := format()
	if err != nil {
		return err
	}
	key, err := storeKey(*name, f.parsed.Arg(0))
	switch {
	case err != nil:
		return err
	case *limit < 0 || *limit == 0 && f.given("limit"):
		return usagef("bad value for flag -limit: want 1 or more")
	case len(*stores) == 0:
		return usagef("want a -store to look into")
	}
	c, err := inspect(ctx, *stores, *prefix, key)
	if err != nil {
		return err
	}
	i := newInspection(*name, f.parsed.Arg(0), c, *limit)
	if asJSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(i)
	}
	return i.text(stdout, c.Left)
}

// storeKey is how a limiter with that name calls key in the store: see WithName, which
// also says what a name may be. The limiter stands on no store that anybody uses.
func storeKey(name, key string) (string, error) {
	if _, err := reservoir.New(memstore.New(), reservoir.PerSecond(1), reservoir.WithName(name)); err != nil {
		return "", usagef("bad value for flag -name: want up to 64 bytes and no control characters")
	}
	full := strings.ReplaceAll(key, separator, separator+separator)
	if name != "" && key != "" {
		full = name + separator + full
	}
	if err := backend.ValidateKey(full); err != nil {
		return "", usagef("%s", oneLine(err))
	}
	return full, nil
}

// separator stands between a limit's name and the key. A key has pairs of it only.
const separator = "\x1f"

// inspectTimeout bounds the look, dialling included.
const inspectTimeout = 5 * time.Second

func inspect(ctx context.Context, stores []string, prefix, key string) (backend.Contents, error) {
	store, err := open("store", stores, prefix, 1)
	if err != nil {
		return backend.Contents{}, err
	}
	defer store.Close()
	if store.private {
		return backend.Contents{}, usagef("a memory store holds nothing across processes: there is nothing to inspect")
	}
	if s, ok := store.Store.(interface{ Err() error }); ok && s.Err() != nil {
		return backend.Contents{}, usagef("%s", oneLine(s.Err()))
	}
	look, ok := store.Store.(backend.Inspector)
	if !ok {
		return backend.Contents{}, fmt.Errorf("this store cannot be inspected")
	}
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	return look.Inspect(ctx, key)
}

func (i *inspection) text(w io.Writer, left time.Duration) error {
	var b strings.Builder
	if i.Name != "" {
		fmt.Fprintf(&b, "name       %s\n", quoted(i.Name))
	}
	fmt.Fprintf(&b, "key        %s\n", quoted(i.Key))
	if !i.Open {
		b.WriteString("window     none is open: nothing has been charged since the last one ended\n")
	} else {
		fmt.Fprintf(&b, "used       %s\n", table.Commas(i.Used))
	}
	if i.Limit != nil {
		fmt.Fprintf(&b, "remaining  %s of %s\n", table.Commas(*i.Remaining), table.Commas(*i.Limit))
	}
	if i.Open {
		fmt.Fprintf(&b, "reset      %s, in %v\n", i.Reset, left.Truncate(time.Millisecond))
		i.table(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// table lists the clients. Their names are data, and so are quoted where need be.
func (i *inspection) table(w io.Writer) {
	if len(i.Clients) == 0 {
		fmt.Fprintln(w, "clients    none: all was charged by direct calls")
		return
	}
	rows := [][]string{{"client", "granted", "given back"}}
	for _, a := range i.Clients {
		rows = append(rows, []string{quoted(a.Client), table.Commas(a.Granted), table.Commas(a.Returned)})
	}
	fmt.Fprint(w, "\n"+table.Text(rows, false))
}
