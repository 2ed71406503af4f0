package backend

import (
	"context"
	"time"
)

// Inspector is an optional interface of a store, for operators: Inspect returns all
// counters that the store holds for one key, by name. No decision depends on it. It may cost much more than a
// Check.
type Inspector interface {
	Inspect(ctx context.Context, key string) ([]Contents, error)
}

// Contents is what a store holds in one counter of a key whose window is open, or which is held. If none is open, the Window
// has no End.
type Contents struct {
	Counter string // see Limit.Counter
	Window  Window
	Left    time.Duration // until Window ends, by the store's clock
	Used    int64         // tokens charged, with and without an account
	Held    time.Duration // for how much longer the counter is held; 0 = it is not
	Idle    int64         // the sum of the clients'
	Clients []Account     // of the open window, by name
}

// Account is a client's entry in the ledger.
type Account struct {
	Client string
	Mine   int64 // tokens charged to it; 0 of a rolling limit, which keeps no sums of clients
	Idle   int64 // at most so many lie idle there; see Reply
	Left   bool  // it does not count until it asks again
}
