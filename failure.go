package reservoir

import (
	"fmt"
	"math"

	"github.com/go-reservoir/reservoir/internal/key"
)

// WithFailOpen admits requests without stock while the store is away, so they have no limit then. By
// default they get an error. What a failure policy admits counts as [Stats].Overdrawn at once, and is never
// charged. The package comment says what else the policies have in common.
func WithFailOpen() Option {
	return func(c *config) { c.failure = key.Policy{Mode: key.FailOpen} }
}

// WithFailLocal lets each process admit at most share of the limit, 0 to 1, per window while the
// store is away: with 0.05, 20 processes together admit one limit, on top of what the store
// charges. A share of less than one token admits nobody. That window is the store's, if
// its end is known from an earlier reply; otherwise it is the calendar's period, or begins with the
// first request and has the limit's length. A window that the process began itself may reach into two of
// the store's, so in one of those a process admits twice its share at most. It lasts until its
// end through any number of outages, and the key stays in memory that long, so keys past
// [WithMaxKeys] get an error.
func WithFailLocal(share float64) Option {
	return func(c *config) { c.failure = key.Policy{Mode: key.FailLocal, Share: share} }
}

func validateFailure(p key.Policy) error {
	if math.IsNaN(p.Share) || p.Share < 0 || p.Share > 1 {
		return fmt.Errorf("%w: a local share of %v, want 0 to 1", ErrOption, p.Share)
	}
	return nil
}
