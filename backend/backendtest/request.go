package backendtest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// testFaults: faulty requests are refused with the right error, and charge nothing.
func testFaults(t testing.TB, s backend.Store) {
	b := newBench(t, s, limit10)
	daily := backend.Limit{Tokens: 10, Window: 24 * time.Hour, Calendar: backend.Calendar{Period: backend.Day}}
	good := backend.Statement{
		Key: b.key, Limit: b.limit, Client: "x", Life: 1, Seq: 1, Window: b.end(far), Mine: 3, Change: -1, Used: 5, Runs: true, Want: 2, Need: 1,
	}
	period := func(begin, end int64) func(q *backend.Statement) {
		return func(q *backend.Statement) { q.Limit, q.Begin, q.End = daily, begin, end }
	}
	year := backend.MaxWindow.Milliseconds()
	for _, row := range []struct {
		what   string
		change func(q *backend.Statement)
		want   error
	}{
		{"a long client", func(q *backend.Statement) { q.Client = strings.Repeat("c", 65) }, backend.ErrKey},
		{"the ledger's head", func(q *backend.Statement) { q.Client = "head" }, backend.ErrKey},
		{"a field of a ring", func(q *backend.Statement) { q.Client = "4" }, backend.ErrKey},
		{"no life", func(q *backend.Statement) { q.Life = 0 }, backend.ErrTokens},
		{"no number", func(q *backend.Statement) { q.Seq = 0 }, backend.ErrTokens},
		{"needs more than it wants", func(q *backend.Statement) { q.Need = 3 }, backend.ErrTokens},
		{"needs at least more than it needs", func(q *backend.Statement) { q.Least = 2 }, backend.ErrTokens},
		{"changed by too much", func(q *backend.Statement) { q.Change = backend.MaxTokens + 1 }, backend.ErrTokens},
		{"given back too much", func(q *backend.Statement) { q.Change = -backend.MaxTokens - 1 }, backend.ErrTokens},
		{"a window's end", func(q *backend.Statement) { q.Window.End = -1 }, backend.ErrTokens},
		{"a window's generation", func(q *backend.Statement) { q.Window.Gen = backend.MaxTokens + 1 }, backend.ErrTokens},
		{"a rolling limit", func(q *backend.Statement) { q.Limit = q.Limit.Rolling() }, backend.ErrTokens},
		{"a last reply", func(q *backend.Statement) { q.Known = 1 }, backend.ErrTokens},
		{"buckets", func(q *backend.Statement) { q.Changes = []backend.Change{{Bucket: 1, Tokens: 1}} }, backend.ErrTokens},
		{"later buckets", func(q *backend.Statement) { q.After = 1 }, backend.ErrTokens},
		{"the time of a reply", func(q *backend.Statement) { q.Within = time.Second }, backend.ErrTokens},
		{"a calendar without a period", period(0, 0), backend.ErrLimit},
		{"a period without a calendar", func(q *backend.Statement) { q.Begin, q.End = 1, 2 }, backend.ErrLimit},
		{"a period that goes back", period(5, 5), backend.ErrLimit},
		{"a period of more than a year", period(5, 6+year), backend.ErrLimit},
		{"the zone of the machine", func(q *backend.Statement) { period(1, 2)(q); q.Limit.Calendar.Zone = time.Local }, backend.ErrLimit},
		{"a zone without a name", func(q *backend.Statement) { period(1, 2)(q); q.Limit.Calendar.Zone = time.FixedZone("", 3600) }, backend.ErrLimit},
		{"no client, and a need below 0", func(q *backend.Statement) { *q = backend.Statement{Key: q.Key, Limit: q.Limit, Need: -1} }, backend.ErrTokens},
		{"no client, and both", func(q *backend.Statement) { *q = backend.Statement{Key: q.Key, Limit: q.Limit, Need: 1, Change: 1} }, backend.ErrTokens},
		{"no client, and a give-back", func(q *backend.Statement) { *q = backend.Statement{Key: q.Key, Limit: q.Limit, Change: -1} }, backend.ErrTokens},
		{"no client, and a wish", func(q *backend.Statement) {
			*q = backend.Statement{Key: q.Key, Limit: q.Limit, Want: 1, Need: 1}
		}, backend.ErrTokens},
		{"no client, and too much", func(q *backend.Statement) {
			*q = backend.Statement{Key: q.Key, Limit: q.Limit, Need: backend.MaxTokens + 1}
		}, backend.ErrTokens},
	} {
		q := good
		row.change(&q)
		_, err := s.Sync(b.at(0), q)
		refused(t, "sync: "+row.what, err, row.want)
	}
	for _, n := range []int64{-1, backend.MaxTokens + 1} {
		for _, field := range []string{"Life", "Seq", "Mine", "Used", "Want", "Need", "Least", "Idle", "Pace", "Run"} {
			q := good
			reflect.ValueOf(&q).Elem().FieldByName(field).SetInt(n)
			_, err := s.Sync(b.at(0), q)
			refused(t, fmt.Sprintf("sync: %s of %d", field, n), err, backend.ErrTokens)
		}
	}
	b.faultyCalls(limit10)
	b.play("0s check -> charged=0 remaining=10")
}

