package tune

import (
	"errors"
	"slices"
	"strconv"

	"github.com/go-reservoir/reservoir"
)

// Policy is a way to fetch tokens.
type Policy struct {
	Name string
	Kind Kind
	Size int64 // of a Fixed batch
}

// Kind is a family of policies.
type Kind string

// The kinds of policies that there are.
const (
	Direct   Kind = "direct"   // a store call for each request
	Fixed    Kind = "fixed"    // batches of one size
	Ladder   Kind = "ladder"   // Rockset's rule, between bounds
	Adaptive Kind = "adaptive" // the default of the library
)

// ErrPolicy is the fault of a name of a policy.
var ErrPolicy = errors.New("want direct, fixed (several sizes), a size, ladder, adaptive")

// Policies are those of the names, in their order, for a limit of tokens. The
// name fixed stands for a thousandth, a hundredth and a tenth of the limit, and a
// number for a Fixed of that size. What comes twice is left out.
func Policies(names []string, tokens int64) ([]Policy, error) {
	var list []Policy
	add := func(p Policy) {
		if !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	for _, name := range names {
		switch kind := Kind(name); kind {
		case Direct, Ladder, Adaptive:
			add(Policy{Name: name, Kind: kind})
		case Fixed:
			for _, part := range []int64{1000, 100, 10} {
				add(fixed(max(tokens/part, 1)))
			}
		default:
			n, err := strconv.ParseInt(name, 10, 64)
			if err != nil || n < 1 {
				return nil, ErrPolicy
			}
			add(fixed(n))
		}
	}
	return list, nil
}

func fixed(n int64) Policy {
	return Policy{Name: "fixed " + strconv.FormatInt(n, 10), Kind: Fixed, Size: n}
}

// options sets up a Limiter. Ladder has the bounds that "reservoir load" gives it.
func (p Policy) options(tokens int64) reservoir.Option {
	switch p.Kind {
	case Direct:
		return reservoir.WithDirect()
	case Fixed:
		return reservoir.WithBatch(reservoir.Fixed(p.Size))
	case Ladder:
		least := min(10, tokens)
		return reservoir.WithBatch(reservoir.Ladder(least, max(tokens/10, least)))
	}
	return reservoir.WithBatch(reservoir.Adaptive(1, 0))
}
