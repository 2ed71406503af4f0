package backend

import (
	"context"
	"time"
)

// Inspector is what a store may offer to operators besides Store: a look at all
// that it holds for one key. It is no part of any decision and may cost more
// than a Check.
type Inspector interface {
	Inspect(ctx context.Context, key string) (Contents, error)
}

// Contents is what a store holds for a key; the zero Contents is a key without
// an open window.
type Contents struct {
	Window  Window
	Left    time.Duration
	Used    int64     // tokens charged, ledger and direct calls together
	Clients []Account // of the open window, by name
}

// Account is a client's ledger entry, cumulative in the window.
type Account struct {
	Client   string
	Granted  int64
	Returned int64
}
