package backendtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// testFaults: faulty requests are refused with the right error and charge nothing.
func testFaults(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit10)
	good := backend.SyncRequest{
		Key: b.key, Limit: b.limit, Client: "x", Window: b.end(far), Granted: 3, Returned: 1, Want: 2, Need: 1,
	}
	syncs := []struct {
		what   string
		change func(r *backend.SyncRequest)
		want   error
	}{
		{"no key", func(r *backend.SyncRequest) { r.Key = "" }, backend.ErrKey},
		{"a key that is too long", func(r *backend.SyncRequest) { r.Key = strings.Repeat("k", backend.MaxKeyLen+1) }, backend.ErrKey},
		{"no client", func(r *backend.SyncRequest) { r.Client = "" }, backend.ErrKey},
		{"a long client", func(r *backend.SyncRequest) { r.Client = strings.Repeat("c", 65) }, backend.ErrKey},
		{"the ledger's header", func(r *backend.SyncRequest) { r.Client = "w" }, backend.ErrKey},
		{"the ledger's era", func(r *backend.SyncRequest) { r.Client = "era" }, backend.ErrKey},
		{"no limit", func(r *backend.SyncRequest) { r.Limit = backend.Limit{} }, backend.ErrLimit},
		{"returned more than granted", func(r *backend.SyncRequest) { r.Returned = 4 }, backend.ErrTokens},
		{"returned below 0", func(r *backend.SyncRequest) { r.Returned = -1 }, backend.ErrTokens},
		{"granted below 0", func(r *backend.SyncRequest) { r.Granted, r.Returned = -1, -2 }, backend.ErrTokens},
		{"returned more than was granted and owed", func(r *backend.SyncRequest) { r.Debt, r.Returned = 2, 6 }, backend.ErrTokens},
		{"returned too much", func(r *backend.SyncRequest) { r.Debt, r.Returned = backend.MaxTokens, backend.MaxTokens+1 }, backend.ErrTokens},
		{"granted too much", func(r *backend.SyncRequest) { r.Granted = backend.MaxTokens + 1 }, backend.ErrTokens},
		{"needs more than it wants", func(r *backend.SyncRequest) { r.Need = 3 }, backend.ErrTokens},
		{"needs less than nothing", func(r *backend.SyncRequest) { r.Need = -1 }, backend.ErrTokens},
		{"needs at least more than it needs", func(r *backend.SyncRequest) { r.Least = 2 }, backend.ErrTokens},
		{"needs at least less than nothing", func(r *backend.SyncRequest) { r.Least = -1 }, backend.ErrTokens},
		{"owes less than nothing", func(r *backend.SyncRequest) { r.Debt = -1 }, backend.ErrTokens},
		{"owes too much", func(r *backend.SyncRequest) { r.Debt = backend.MaxTokens + 1 }, backend.ErrTokens},
		{"a calendar before time began", func(r *backend.SyncRequest) { r.End = -1 }, backend.ErrTokens},
		{"a calendar that goes back", func(r *backend.SyncRequest) { r.End, r.Next = 5, 5 }, backend.ErrTokens},
		{"a calendar too late", func(r *backend.SyncRequest) { r.End = backend.MaxTokens + 1 }, backend.ErrTokens},
		{"wants less than nothing", func(r *backend.SyncRequest) { r.Want, r.Need = -1, -1 }, backend.ErrTokens},
		{"wants too much", func(r *backend.SyncRequest) { r.Want = backend.MaxTokens + 1 }, backend.ErrTokens},
		{"strands too much", func(r *backend.SyncRequest) { r.Strand = backend.MaxTokens + 1 }, backend.ErrTokens},
		{"fewer peers than none", func(r *backend.SyncRequest) { r.Peers = -1 }, backend.ErrTokens},
		{"too many peers", func(r *backend.SyncRequest) { r.Peers = backend.MaxTokens + 1 }, backend.ErrTokens},
		{"a pace below 0", func(r *backend.SyncRequest) { r.Pace = -1 }, backend.ErrTokens},
		{"too fast", func(r *backend.SyncRequest) { r.Pace = backend.MaxTokens + 1 }, backend.ErrTokens},
		{"a total below 0", func(r *backend.SyncRequest) { r.Total = -1 }, backend.ErrTokens},
		{"too much in total", func(r *backend.SyncRequest) { r.Total = backend.MaxTokens + 1 }, backend.ErrTokens},
		{"less than nothing used", func(r *backend.SyncRequest) { r.Used = -1 }, backend.ErrTokens},
		{"too much used", func(r *backend.SyncRequest) { r.Used = backend.MaxTokens + 1 }, backend.ErrTokens},
		{"a window below 0", func(r *backend.SyncRequest) { r.Window = -1 }, backend.ErrTokens},
		{"a window too late", func(r *backend.SyncRequest) { r.Window = backend.MaxTokens + 1 }, backend.ErrTokens},
	}
	for _, row := range syncs {
		r := good
		row.change(&r)
		refused(s.Sync(b.at(0), r))(t, "sync: "+row.what, row.want)
	}
	testFaultyCalls(t, b)
	b.play("0s check -> remaining=10")
}