// testFaultsOfRolling is testFaults for what only rolling limits have.
func testFaultsOfRolling(t testing.TB, s backend.Store) {
	b := newBench(t, s, limit10.Rolling())
	good := backend.Statement{
		Key: b.key, Limit: b.limit, Client: "x", Life: 1, Seq: 3, Window: backend.Window{Gen: 1}, Want: 2, Need: 1,
		Rolling: backend.Rolling{Known: 2, Changes: []backend.Change{{Bucket: 1, Tokens: -1}}, After: 1, Within: time.Second},
	}
	change := func(bucket, tokens int64) func(q *backend.Statement) {
		return func(q *backend.Statement) {
			q.Changes = []backend.Change{{Bucket: 1, Tokens: 1}, {Bucket: bucket, Tokens: tokens}}
		}
	}
	bare := func(need int64, changes ...backend.Change) func(q *backend.Statement) {
		return func(q *backend.Statement) {
			*q = backend.Statement{Key: q.Key, Limit: q.Limit, Need: need, Rolling: backend.Rolling{Changes: changes}}
		}
	}
	for what, spoil := range map[string]func(q *backend.Statement){
		"a window's end":              func(q *backend.Statement) { q.Window.End = b.ms(far) },
		"an account":                  func(q *backend.Statement) { q.Mine = 1 },
		"used":                        func(q *backend.Statement) { q.Change = 1 },
		"given back":                  func(q *backend.Statement) { q.Change = -1 },
		"charged to all":              func(q *backend.Statement) { q.Used = 1 },
		"a run":                       func(q *backend.Statement) { q.Run = 1 },
		"too many buckets":            func(q *backend.Statement) { q.Changes = slices.Repeat(q.Changes, backend.MaxChanges+1) },
		"a bucket below 0":            change(-1, 1),
		"too large a bucket":          change(backend.MaxTokens+1, 1),
		"too many tokens in one":      change(1, backend.MaxTokens+1),
		"too many given back in one":  change(1, -backend.MaxTokens-1),
		"a reply before now":          func(q *backend.Statement) { q.Within = -1 },
		"a reply that takes for ever": func(q *backend.Statement) { q.Within = backend.MaxWindow + 1 },
		"no client, and both":         bare(1, backend.Change{Bucket: 1, Tokens: 1}),
		"no client, and a give-back":  bare(0, backend.Change{Bucket: 1, Tokens: -1}),
		"no client, and a wish":       func(q *backend.Statement) { bare(1)(q); q.Want = 1 },
		"no client, and too much":     bare(backend.MaxTokens + 1),
	} {
		q := good
		spoil(&q)
		_, err := s.Sync(b.at(0), q)
		refused(t, "sync: "+what, err, backend.ErrTokens)
	}
	for _, n := range []int64{-1, backend.MaxTokens + 1} {
		for _, field := range []string{"Life", "Seq", "Want", "Need", "Least", "Idle", "Pace", "Known", "After"} {
			q := good
			reflect.ValueOf(&q).Elem().FieldByName(field).SetInt(n)
			_, err := s.Sync(b.at(0), q)
			refused(t, fmt.Sprintf("sync: %s of %d", field, n), err, backend.ErrTokens)
		}
	}
	b.faultyCalls(b.limit)
	b.play("0s check -> charged=0 remaining=10")
}

