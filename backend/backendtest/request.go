package backendtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// testFaults: faulty requests are refused with the right error and charge nothing.
func testFaults(t testing.TB, s backend.Store) {
	b := newBench(t, s, limit10)
	good := backend.SyncRequest{
		Key: b.key, Limit: b.limit, Client: "x", Window: b.end(far), Granted: 3, Returned: 1, Want: 2, Need: 1,
	}
	syncs := []struct {
		what   string
		change func(r *backend.SyncRequest)
		want   error
	}{
		{"no client", func(r *backend.SyncRequest) { r.Client = "" }, backend.ErrKey},
		{"a long client", func(r *backend.SyncRequest) { r.Client = strings.Repeat("c", 65) }, backend.ErrKey},
		{"the ledger's header", func(r *backend.SyncRequest) { r.Client = "w" }, backend.ErrKey},
		{"the ledger's era", func(r *backend.SyncRequest) { r.Client = "era" }, backend.ErrKey},
		{"returned more than granted", func(r *backend.SyncRequest) { r.Returned = 4 }, backend.ErrTokens},
		{"returned more than was granted and owed", func(r *backend.SyncRequest) { r.Debt, r.Returned = 2, 6 }, backend.ErrTokens},
		{"returned too much", func(r *backend.SyncRequest) { r.Debt, r.Returned = backend.MaxTokens, backend.MaxTokens+1 }, backend.ErrTokens},
		{"needs more than it wants", func(r *backend.SyncRequest) { r.Need = 3 }, backend.ErrTokens},
		{"needs at least more than it needs", func(r *backend.SyncRequest) { r.Least = 2 }, backend.ErrTokens},
		{"a calendar that goes back", func(r *backend.SyncRequest) { r.End, r.Next = 5, 5 }, backend.ErrTokens},
		{"less idle than -1", func(r *backend.SyncRequest) { r.Idle = -2 }, backend.ErrTokens},
	}
	for _, row := range syncs {
		r := good
		row.change(&r)
		_, err := s.Sync(b.at(0), r)
		refused(t, "sync: "+row.what, err, row.want)
	}
	for _, n := range []int64{-1, backend.MaxTokens + 1} {
		for field := range reflect.TypeFor[backend.SyncRequest]().Fields() {
			if field.Type.Kind() != reflect.Int64 || n < 0 && field.Name == "Idle" {
				continue
			}
			r, want := good, backend.ErrTokens
			if reflect.ValueOf(&r).Elem().FieldByIndex(field.Index).SetInt(n); field.Name == "OpenLength" {
				want = backend.ErrLimit
			}
			_, err := s.Sync(b.at(0), r)
			refused(t, fmt.Sprintf("sync: %s of %d", field.Name, n), err, want)
		}
	}
	testFaultyCalls(t, b)
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

// each makes one call of each kind and returns its error.
func (b *bench) each(ctx context.Context, key string, l backend.Limit) map[string]error {
	_, sync := b.store.Sync(ctx, backend.SyncRequest{Key: key, Limit: l, Client: "x", Want: 1, Need: 1})
	_, take := b.store.Take(ctx, backend.TakeRequest{Key: key, Limit: l, Tokens: 1})
	_, check := b.store.Check(ctx, key, l)
	_, settle := b.store.Settle(ctx, backend.SettleRequest{Key: key, Window: b.end(far), Tokens: -1, Limit: 1})
	_, reset := b.store.Reset(ctx, backend.ResetRequest{Key: key, Limit: l})
	return map[string]error{"sync": sync, "take": take, "check": check, "settle": settle, "reset": reset}
}

func testFaultyCalls(t testing.TB, b *bench) {
	ctx := b.at(0)
	for _, key := range []string{"", strings.Repeat("k", backend.MaxKeyLen+1)} {
		for op, err := range b.each(ctx, key, limit10) {
			refused(t, op, err, backend.ErrKey)
		}
		if listener, ok := b.store.(backend.Listener); ok {
			refused(t, "publish", listener.Publish(ctx, backend.Message{Key: key}), backend.ErrKey)
		}
	}
	for _, l := range []backend.Limit{
		{}, {Tokens: 1}, {Window: time.Second}, {Tokens: -1, Window: time.Second}, {Tokens: 1, Window: -time.Second},
		{Tokens: backend.MaxTokens + 1, Window: time.Second}, {Tokens: 1, Window: backend.MaxWindow + time.Millisecond},
		{Tokens: 1, Window: time.Second + time.Microsecond}, {Tokens: 1, Window: time.Microsecond},
	} {
		for op, err := range b.each(ctx, b.key, l) {
			if op != "settle" { // it needs no window's length
				refused(t, op, err, backend.ErrLimit)
			}
		}
	}
	for _, n := range []int64{0, -1, 11, backend.MaxTokens + 1} {
		_, err := b.store.Take(ctx, backend.TakeRequest{Key: b.key, Limit: b.limit, Tokens: n})
		refused(t, "take", err, backend.ErrTokens)
	}
	year := backend.Window(backend.MaxWindow.Milliseconds())
	for end, next := range map[backend.Window]backend.Window{-1: 0, backend.MaxTokens + 1: 0, 2: 2, 3: 2, 4: 5 + year} {
		_, err := b.store.Take(ctx, backend.TakeRequest{Key: b.key, Limit: limit10, Tokens: 1, End: end, Next: next})
		refused(t, "take", err, backend.ErrTokens)
		_, err = b.store.Reset(ctx, backend.ResetRequest{Key: b.key, Limit: limit10, End: end, Next: next})
		refused(t, "reset", err, backend.ErrTokens)
	}
	for _, r := range []backend.SettleRequest{
		{Window: 1, Limit: 1}, {Tokens: 1, Limit: 1}, {Window: 1, Tokens: 1}, {Window: -1, Tokens: 1, Limit: 1}, {Window: 1, Tokens: 1, Limit: backend.MaxTokens + 1},
		{Window: 1, Tokens: backend.MaxTokens + 1, Limit: 1}, {Window: 1, Tokens: -backend.MaxTokens - 1, Limit: 1}, {Window: 1, Tokens: math.MinInt64, Limit: 1},
	} {
		r.Key = b.key
		_, err := b.store.Settle(ctx, r)
		refused(t, "settle", err, backend.ErrTokens)
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
		equal(t, "first of its key: "+key, must(s.Take(b.at(0), backend.TakeRequest{Key: b.key, Limit: b.limit, Tokens: 10 - rest}))(t).Remaining, rest)
		got := b.sync(0, backend.SyncRequest{Client: "x", Want: 1, Need: 1, Exact: true})
		equal(t, "grant", got.Grant, 1)
		equal(t, "clients", got.Clients, 1)
	}
	for i, key := range list {
		b.key = key
		b.play(fmt.Sprintf("0s check -> charged=%d remaining=%d window=60s", 2+i%9, 8-i%9))
		b.play(fmt.Sprintf("0s settle -1 of=60s -> charged=%d", 1+i%9))
		b.play(fmt.Sprintf("0s check -> charged=%d remaining=%d window=60s", 1+i%9, 9-i%9))
	}
}

// pad returns a key of the maximum length.
func pad(key, with string) string {
	return key + strings.Repeat(with, backend.MaxKeyLen-len(key))
}

// testHostileClients: a client with a name of any bytes has an account of its own.
func testHostileClients(t testing.TB, s backend.Store) {
	b := newBench(t, s, backend.Limit{Tokens: 1000, Window: far})
	list := []string{"a", "W", "l", "w ", " w", "dry", "~", "~1", "w\x00", "\x00", "\n", "{}", "}", "%s", "1", "1 2", "\xff", strings.Repeat("x", 64)}
	for i, client := range list {
		got := b.sync(0, backend.SyncRequest{Client: client, Want: int64(i + 1), Exact: true})
		equal(t, "granted", got.Granted, int64(i+1))
		equal(t, "clients", got.Clients, int64(i+1))
	}
	for i, client := range list {
		equal(t, "recovered", b.sync(0, backend.SyncRequest{Client: client}).Recovered, int64(i+1))
	}
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
		for op, err := range b.each(ctx, b.key, b.limit) {
			var failure *backend.Error
			if !errors.Is(err, want) || !errors.As(err, &failure) || failure.Op != op || failure.Class != backend.Unavailable {
				t.Errorf("%s: error %v, want an *Error that wraps %v and says that nothing was done", op, err, want)
			}
		}
	}
	b.play("0s check -> charged=5 remaining=5 window=60s")
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
	equal(t, "no window", fmt.Sprint(must(inspector.Inspect(b.at(0), b.key))(t)), fmt.Sprint(backend.Contents{}))
	b.play("0s take 2; 0s sync y want=3 need=3 exact; 0s sync x want=4 need=4 exact; 0s sync x of=60s granted=4 returned=1")
	equal(t, "contents", fmt.Sprint(must(inspector.Inspect(b.at(time.Second), b.key))(t)), fmt.Sprint(backend.Contents{
		Window: b.end(far), Left: far - time.Second, Used: 8,
		Clients: []backend.Account{{Client: "x", Granted: 4, Returned: 1}, {Client: "y", Granted: 3}},
	}))
}