// refused checks that the error of a call wraps want and is no failure of the store.
func refused[T any](_ T, err error) func(t testing.TB, what string, want error) {
	return func(t testing.TB, what string, want error) {
		t.Helper()
		var failure *backend.Error
		if !errors.Is(err, want) || errors.As(err, &failure) {
			t.Errorf("%s: error %v, want one that wraps %v", what, err, want)
		}
	}
}

func testFaultyCalls(t *testing.T, b *bench) {
	ctx := b.at(0)
	for _, n := range []int64{0, -1, 11, backend.MaxTokens + 1} {
		refused(b.store.Take(ctx, backend.TakeRequest{Key: b.key, Limit: limit10, Tokens: n}))(t, "take", backend.ErrTokens)
	}
	for _, key := range []string{"", strings.Repeat("k", backend.MaxKeyLen+1)} {
		refused(b.store.Take(ctx, backend.TakeRequest{Key: key, Limit: limit10, Tokens: 1}))(t, "take", backend.ErrKey)
		refused(b.store.Check(ctx, key, limit10))(t, "check", backend.ErrKey)
		settle := backend.SettleRequest{Key: key, Window: 1, Tokens: -1, Limit: 1}
		refused(b.store.Settle(ctx, settle))(t, "settle", backend.ErrKey)
		refused(b.store.Reset(ctx, backend.ResetRequest{Key: key, Limit: limit10}))(t, "reset", backend.ErrKey)
	}
	for _, l := range []backend.Limit{
		{}, {Tokens: 1}, {Window: time.Second}, {Tokens: -1, Window: time.Second}, {Tokens: 1, Window: -time.Second},
		{Tokens: backend.MaxTokens + 1, Window: time.Second}, {Tokens: 1, Window: backend.MaxWindow + time.Millisecond},
		{Tokens: 1, Window: time.Second + time.Microsecond}, {Tokens: 1, Window: time.Microsecond},
	} {
		refused(b.store.Take(ctx, backend.TakeRequest{Key: b.key, Limit: l, Tokens: 1}))(t, "take", backend.ErrLimit)
		refused(b.store.Check(ctx, b.key, l))(t, "check", backend.ErrLimit)
		refused(b.store.Reset(ctx, backend.ResetRequest{Key: b.key, Limit: l}))(t, "reset", backend.ErrLimit)
	}
	year := backend.Window(backend.MaxWindow.Milliseconds())
	for end, next := range map[backend.Window]backend.Window{-1: 0, backend.MaxTokens + 1: 0, 2: 2, 3: 2, 4: 5 + year} {
		take := backend.TakeRequest{Key: b.key, Limit: limit10, Tokens: 1, End: end, Next: next}
		refused(b.store.Take(ctx, take))(t, "take", backend.ErrTokens)
		reset := backend.ResetRequest{Key: b.key, Limit: limit10, End: end, Next: next}
		refused(b.store.Reset(ctx, reset))(t, "reset", backend.ErrTokens)
	}
	const most = backend.MaxTokens
	for _, r := range []backend.SettleRequest{
		{Window: 1, Limit: 1}, {Tokens: 1, Limit: 1}, {Window: 1, Tokens: 1}, {Window: -1, Tokens: 1, Limit: 1}, {Window: 1, Tokens: 1, Limit: most + 1},
		{Window: 1, Tokens: most + 1, Limit: 1}, {Window: 1, Tokens: -most - 1, Limit: 1}, {Window: 1, Tokens: math.MinInt64, Limit: 1},
	} {
		r.Key = b.key
		refused(b.store.Settle(ctx, r))(t, "settle", backend.ErrTokens)
	}
}

