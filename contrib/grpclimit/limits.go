package grpclimit

import (
	"context"
	"slices"

	"github.com/go-reservoir/reservoir"
)

// CostFunc returns how many tokens a call costs. A result below one means no cost. A
// CostFunc must be safe for concurrent use.
type CostFunc func(ctx context.Context, c Call) int64

// limits decides calls, by a Limiter or a Group with its keys and costs.
type limits struct {
	limiter *reservoir.Limiter // nil if a group decides
	group   *reservoir.Group
	keys    []KeyFunc
	costs   []CostFunc // one for each limit, or one for all, or none for a cost of one token
}

// choose panics if the fields do not fit together, because that is a fault of the program.
func choose(l *reservoir.Limiter, g *reservoir.Group, key KeyFunc, keys []KeyFunc, cost CostFunc, costs []CostFunc) limits {
	switch {
	case l != nil && g == nil && keys == nil && costs == nil:
		keys = []KeyFunc{key}
	case l == nil && g != nil && key == nil && (cost == nil || costs == nil) && len(keys) != 0 && len(keys) == g.Len():
	default:
		panic("grpclimit: either a Limiter with its Key is needed, or a Group with as many Keys, and Cost or Costs")
	}
	if cost != nil {
		costs = []CostFunc{cost}
	}
	if len(costs) > 1 && len(costs) != len(keys) {
		panic("grpclimit: a Group needs a cost for each of its limits, or one for all")
	}
	if slices.ContainsFunc(keys, func(k KeyFunc) bool { return k == nil }) || slices.ContainsFunc(costs, func(c CostFunc) bool { return c == nil }) {
		panic("grpclimit: a key or a cost is nil")
	}
	return limits{l, g, keys, costs}
}

// name returns the name that a call is charged to at each limit.
func (l *limits) name(ctx context.Context, c Call) ([]string, error) {
	names := make([]string, len(l.keys))
	for i, key := range l.keys {
		var err error
		if names[i], err = key(ctx, c); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// price returns the cost of a call at each limit, or nil if all costs are zero.
func (l *limits) price(ctx context.Context, c Call) []int64 {
	n, prices := int64(1), make([]int64, len(l.keys))
	for i := range prices {
		if i < len(l.costs) {
			n = max(l.costs[i](ctx, c), 0)
		}
		prices[i] = n
	}
	if slices.Max(prices) <= 0 {
		return nil
	}
	return prices
}

// each returns a price of n tokens at each limit.
func (l *limits) each(n int64) []int64 { return slices.Repeat([]int64{n}, len(l.keys)) }

func (l *limits) allow(ctx context.Context, names []string, prices []int64) (r reservoir.GroupResult, err error) {
	if l.group != nil {
		return l.group.AllowEach(ctx, prices, names...)
	}
	r.Result, err = l.limiter.AllowN(ctx, names[0], prices[0])
	return r, err
}

func (l *limits) wait(ctx context.Context, names []string, prices []int64) (err error) {
	if l.group != nil {
		_, err = l.group.WaitEach(ctx, prices, names...)
	} else {
		_, err = l.limiter.WaitN(ctx, names[0], prices[0])
	}
	return failure(err)
}

func (l *limits) refund(ctx context.Context, names []string, r reservoir.GroupResult) error {
	if l.group != nil {
		return l.group.Refund(ctx, r, names...)
	}
	return l.limiter.Refund(ctx, names[0], r.Result)
}
