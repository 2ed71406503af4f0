package backend

import (
	"context"
	"time"
)

// Inspector is an optional interface of a store, for operators: Inspect returns all
// that the store holds for one key. No decision depends on it. It may cost more than a
// Check.
type Inspector interface {
	Inspect(ctx context.Context, key string) (Contents, error)
}

// Contents is what a store holds for a key. The zero value is a key without an open
// window.
type Contents struct {
	Window  Window
	Left    time.Duration // until Window ends, by the store's clock
	Used    int64         // tokens charged, ledger and direct calls together
	Idle    int64         // the sum of the clients'
	Clients []Account     // of the open window, by name
}

// Account is a client's ledger entry: tokens granted to the client and returned by it,
// cumulative in the window.
type Account struct {
	Client   string
	Granted  int64
	Returned int64
	Idle     int64 // at most so many lie idle there; see SyncReply
}
