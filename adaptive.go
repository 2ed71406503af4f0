package reservoir

import (
	"fmt"

	"github.com/go-reservoir/reservoir/internal/demand"
)

// WithBatch bounds the tokens that a key fetches at a time. By default, WithBatch(1, 0), a key
// fetches what it is expected to use while the limit lasts, and the store tapers batches as the limit
// runs out. min is at least 1, and max at least min, or 0 for no bound. A larger min means fewer
// store calls, until tokens have to be called back because another process runs short. A max bounds
// how much one call charges, but a key may hold several batches.
//
// However batches are sized, a key orders one before its stock is gone, so that nobody waits for it.
// Up to four are held for requests that are larger than a batch; a request for more waits for
// a call of its own.
func WithBatch(min, max int64) Option {
	return func(c *config) { c.sizing = demand.Policy{Kind: demand.Adaptive, Min: min, Max: max} }
}

// WithFixedBatch fetches n tokens at a time, at least 1, and more only if callers wait for more. It
// suits a known and even demand, with an n above what is used during one call. Once another
// process has run short in a window, batches are called back, and callers get no more than they
// wait for. WithFixedBatch(1) holds nothing, so each request waits for a call.
func WithFixedBatch(n int64) Option {
	return func(c *config) { c.sizing = demand.Policy{Kind: demand.Fixed, Min: n, Max: n} }
}

// WithLadder sizes batches by multiplicative increase and decrease: half as much again when a batch
// was used up, half as much when most of one was wasted, between min and max. It is Rockset's rule
// ("How We Improved the Concurrency and Scalability of Our Redis Rate Limiting System", 2021), for
// services that move from it and for measuring what [WithBatch] saves. It looks at this process' last
// batch only, neither at the limit nor at other processes. min is at least 1, and max at least min.
func WithLadder(min, max int64) Option {
	return func(c *config) { c.sizing = demand.Policy{Kind: demand.Ladder, Min: min, Max: max} }
}

func validateSizing(p demand.Policy) error {
	switch {
	case p.Min < 1:
		return fmt.Errorf("%w: a batch of %d tokens, want at least 1", ErrOption, p.Min)
	case p.Max != 0 && p.Max < p.Min:
		return fmt.Errorf("%w: a largest batch of %d below the smallest of %d", ErrOption, p.Max, p.Min)
	case p.Max == 0 && p.Kind != demand.Adaptive:
		return fmt.Errorf("%w: a ladder needs a largest batch", ErrOption)
	}
	return nil
}
