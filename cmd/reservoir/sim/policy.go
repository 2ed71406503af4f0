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
	Ladder    Kind = "ladder"    // Rockset's rule, from 10 tokens to a tenth of the limit
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
	for i := 0; i < len(names); i++ {
		if Kind(names[i]) == Fixed {
			parts := []string{fmt.Sprint(max(tokens/1000, 1)), fmt.Sprint(max(tokens/100, 1)), fmt.Sprint(max(tokens/10, 1))}
			names = slices.Replace(slices.Clone(names), i, i+1, parts...)
		}
		p, err := parsePolicy(names[i], tokens)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(list, func(o Policy) bool { return o.Name == p.Name }) {
			list = append(list, p)
		}
	}
	return list, nil
}

// parsePolicy reads one; 0 is no bound of adaptive:5-0.
func parsePolicy(name string, tokens int64) (p Policy, err error) {
	kind, figures, figured := strings.Cut(name, ":")
	low, high, bounds := strings.Cut(figures, "-")
	least, err := strconv.ParseInt(low, 10, 64)
	most, err2 := strconv.ParseInt(high, 10, 64)
	share, notShare := strconv.ParseFloat(figures, 64)
	size, notSize := strconv.ParseInt(name, 10, 64)
	switch {
	case name == "direct":
		return Policy{name, Direct, reservoir.WithDirect()}, nil
	case name == "ladder":
		return Policy{name, Ladder, reservoir.WithBatch(reservoir.Ladder(min(10, tokens), max(tokens/10, min(10, tokens))))}, nil
	case name == "adaptive":
		return Policy{name, Adaptive, reservoir.WithBatch(reservoir.Adaptive(1, 0))}, nil
	case kind == "adaptive" && bounds && err == nil && err2 == nil && least >= 1 && (most == 0 || most >= least):
		return Policy{"adaptive " + figures, Bounded, reservoir.WithBatch(reservoir.Adaptive(least, most))}, nil
	case kind == "stranding" && figured && notShare == nil && share >= 0 && share <= 1:
		return Policy{"stranding " + figures, Stranding, reservoir.WithStranding(share)}, nil
	case notSize == nil && size >= 1:
		return Policy{"fixed " + name, Fixed, reservoir.WithBatch(reservoir.Fixed(size))}, nil
	}
	return p, ErrPolicy
}