// refused checks that err wraps want and is no failure of the store.
func refused(t testing.TB, what string, err, want error) {
	t.Helper()
	var failure *backend.Error
	if !errors.Is(err, want) || errors.As(err, &failure) {
		t.Errorf("%s: error %v, want one that wraps %v", what, err, want)
	}
}

// faultyCalls makes all calls of one kind of limit, with faulty keys and limits.
func (b *bench) faultyCalls(good backend.Limit) {
	b.t.Helper()
	each := func(key string, l backend.Limit, want error) {
		_, sync := b.store.Sync(b.at(0), backend.Statement{Key: key, Limit: l, Client: "x", Life: 1, Seq: 1, Want: 1, Need: 1})
		_, bare := b.store.Sync(b.at(0), backend.Statement{Key: key, Limit: l, Need: 1})
		_, check := b.store.Check(b.at(0), key, l)
		_, reset := b.store.Reset(b.at(0), key, l)
		for call, err := range map[string]error{"sync": sync, "sync without a client": bare, "check": check, "reset": reset} {
			refused(b.t, call, err, want)
		}
	}
	for _, key := range []string{"", strings.Repeat("k", backend.MaxKeyLen+1)} {
		each(key, good, backend.ErrKey)
		if listener, ok := b.store.(backend.Listener); ok {
			refused(b.t, "publish", listener.Publish(b.at(0), backend.Message{Key: key}), backend.ErrKey)
		}
	}
	for _, l := range []backend.Limit{
		{}, {Tokens: 1}, {Window: time.Second}, {Tokens: -1, Window: time.Second}, {Tokens: 1, Window: -time.Second},
		{Tokens: backend.MaxTokens + 1, Window: time.Second}, {Tokens: 1, Window: backend.MaxWindow + time.Millisecond},
		{Tokens: 1, Window: time.Second + time.Microsecond}, {Tokens: 1, Window: time.Microsecond},
		{Tokens: 1, Window: time.Hour, Calendar: backend.Calendar{Period: backend.Month + 1}},
		{Tokens: 1, Window: time.Hour, Calendar: backend.Calendar{Period: backend.Day, Zone: time.Local}},
		{Tokens: 1, Window: time.Hour, Calendar: backend.Calendar{Period: backend.Day, Zone: time.FixedZone("{a}", 1)}},
	} {
		l.Rolls = good.Rolls
		each(b.key, l, backend.ErrLimit)
	}
	for _, l := range []backend.Limit{
		{Tokens: 1, Window: backend.MinRolling - time.Millisecond}, {Tokens: 1, Window: time.Hour, Calendar: backend.Calendar{Period: backend.Day}},
	} {
		each(b.key, l.Rolling(), backend.ErrLimit)
	}
}

// testHostileKeys: a key of any bytes has a window of its own.
func testHostileKeys(t testing.TB, s backend.Store) {
	b := newBench(t, s, limit10)
	k := b.key
	list := []string{
		k, k + ":exp", k + ":own", k + ":exp:exp", k + ":w", "{" + k + "}", "{" + k + "}:exp", "{" + k,
		"}" + k, k + "}", k + "}1", k + "}2", "{}" + k, "{}{" + k + "}", k + "{}", k + "}{", k + "{", k + "}:exp",
		k + "%7D", k + "%7d", k + "%", k + "%25", k + "%257D", k + "\x00", k + "\x00\x00", "\x00" + k, k + "%00",
		k + "\n", k + "\r\n", k + "\r\nDEL x\r\n", k + " ", " " + k, k + "\t", k + "\x7f", k + "\u0085", k + "\u0090", k + "\u2028",
		k + "\xff", k + "\xfe", k + "\xc3", k + "\xc3\x28", k + "\ufffd", k + "\xed\xa0\x80", k + "ü", k + "u\u0308", k + "日本",
		strings.ToUpper(k), strings.Repeat("}", 100) + k, pad(k, "x"), pad(k, "{"), pad(k, "\x00"), pad(k, "\xff"),
	}
	// Each key gets a count of its own, then all are read.
	for i, key := range list {
		b.key = key
		rest := int64(9 - i%9)
		equal(t, "first of its key: "+key, b.sync(0, backend.Statement{Need: 10 - rest}).Remaining, rest)
		got := b.sync(0, backend.Statement{Client: "x", Want: 1, Need: 1, Hints: backend.Hints{Exact: true}})
		equal(t, "grant", got.Grant, 1)
		equal(t, "clients", got.Clients, 1)
	}
	for i, key := range list {
		b.key = key
		b.play(fmt.Sprintf("0s check -> charged=%d remaining=%d window=60s", 2+i%9, 8-i%9))
		b.play(fmt.Sprintf("0s sync x of=60s mine=1 change=-1 -> charged=%d remaining=%d window=60s", 1+i%9, 9-i%9))
		b.play("0s reset -> void=60s; 0s check -> charged=0 remaining=10")
	}
}

