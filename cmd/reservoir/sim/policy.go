package sim

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-reservoir/reservoir"
)

// Policy is a way to fetch tokens.
type Policy struct {
	Name   string
	Kind   Kind
	Option reservoir.Option
}

// Kind is a family of policies.
type Kind string

// The kinds of policies that there are.
const (
	Direct    Kind = "direct"    // a store call for each request
	Fixed     Kind = "fixed"     // batches of one size
	Ladder    Kind = "ladder"    // Rockset's rule, between bounds
	Adaptive  Kind = "adaptive"  // the default of the library
	Bounded   Kind = "bounded"   // the same between bounds
	Stranding Kind = "stranding" // the same with another WithStranding
)

// ErrPolicy is the fault of a name of a policy.
var ErrPolicy = errors.New("want direct, fixed (several sizes), a size, ladder, adaptive, adaptive:min-max, stranding:share")

// Policies are those of the names, in their order, for a limit of tokens. The
// name fixed stands for a thousandth, a hundredth and a tenth of the limit, and a
// number for a Fixed of that size. What comes twice is left out.
func Policies(names []string, tokens int64) (list []Policy, err error) {
	for _, name := range names {
		some := []string{name}
		if Kind(name) == Fixed {
			some = nil
			for _, part := range []int64{1000, 100, 10} {
				some = append(some, fmt.Sprint(max(tokens/part, 1)))
			}
		}
		for _, name := range some {
			p, err := parsePolicy(name, tokens)
			if err != nil {
				return nil, err
			}
			if !slices.ContainsFunc(list, func(o Policy) bool { return o.Name == p.Name }) {
				list = append(list, p)
			}
		}
	}
	return list, nil
}

// parsePolicy reads one: direct, ladder, adaptive, adaptive:1-100 (0 is no bound),
// stranding:0.05, or a size.
func parsePolicy(name string, tokens int64) (p Policy, err error) {
	kind, figures, some := strings.Cut(name, ":")
	low, high, bounds := strings.Cut(figures, "-")
	switch {
	case Kind(name) == Direct:
		return Policy{name, Direct, reservoir.WithDirect()}, nil
	case Kind(name) == Ladder:
		return Policy{name, Ladder, reservoir.WithBatch(LadderOf(tokens))}, nil
	case Kind(name) == Adaptive:
		return Policy{name, Adaptive, reservoir.WithBatch(reservoir.Adaptive(1, 0))}, nil
	case Kind(kind) == Adaptive && bounds:
		least, err := strconv.ParseInt(low, 10, 64)
		most, err2 := strconv.ParseInt(high, 10, 64)
		if err != nil || err2 != nil || least < 1 || most != 0 && most < least {
			return p, ErrPolicy
		}
		return Policy{"adaptive " + figures, Bounded, reservoir.WithBatch(reservoir.Adaptive(least, most))}, nil
	case Kind(kind) == Stranding && some:
		share, err := strconv.ParseFloat(figures, 64)
		if !(share >= 0 && share <= 1) || err != nil {
			return p, ErrPolicy
		}
		return Policy{"stranding " + figures, Stranding, reservoir.WithStranding(share)}, nil
	}
	n, err := strconv.ParseInt(name, 10, 64)
	if err != nil || n < 1 {
		return p, ErrPolicy
	}
	return Policy{"fixed " + name, Fixed, reservoir.WithBatch(reservoir.Fixed(n))}, nil
}

// LadderOf is Rockset's rule from 10 tokens to a tenth of the limit.
func LadderOf(tokens int64) reservoir.Sizing {
	least := min(10, tokens)
	return reservoir.Ladder(least, max(tokens/10, least))
}
