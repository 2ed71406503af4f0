package reservoir

import (
	"fmt"

	"github.com/go-reservoir/reservoir/internal/demand"
)

// Sizing decides how many tokens a key fetches at a time: [Fixed], [Ladder] or
// [Adaptive]. New returns [ErrOption] for the zero Sizing. Every Sizing orders a batch
// before the stock is gone, so that nobody waits for it. Up to four batches are held for
// requests that are larger than a batch; a request for more waits for a call of its own.
type Sizing struct{ policy demand.Policy }

// Fixed fetches n tokens at a time, at least 1, and more only if callers wait for more. It
// suits a known and even demand, with an n above what is used during one fetch. Once another
// process has run short in a window, batches are called back, and callers get no more than
// they wait for. Fixed(1) holds nothing, so each request waits for a call.
func Fixed(n int64) Sizing { return Sizing{demand.Policy{Kind: demand.Fixed, Min: n, Max: n}} }

// Ladder climbs from min towards max: half as much again when a batch was used up, half
// as much when most of one was wasted. It is Rockset's published rule ("How We Improved
// the Concurrency and Scalability of Our Redis Rate Limiting System", 2021), kept for
// comparison. min is at least 1, and max at least min.
func Ladder(min, max int64) Sizing {
	return Sizing{demand.Policy{Kind: demand.Ladder, Min: min, Max: max}}
}

// Adaptive, the default, fetches what the key is expected to use while the limit lasts,
// and lets the store taper batches as the limit runs out. min and max bound one batch in
// tokens: min is at least 1, and max at least min, or 0 for no bound.
func Adaptive(min, max int64) Sizing {
	return Sizing{demand.Policy{Kind: demand.Adaptive, Min: min, Max: max}}
}

func (s Sizing) validate() error {
	switch p := s.policy; {
	case p.Min < 1:
		return fmt.Errorf("%w: a batch of %d tokens, want at least 1", ErrOption, p.Min)
	case p.Max != 0 && p.Max < p.Min:
		return fmt.Errorf("%w: a largest batch of %d below the smallest of %d", ErrOption, p.Max, p.Min)
	case p.Max == 0 && !p.Guided():
		return fmt.Errorf("%w: a ladder needs a largest batch", ErrOption)
	}
	return nil
}
