package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// advice is a policy and why it is the one to choose.
type advice struct {
	Policy string `json:"policy"`
	Reason string `json:"reason"`
}

// What a policy may cost and still be recommended.
const (
	mostNeedless = 0.01 // requests refused with tokens left, of those admitted
	mostStranded = 0.02 // of the limit, at the first refusal of a window
	mostCold     = 0.06 // the same where only first windows were seen, when no demand is known
	mostErrors   = 0.01 // of the requests
	leastSaving  = 0.2  // of the requests' calls, for batches to be worth it
	nearly       = 1.25 // times as few calls is as good as the fewest
)

// advise recommends the policy with the fewest store calls among those that waste
// little of the limit. Adaptive wins where it is nearly as good, or makes half as
// many requests wait for at most twice the calls: it needs no size to be kept in
// step with limits and demand. There is at least one outcome.
func advise(all []sim.Outcome) advice {
	sound := slices.DeleteFunc(slices.Clone(all), func(o sim.Outcome) bool { return len(faults(o)) > 0 })
	if len(sound) == 0 {
		best := slices.MinFunc(all, func(a, b sim.Outcome) int { return int(waste(a) - waste(b)) })
		return advice{best.Policy, fmt.Sprintf("None of the policies is without fault here. This one wastes least: it %s. %s", list(faults(best)), cost(best))}
	}
	best := slices.MinFunc(sound, func(a, b sim.Outcome) int { return int(a.StoreCalls - b.StoreCalls) })
	i := slices.IndexFunc(sound, func(o sim.Outcome) bool { return o.Kind == sim.Direct })
	if i >= 0 && !saves(best) {
		return advice{sound[i].Policy, "Batches save next to nothing here: limits are too small for the number of processes, " +
			"keys are called for too seldom, or most requests are refused from memory. Direct is exact. " + cost(sound[i])}
	}
	chosen, why := best, "It makes the fewest store calls of the policies that waste little of the limit."
	if i := slices.IndexFunc(sound, func(o sim.Outcome) bool { return o.Kind == sim.Adaptive }); i >= 0 {
		if reason := prefer(sound[i], best, refusals(all)); reason != "" {
			chosen, why = sound[i], reason
		}
	}
	return advice{chosen.Policy, why + " " + cost(chosen) + rejected(all, chosen)}
}

func saves(o sim.Outcome) bool { return o.CallsPerRequest <= 1-leastSaving }

// refusals reports whether any policy refused anything.
func refusals(all []sim.Outcome) bool {
	return slices.ContainsFunc(all, func(o sim.Outcome) bool { return o.Refused > 0 })
}

// prefer is why adaptive is the better choice than the policy with the fewest
// calls, or nothing.
func prefer(adaptive, best sim.Outcome, refusals bool) string {
	const follows = "its batches follow demand, so that no size needs to be kept in step with limits and traffic."
	switch calls := float64(adaptive.StoreCalls); {
	case adaptive.Policy == best.Policy:
		return "It makes the fewest store calls of the policies that waste little of the limit, and " + follows
	case !refusals && saves(adaptive):
		return "Nobody was refused, so what a large batch strands could not be seen here. Of the policies, this is the one that gives back what it does not use, and " + follows
	case calls <= nearly*float64(best.StoreCalls):
		return fmt.Sprintf("It makes nearly as few store calls as %s, the fewest, and %s", best.Policy, follows)
	case calls <= 2*float64(best.StoreCalls) && 2*adaptive.Waited <= best.Waited:
		return fmt.Sprintf("It makes up to twice the store calls of %s, but far fewer requests wait for them, and %s", best.Policy, follows)
	}
	return ""
}

// cost is what a policy does, in words.
func cost(o sim.Outcome) string {
	s := fmt.Sprintf("It makes %s store calls for %s requests (%s); %s of the requests wait for the store", table.Commas(o.StoreCalls),
		table.Commas(o.Requests), percent(o.CallsPerRequest), percent(o.WaitedShare))
	if o.StrandedWindows > 0 {
		s += fmt.Sprintf("; when the first is refused, %s of the limit lies unspent in processes", percent(o.Stranded))
	}
	return s + "."
}

// rejected tells of the policies that would have made fewer calls.
func rejected(all []sim.Outcome, chosen sim.Outcome) string {
	var b strings.Builder
	for _, o := range all {
		if f := faults(o); len(f) > 0 && o.StoreCalls < chosen.StoreCalls {
			fmt.Fprintf(&b, " %s makes fewer calls, but it %s.", o.Policy, list(f))
		}
	}
	return b.String()
}

// faults are what speaks against a policy.
func faults(o sim.Outcome) (f []string) {
	if o.Over > 0 {
		f = append(f, "goes over the limit")
	}
	if float64(o.Needless) > mostNeedless*float64(o.Admitted) {
		f = append(f, fmt.Sprintf("refuses %s requests that the limit had tokens for", table.Commas(o.Needless)))
	}
	if o.Stranded > mostStranded && !o.Cold || o.Stranded > mostCold {
		f = append(f, fmt.Sprintf("strands %s of the limit", percent(o.Stranded)))
	}
	if float64(o.Errors) > mostErrors*float64(o.Requests) {
		f = append(f, fmt.Sprintf("fails %s requests", table.Commas(o.Errors)))
	}
	return f
}

// waste orders policies none of which is sound.
func waste(o sim.Outcome) int64 {
	return o.Over + o.Errors + o.Needless + int64(o.Stranded*float64(o.Admitted))
}

func list(parts []string) string { return strings.Join(parts, " and ") }