// pad returns a key of the maximum length.
func pad(key, with string) string {
	return key + strings.Repeat(with, backend.MaxKeyLen-len(key))
}

// testHostileClients: a client with a name of any bytes has an account of its own.
func testHostileClients(t testing.TB, s backend.Store) {
	list := []string{"a", "W", "l", "w", "era", "w ", " w", "Head", "heads", "~", "~1", "w\x00", "\x00", "\n", "{}", "}", "%s", "5", "1 2", "+", "\xff", strings.Repeat("x", 64)}
	both(backend.Limit{Tokens: 1000, Window: far}, func(l backend.Limit) {
		b, all := newBench(t, s, l), int64(len(list)*(len(list)+1)/2)
		for i, client := range list {
			got := b.sync(0, backend.Statement{Client: client, Want: int64(i + 1), Hints: backend.Hints{Exact: true}})
			equal(t, "granted", got.Grant, int64(i+1))
			equal(t, "clients", got.Clients, int64(i+1))
		}
		for i, client := range list {
			q := backend.Statement{Client: client, Window: b.end(far), Mine: int64(i + 1), Runs: true}
			if l.Rolls { // it has not read that, so it goes back
				q, all = backend.Statement{Client: client}, all-int64(i+1)
			}
			got := b.sync(0, q)
			equal(t, "charged to it", got.Mine, q.Mine)
			equal(t, "charged to all", got.Used, all)
		}
	})
}

// testContextOver: a call whose context has already ended does nothing.
func testContextOver(t testing.TB, s backend.Store) {
	b := newBench(t, s, limit10)
	b.play("0s take 5")
	cancelled, cancel := context.WithCancel(b.at(0))
	cancel()
	late, cancelLate := context.WithDeadline(b.at(0), time.Now().Add(-time.Second))
	defer cancelLate()
	for ctx, want := range map[context.Context]error{cancelled: context.Canceled, late: context.DeadlineExceeded} {
		for _, l := range []backend.Limit{b.limit, b.limit.Rolling()} {
			_, sync := s.Sync(ctx, backend.Statement{Key: b.key, Limit: l, Need: 1})
			_, check := s.Check(ctx, b.key, l)
			_, reset := s.Reset(ctx, b.key, l)
			for op, err := range map[string]error{"sync": sync, "check": check, "reset": reset} {
				var failure *backend.Error
				if !errors.Is(err, want) || !errors.As(err, &failure) || failure.Op != op || failure.Class != backend.Unavailable {
					t.Errorf("%s of %s: error %v, want an *Error that wraps %v and says that nothing was done", op, l.Counter(), err, want)
				}
			}
		}
	}
	b.play("0s check -> charged=5 remaining=5 window=60s")
	b.limit = b.limit.Rolling()
	b.play("0s check -> charged=0 remaining=10")
}

