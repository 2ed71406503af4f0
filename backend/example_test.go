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

// A limiter's calls about a fixed limit, one of each kind.
func ExampleStore() {
	ctx, store := context.Background(), memstore.New()
	limit := backend.Limit{Tokens: 1000, Window: time.Hour}

	// A statement asks for a batch. If its reply is lost, the next one says what the account should be, and gets it anew:
	// nothing is charged twice.
	q := backend.Statement{Key: "user:42", Limit: limit, Client: "a", Life: 1, Want: 100, Need: 1, Hints: backend.Hints{Exact: true}}
	var r backend.Reply
	for range 2 {
		q.Seq++
		r, _ = store.Sync(ctx, q)
		fmt.Println("grant", r.Grant, "mine", r.Mine, "remaining", r.Remaining)
	}

	// The account goes on from the last reply. Here 30 tokens go back.
	q.Seq, q.Window, q.Mine, q.Used, q.Runs = q.Seq+1, r.Window, r.Mine, r.Used, true
	q.Change, q.Want, q.Need = -30, 0, 0
	r, _ = store.Sync(ctx, q)
	fmt.Println("mine", r.Mine, "remaining", r.Remaining)

	// A statement without a client charges all that it needs or none, and then what was used above that.
	bare := backend.Statement{Key: "user:42", Limit: limit, Need: 900}
	r, _ = store.Sync(ctx, bare)
	fmt.Println("grant", r.Grant, "remaining", r.Remaining)
	bare.Need, bare.Change, bare.Window = 0, 50, r.Window
	r, _ = store.Sync(ctx, bare)
	fmt.Println("used", r.Used, "remaining", r.Remaining)

	// An operator reads the ledger, and gives the user a fresh window.
	var inspector backend.Inspector = store
	inside, _ := inspector.Inspect(ctx, "user:42")
	fmt.Println(inside[0].Counter, inside[0].Used, inside[0].Clients)
	void, _ := store.Reset(ctx, "user:42", limit)
	state, _ := store.Check(ctx, "user:42", limit)
	fmt.Println(state.Remaining, void == r.Window, state.Window.Gen > void.Gen)
	// Output:
	// grant 100 mine 100 remaining 900
	// grant 100 mine 100 remaining 900
	// mine 70 remaining 930
	// grant 900 remaining 30
	// used 1020 remaining 0
	// 3600s 1020 [{a 70 0 false}]
	// 1000 true true
}

// A statement of a rolling limit says its account by buckets.
func ExampleRolling() {
	ctx, store := context.Background(), memstore.New()
	limit := backend.Limit{Tokens: 1000, Window: time.Hour}.Rolling()

	// Tokens that are needed are of the present bucket, and may be spent until it ends.
	q := backend.Statement{Key: "user:42", Limit: limit, Client: "a", Life: 1, Seq: 1, Want: 100, Need: 100, Hints: backend.Hints{Exact: true}}
	r, _ := store.Sync(ctx, q)
	bucket := r.Grants[0].Bucket
	fmt.Println("grant", r.Grant, "remaining", r.Remaining, bucket == backend.Bucket(r.Now, limit.Window))

	// 30 go back to their bucket. A Reset would have changed Gen.
	q.Seq, q.Known, q.Window.Gen, q.Want, q.Need = 2, 1, r.Window.Gen, 0, 0
	q.Changes = []backend.Change{{Bucket: bucket, Tokens: -30}}
	r, _ = store.Sync(ctx, q)
	fmt.Println("remaining", r.Remaining)

	// That reply was lost, and it was 10 more: the store undoes what the client has not read.
	q.Seq, q.Changes = 3, []backend.Change{{Bucket: bucket, Tokens: -40}}
	r, _ = store.Sync(ctx, q)
	fmt.Println("remaining", r.Remaining)
	// Output:
	// grant 100 remaining 900 true
	// remaining 930
	// remaining 940
}

