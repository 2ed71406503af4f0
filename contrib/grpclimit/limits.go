package grpclimit

import (
	"context"
	"slices"

	"github.com/go-reservoir/reservoir"
)

// CostFunc returns how many tokens a call costs. A result below one means no cost. A
// CostFunc must be safe for concurrent use.
type CostFunc func(ctx context.Context, c Call) int64

// limits decides calls, by a Group with its keys and costs.
type limits struct {
	limiter *reservoir.Limiter // the only one of group, or nil
	group   *reservoir.Group
	keys    []KeyFunc
	costs   []CostFunc // one for each limit, or one for all, or none for a cost of one token
}

// choose panics if the fields do not fit together, because that is a fault of the program.
func choose(l *reservoir.Limiter, g *reservoir.Group, key KeyFunc, keys []KeyFunc, cost CostFunc, costs []CostFunc) limits {
	switch {
	case l != nil && g == nil && keys == nil && costs == nil:
		g, keys = reservoir.NewGroup(l), []KeyFunc{key}
	case l != nil || g == nil || key != nil || cost != nil && costs != nil || !fits(g, len(keys)):
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

// fits reports whether g has so many limits. A request that costs nothing makes no call.
func fits(g *reservoir.Group, limits int) bool {
	_, err := g.AllowEach(context.Background(), make([]int64, limits), make([]string, limits)...)
	return err == nil
}

// of returns the names that a call is charged to and what it costs, for each limit. There
// are no costs if the call is skipped or free.
func (l *limits) of(ctx context.Context, c Call, skip func(context.Context, Call) bool) (
	names []string, costs []int64, err error,
) {
	if skip != nil && skip(ctx, c) {
		return nil, nil, nil
	}
	names, costs = make([]string, len(l.keys)), make([]int64, len(l.keys))
	cost := int64(1)
	for i, key := range l.keys {
		if names[i], err = key(ctx, c); err != nil {
			return nil, nil, err
		}
		if i < len(l.costs) {
			cost = max(l.costs[i](ctx, c), 0)
		}
		costs[i] = cost
	}
	if slices.Max(costs) == 0 {
		costs = nil
	}
	return names, costs, nil
}

// wait lets calls of a Limiter wait in line; a Group would let some pass before others.
func (l *limits) wait(ctx context.Context, names []string, costs []int64) (err error) {
	if l.limiter != nil {
		_, err = l.limiter.WaitN(ctx, names[0], costs[0])
	} else {
		_, err = l.group.WaitEach(ctx, costs, names...)
	}
	return failure(err)
}