// testInspect: an Inspector shows each client's account of the open window. The scripts say what is charged.
func testInspect(t testing.TB, s backend.Store) {
	inspector, ok := s.(backend.Inspector)
	if !ok {
		return
	}
	b := newBench(t, s, limit10)
	_, err := inspector.Inspect(b.at(0), "")
	refused(t, "inspect", err, backend.ErrKey)
	equal(t, "no window", len(must(inspector.Inspect(b.at(0), b.key))(t)), 0)
	b.play("0s sync z want=9 exact")
	b.play("0s reset; 0s take 2; 0s sync y want=3 need=1 exact; 0s sync x want=4 need=4 exact; 0s sync x of=60s/0s mine=4 change=-1 leaving")
	minute := backend.Contents{
		Counter: "60s", Window: backend.Window{End: b.ms(far), Gen: b.ms(0)}, Left: far - time.Second, Used: 8, Idle: 2,
		Clients: []backend.Account{{Client: "x", Mine: 3, Left: true}, {Client: "y", Mine: 3, Idle: 2}},
	}
	equal(t, "contents", fmt.Sprint(must(inspector.Inspect(b.at(time.Second), b.key))(t)), fmt.Sprint([]backend.Contents{minute}))
	b.limit.Window = time.Hour
	b.play("0s take 5")
	hour := backend.Contents{Counter: "3600s", Window: b.end(time.Hour), Left: time.Hour - time.Second, Used: 5}
	equal(t, "contents", fmt.Sprint(must(inspector.Inspect(b.at(time.Second), b.key))(t)), fmt.Sprint([]backend.Contents{hour, minute}))
	equal(t, "contents", fmt.Sprint(must(inspector.Inspect(b.at(2*time.Minute), b.key))(t)), fmt.Sprint([]backend.Contents{{
		Counter: "3600s", Window: hour.Window, Left: time.Hour - 2*time.Minute, Used: 5,
	}}))

	b = newBench(t, s, backend.Limit{Tokens: 10, Window: 20 * time.Second}.Rolling())
	b.play("0s reset; 0s take 2; 0s sync y want=3 need=1 exact; 2s sync x want=4 need=4 exact; 2s sync x of=none/0s changes=3s:-1 leaving")
	rolls := backend.Contents{
		Counter: "20s:roll", Window: backend.Window{End: b.ms(31 * time.Second), Gen: b.ms(0)}, Left: 28 * time.Second, Used: 8, Idle: 2,
		Clients: []backend.Account{{Client: "x", Left: true}, {Client: "y", Idle: 2}},
	}
	equal(t, "contents", fmt.Sprint(must(inspector.Inspect(b.at(3*time.Second), b.key))(t)), fmt.Sprint([]backend.Contents{rolls}))
	equal(t, "no contents", len(must(inspector.Inspect(b.at(31*time.Second), b.key))(t)), 0)
}

// testCounters: limits of one key that differ in length, kind, period or zone count apart, and a number of tokens that
// changes does not.
func testCounters(t testing.TB, s backend.Store) {
	b := newBench(t, s, limit10)
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	calendar := func(p backend.Period, zone *time.Location) backend.Limit {
		return backend.Limit{Tokens: 10, Window: 24 * time.Hour, Calendar: backend.Calendar{Period: p, Zone: zone}}
	}
	limits := []backend.Limit{
		limit10, {Tokens: 10, Window: far + time.Millisecond}, {Tokens: 10, Window: far - time.Millisecond}, {Tokens: 10, Window: time.Hour}, {Tokens: 10, Window: 24 * time.Hour},
		calendar(backend.Day, nil), calendar(backend.Week, nil), calendar(backend.Month, nil), calendar(backend.Day, zone), calendar(backend.Month, zone),
		limit10.Rolling(), backend.Limit{Tokens: 10, Window: time.Hour}.Rolling(),
	}
	charge := func(l backend.Limit, n int64) int64 {
		q := backend.Statement{Key: b.key, Limit: l, Need: n}
		if l.Calendar.Period != 0 {
			begin, end := l.Calendar.Around(b.base)
			q.Begin, q.End = begin.UnixMilli(), end.UnixMilli()
		}
		return must(s.Sync(b.at(0), q))(t).Remaining
	}
	for i, l := range limits {
		n := int64(1 + i%9)
		equal(t, "remaining of "+l.Counter(), charge(l, n), 10-n)
	}
	for i, l := range limits {
		n := int64(1 + i%9)
		equal(t, "remaining of "+l.Counter(), must(s.Check(b.at(0), b.key, l))(t).Remaining, 10-n)
		l.Tokens = 100
		equal(t, "remaining of a larger "+l.Counter(), must(s.Check(b.at(0), b.key, l))(t).Remaining, 100-n)
	}
	must(s.Reset(b.at(0), b.key, limits[0]))(t)
	for i, l := range limits {
		n := int64(1 + i%9)
		if i == 0 {
			n = 0
		}
		equal(t, "after a reset of the first, remaining of "+l.Counter(), must(s.Check(b.at(0), b.key, l))(t).Remaining, 10-n)
	}
}
