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
	add := func(name string, kind Kind, o reservoir.Option) {
		if !slices.ContainsFunc(list, func(p Policy) bool { return p.Name == name }) {
			list = append(list, Policy{name, kind, o})
		}
	}
	fixed := func(n int64) {
		add("fixed "+strconv.FormatInt(n, 10), Fixed, reservoir.WithBatch(reservoir.Fixed(n)))
	}
	for _, name := range names {
		switch kind := Kind(name); kind {
		case Direct:
			add(name, kind, reservoir.WithDirect())
		case Ladder:
			add(name, kind, reservoir.WithBatch(LadderOf(tokens)))
		case Adaptive:
			add(name, kind, reservoir.WithBatch(reservoir.Adaptive(1, 0)))
		case Fixed:
			for _, part := range []int64{1000, 100, 10} {
				fixed(max(tokens/part, 1))
			}
		default:
			p, err := parsePolicy(name)
			if err != nil {
				return nil, err
			}
			add(p.Name, p.Kind, p.Option)
		}
	}
	return list, nil
}

// parsePolicy reads one with figures: 50, adaptive:1-100 (0 is no bound), stranding:0.05.
func parsePolicy(name string) (p Policy, err error) {
	kind, figures, _ := strings.Cut(name, ":")
	low, high, bounds := strings.Cut(figures, "-")
	switch {
	case Kind(kind) == Adaptive && bounds:
		least, err := strconv.ParseInt(low, 10, 64)
		most, err2 := strconv.ParseInt(high, 10, 64)
		if err != nil || err2 != nil || least < 1 || most != 0 && most < least {
			return p, ErrPolicy
		}
		return Policy{fmt.Sprintf("adaptive %d-%d", least, most), Bounded, reservoir.WithBatch(reservoir.Adaptive(least, most))}, nil
	case Kind(kind) == Stranding:
		share, err := strconv.ParseFloat(figures, 64)
		if !(share >= 0 && share <= 1) || err != nil {
			return p, ErrPolicy
		}
		return Policy{fmt.Sprint("stranding ", share), Stranding, reservoir.WithStranding(share)}, nil
	}
	n, err := strconv.ParseInt(name, 10, 64)
	if err != nil || n < 1 {
		return p, ErrPolicy
	}
	return Policy{fmt.Sprint("fixed ", n), Fixed, reservoir.WithBatch(reservoir.Fixed(n))}, nil
}

// LadderOf is Rockset's rule from 10 tokens to a tenth of the limit.
func LadderOf(tokens int64) reservoir.Sizing {
	least := min(10, tokens)
	return reservoir.Ladder(least, max(tokens/10, least))
}