// testHostileKeys: a key of any bytes has a window of its own.
func testHostileKeys(t *testing.T, s backend.Store) {
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
		equal(t, "first of its key: "+key, must(s.Take(b.at(0), b.takeRequest(10-rest)))(t).Remaining, rest)
		got := b.sync(0, backend.SyncRequest{Client: "x", Want: 1, Need: 1, Strand: -1})
		equal(t, "grant", got.Grant, 1)
		equal(t, "clients", got.Clients, 1)
	}
	for i, key := range list {
		b.key = key
		b.play(fmt.Sprintf("0s check -> remaining=%d window=60s", 8-i%9))
		b.play("0s settle -1 of=60s -> done")
		b.play(fmt.Sprintf("0s check -> remaining=%d window=60s", 9-i%9))
	}
}

// pad returns a key of the maximum length.
func pad(key, with string) string {
	return key + strings.Repeat(with, backend.MaxKeyLen-len(key))
}

// testHostileClients: a client with a name of any bytes has an account of its own.
func testHostileClients(t *testing.T, s backend.Store) {
	b := newBench(t, s, backend.Limit{Tokens: 1000, Window: far})
	list := []string{"a", "W", "l", "w ", " w", "dry", "~", "~1", "w\x00", "\x00", "\n", "{}", "}", "%s", "1", "1 2", "\xff", strings.Repeat("x", 64)}
	for i, client := range list {
		got := b.sync(0, backend.SyncRequest{Client: client, Want: int64(i + 1), Strand: -1})
		equal(t, "granted", got.Granted, int64(i+1))
		equal(t, "clients", got.Clients, int64(i+1))
	}
	for i, client := range list {
		equal(t, "recovered", b.sync(0, backend.SyncRequest{Client: client}).Recovered, int64(i+1))
	}
}

// testContextOver: a call whose context has already ended does nothing.
func testContextOver(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit10)
	b.play("0s take 5")
	cancelled, cancel := context.WithCancel(b.at(0))
	cancel()
	late, cancelLate := context.WithDeadline(b.at(0), time.Now().Add(-time.Second))
	defer cancelLate()
	for ctx, want := range map[context.Context]error{cancelled: context.Canceled, late: context.DeadlineExceeded} {
		_, sync := s.Sync(ctx, backend.SyncRequest{Key: b.key, Limit: b.limit, Client: "x", Want: 1, Need: 1})
		_, take := s.Take(ctx, b.takeRequest(1))
		_, check := s.Check(ctx, b.key, b.limit)
		_, settle := s.Settle(ctx, backend.SettleRequest{Key: b.key, Window: b.end(far), Tokens: -1, Limit: 1})
		_, reset := s.Reset(ctx, backend.ResetRequest{Key: b.key, Limit: b.limit})
		for op, err := range map[string]error{"sync": sync, "take": take, "check": check, "settle": settle, "reset": reset} {
			var failure *backend.Error
			if !errors.Is(err, want) || !errors.As(err, &failure) || failure.Op != op || failure.Class != backend.Unavailable {
				t.Errorf("%s: error %v, want an *Error that wraps %v and says that nothing was done", op, err, want)
			}
		}
	}
	b.play("0s check -> remaining=5 window=60s")
}
