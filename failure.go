package reservoir

import (
	"fmt"
	"math"

	"github.com/go-reservoir/reservoir/internal/key"
)

// Failure is what callers without stock get while the store is away: [FailClosed],
// [FailOpen] or [FailLocal]. Callers with stock notice nothing, because their tokens are
// charged already. The zero Failure is no policy; [New] returns [ErrOption] for it.
type Failure struct{ policy key.Policy }

// FailClosed, the default, returns a [*StoreError]: no decision was made.
func FailClosed() Failure { return Failure{key.Policy{Mode: key.FailClosed}} }

// FailOpen admits every request, so callers without stock have no limit during an outage
// of the store.
func FailOpen() Failure { return Failure{key.Policy{Mode: key.FailOpen}} }

// FailLocal lets each process admit at most share of the limit, 0 to 1, per window
// without the store: with 0.05, 20 processes together admit one limit, on top of what was
// charged before the outage. A share of less than one token admits nobody. That window is
// the store's, if its end is known from an earlier reply; otherwise it is the calendar's
// period, or begins with the first request and has the limit's length. It lasts until its
// end through any number of outages, and the key stays in memory that long, so keys past
// [WithMaxKeys] get [FailClosed].
//
// When the store is back, it charges what FailLocal and FailOpen have admitted in a window
// that it had named before, or in a period of the calendar, if that is still open; see
// [Stats].Owed. What they admit in any other window counts as Overdrawn at once.
func FailLocal(share float64) Failure { return Failure{key.Policy{Mode: key.FailLocal, Share: share}} }

// WithFailure sets what callers without stock get while the store is away: [FailOpen],
// [FailLocal] or, by default, [FailClosed]. A Wait that the policy does not admit lasts
// until the store is back or its context ends; but if the store rejects the call, which an
// operator must mend, the Wait returns the [*StoreError] at once. After a few failed calls
// in a row a circuit breaker opens, one per shard if the store has shards. While it is
// open, callers get the policy's answer at once, and a timer probes the shard by calls
// that charge nothing.
func WithFailure(f Failure) Option { return func(c *config) { c.failure = f } }

func (f Failure) validate() error {
	switch p := f.policy; {
	case p.Mode == key.NoPolicy:
		return fmt.Errorf("%w: an empty failure policy", ErrOption)
	case math.IsNaN(p.Share) || p.Share < 0 || p.Share > 1:
		return fmt.Errorf("%w: a local share of %v, want 0 to 1", ErrOption, p.Share)
	}
	return nil
}
