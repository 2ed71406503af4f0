package backend_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// The calls that a limiter makes, one of each kind.
func ExampleStore() {
	ctx, store := context.Background(), memstore.New()
	limit := backend.Limit{Tokens: 1000, Window: time.Hour}

	// A statement asks for a batch. Repeated after a lost reply it charges nothing twice.
	ask := backend.SyncRequest{Key: "user:42", Client: "a", Limit: limit, Want: 100, Need: 1, Least: 1, Exact: true}
	for range 2 {
		r, _ := store.Sync(ctx, ask)
		fmt.Println("grant", r.Grant, "granted", r.Granted, "recovered", r.Recovered, "remaining", r.Remaining)
	}

	// A direct call charges all of its tokens or none.
	taken, _ := store.Take(ctx, backend.TakeRequest{Key: "user:42", Limit: limit, Tokens: 900})
	fmt.Println(taken.Allowed, taken.Remaining)

	// What was not needed goes back; what was used beyond is charged, even above the limit.
	for _, n := range []int64{-700, 401} {
		settled, _ := store.Settle(ctx, backend.SettleRequest{Key: "user:42", Window: taken.Window, Tokens: n, Limit: limit.Tokens})
		fmt.Println(settled.Open, settled.Over)
	}
	state, _ := store.Check(ctx, "user:42", limit)
	fmt.Println(state.Remaining, state.Window == taken.Window, state.Window.Time().After(time.Now()))

	// An operator reads the ledger, and opens a fresh window.
	var inspector backend.Inspector = store
	inside, _ := inspector.Inspect(ctx, "user:42")
	fmt.Println(inside.Used, inside.Clients, inside.Idle)
	state, _ = store.Reset(ctx, backend.ResetRequest{Key: "user:42", Limit: limit})
	fmt.Println(state.Remaining)
	// Output:
	// grant 100 granted 100 recovered 0 remaining 900
	// grant 100 granted 100 recovered 100 remaining 900
	// true 0
	// true 0
	// true 0
	// 299 true true
	// 701 [{a 100 0 99}] 99
	// 1000
}

// A store refuses a faulty request before it does anything.
func ExampleTakeRequest_Validate() {
	limit, long := backend.Limit{Tokens: 10, Window: time.Minute}, strings.Repeat("k", 5000)
	fmt.Println(backend.TakeRequest{Key: "k", Limit: limit, Tokens: 1}.Validate(), len(long) > backend.MaxKeyLen, errors.Is(backend.ValidateKey(long), backend.ErrKey))
	fmt.Println(errors.Is(backend.TakeRequest{Limit: limit, Tokens: 1}.Validate(), backend.ErrKey), backend.ValidateKey("k"))
	fmt.Println(errors.Is(backend.SyncRequest{Key: "k", Limit: limit, Client: "c", Want: -1}.Validate(), backend.ErrTokens))
	fmt.Println(errors.Is(backend.SettleRequest{Key: "k", Window: 1, Tokens: backend.MaxTokens + 1, Limit: 1}.Validate(), backend.ErrTokens))
	fmt.Println(errors.Is(backend.ResetRequest{Key: "k"}.Validate(), backend.ErrLimit), limit.Validate())
	for _, window := range []time.Duration{backend.MinWindow - 1, backend.MaxWindow + 1} {
		fmt.Println(errors.Is(backend.Limit{Tokens: 1, Window: window}.Validate(), backend.ErrLimit))
	}
	// Output:
	// <nil> true true
	// true <nil>
	// true
	// true
	// true <nil>
	// true
	// true
}

// What a failure says about the call decides what may be done next.
func ExampleError() {
	for _, class := range []backend.Class{backend.Unknown, backend.Unavailable, backend.Rejected} {
		err := &backend.Error{Op: "take", Class: class, Err: io.ErrUnexpectedEOF}
		fmt.Println(err, err.Unwrap() == io.ErrUnexpectedEOF)
	}
	// Output:
	// reservoir: take: store outcome unknown: unexpected EOF true
	// reservoir: take: store unavailable: unexpected EOF true
	// reservoir: take: store rejected: unexpected EOF true
}

// A day that is 23 hours long, a week from Monday on, a month.
func ExampleCalendar() {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		panic(err)
	}
	at := time.Date(2026, 3, 29, 15, 0, 0, 0, berlin) // summer time began at 2 o'clock
	for _, period := range []backend.Period{backend.Day, backend.Week, backend.Month} {
		begin, end := backend.Calendar{Period: period, Zone: berlin}.Around(at)
		fmt.Println(begin.Format("Mon 02.01. 15:04"), "to", end.Format("Mon 02.01. 15:04"), end.Sub(begin))
	}
	limit := backend.Limit{Tokens: 100, Window: 24 * time.Hour, Calendar: backend.Calendar{Period: backend.Day, Zone: berlin}}
	fmt.Println(limit.Ends(at).Format("15:04"), limit.At(at).Window, limit.Plain().Calendar == backend.Calendar{})
	fmt.Println(backend.Limit{Tokens: 100, Window: time.Minute}.Ends(time.UnixMilli(1_500)).UTC().Format("04:05.000")) // a whole second
	// Output:
	// Sun 29.03. 00:00 to Mon 30.03. 00:00 23h0m0s
	// Mon 23.03. 00:00 to Mon 30.03. 00:00 167h0m0s
	// Sun 01.03. 00:00 to Wed 01.04. 00:00 743h0m0s
	// 00:00 23h0m0s true
	// 01:01.000
}