// Limits that differ only in their tokens share a counter. Others never meet.
func ExampleLimit_Counter() {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		panic(err)
	}
	for _, l := range []backend.Limit{
		{Tokens: 10, Window: time.Minute},
		{Tokens: 500, Window: time.Minute},
		{Tokens: 10, Window: 1500 * time.Millisecond},
		backend.Limit{Tokens: 10, Window: time.Minute}.Rolling(),
		{Tokens: 10, Window: 24 * time.Hour, Calendar: backend.Calendar{Period: backend.Day, Zone: berlin}},
		{Tokens: 10, Window: 24 * time.Hour, Calendar: backend.Calendar{Period: backend.Month}},
	} {
		fmt.Println(l.Counter())
	}
	// Output:
	// 60s
	// 60s
	// 1500ms
	// 60s:roll
	// day@Europe/Berlin
	// month@UTC
}

// A store refuses a faulty request before it does anything.
func ExampleStatement_Validate() {
	limit, long := backend.Limit{Tokens: 10, Window: time.Minute}, strings.Repeat("k", 5000)
	good := backend.Statement{Key: "k", Limit: limit, Client: "c", Life: 1, Seq: 1, Want: 1}
	fmt.Println(good.Validate(), limit.Validate(), backend.ValidateKey("k"))
	fmt.Println(len(long) > backend.MaxKeyLen, errors.Is(backend.ValidateKey(long), backend.ErrKey))
	for _, change := range []func(q *backend.Statement){
		func(q *backend.Statement) { q.Key = "" },
		func(q *backend.Statement) { q.Limit.Window = 0 },
		func(q *backend.Statement) { q.Seq = 0 },
		func(q *backend.Statement) { q.Client = "" },                             // and so nobody to give Want to
		func(q *backend.Statement) { q.Limit, q.Mine = limit.Rolling(), 1 },      // whose account is by buckets
		func(q *backend.Statement) { q.Changes = []backend.Change{{Tokens: 1}} }, // which a fixed limit has not
	} {
		q := good
		change(&q)
		err := q.Validate()
		fmt.Println(errors.Is(err, backend.ErrKey), errors.Is(err, backend.ErrLimit), errors.Is(err, backend.ErrTokens))
	}
	for _, window := range []time.Duration{backend.MinWindow - 1, backend.MaxWindow + 1} {
		fmt.Println(errors.Is(backend.Limit{Tokens: 1, Window: window}.Validate(), backend.ErrLimit))
	}
	// Output:
	// <nil> <nil> <nil>
	// true true
	// true false false
	// false true false
	// false false true
	// false false true
	// false false true
	// false false true
	// true
	// true
}

// What a failure says about the call decides what may be done next.
func ExampleError() {
	for _, class := range []backend.Class{backend.Unknown, backend.Unavailable, backend.Rejected} {
		err := &backend.Error{Op: "sync", Class: class, Err: io.ErrUnexpectedEOF}
		fmt.Println(err, err.Unwrap() == io.ErrUnexpectedEOF)
	}
	// Output:
	// reservoir: sync: store outcome unknown: unexpected EOF true
	// reservoir: sync: store unavailable: unexpected EOF true
	// reservoir: sync: store rejected: unexpected EOF true
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
	fmt.Println(limit.Ends(at).Format("15:04"), limit.At(at).Window)
	fmt.Println(backend.Limit{Tokens: 100, Window: time.Minute}.Ends(time.UnixMilli(1_500)).UTC().Format("04:05.000")) // a whole second
	// Output:
	// Sun 29.03. 00:00 to Mon 30.03. 00:00 23h0m0s
	// Mon 23.03. 00:00 to Mon 30.03. 00:00 167h0m0s
	// Sun 01.03. 00:00 to Wed 01.04. 00:00 743h0m0s
	// 00:00 23h0m0s
	// 01:01.000
}

// Every process must mean the same zone by its name, so zones that have none of their own are refused.
func ExampleLimit_Validate() {
	day := func(zone *time.Location) error {
		return backend.Limit{Tokens: 10, Window: 24 * time.Hour, Calendar: backend.Calendar{Period: backend.Day, Zone: zone}}.Validate()
	}
	fmt.Println(day(nil), day(time.UTC), day(time.FixedZone("+01", 3600)))
	fmt.Println(day(time.Local))
	// Output:
	// <nil> <nil> <nil>
	// reservoir: bad limit: a calendar in the zone of this machine or one without a name: use time.LoadLocation or time.UTC
}
