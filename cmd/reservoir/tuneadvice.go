package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

type advice struct {
	Policy string `json:"policy"`
	Reason string `json:"reason"`
}

// Bounds on the cost of a recommended policy.
const (
	mostNeedless = 0.01 // requests refused with tokens left, per admitted request
	mostStranded = 0.05 // of the limit, at the first refusal of a window
	mostCold     = 0.1  // the same if all refusals were in first windows, before demand is known
	leastSaving  = 0.2  // of direct calls, that the default must save
	clearly      = 2    // times fewer calls is clearly better
)

// advise recommends the default, or direct calls if the default wastes much of the limit
// or saves little. It recommends another policy only if that wastes little and is clearly
// better. all must not be empty.
func advise(all []sim.Outcome) advice {
	sound := slices.DeleteFunc(slices.Clone(all), func(o sim.Outcome) bool { return faults(o) != "" })
	if len(sound) == 0 {
		best := slices.MinFunc(all, func(a, b sim.Outcome) int { return cmp.Compare(waste(a), waste(b)) })
		return advice{best.Policy, fmt.Sprintf("None of the policies is without fault here. This one wastes least: it %s. %s", faults(best), cost(best))}
	}
	best := slices.MinFunc(sound, func(a, b sim.Outcome) int { return cmp.Compare(a.StoreCalls, b.StoreCalls) })
	chosen, why := usual(sound, best)
	switch {
	case chosen.Policy == "adaptive" && !slices.ContainsFunc(all, func(o sim.Outcome) bool { return o.Refused > 0 }):
		why = "It is the default, and gives back what it does not use. Nobody was refused, so what other batches strand could not be seen here."
	case clearly*best.StoreCalls < chosen.StoreCalls && best.Waited <= chosen.Waited:
		chosen, why = best, fmt.Sprintf("It wastes little of the limit and makes less than half the store calls of %s.", chosen.Policy)
	}
	why += " " + cost(chosen)
	for _, o := range all {
		switch f := faults(o); {
		case f != "" && o.StoreCalls < chosen.StoreCalls:
			why += fmt.Sprintf(" %s makes fewer calls, but it %s.", o.Policy, f)
		case f != "" && o.Policy == "adaptive":
			why += fmt.Sprintf(" %s, the default, %s.", o.Policy, f)
		}
	}
	return advice{chosen.Policy, why}
}

// usual returns the policy with which others are compared, and the reason to keep it.
func usual(sound []sim.Outcome, best sim.Outcome) (o sim.Outcome, why string) {
	i := slices.IndexFunc(sound, func(o sim.Outcome) bool { return o.Policy == "adaptive" })
	j := slices.IndexFunc(sound, func(o sim.Outcome) bool { return o.Policy == "direct" })
	switch {
	case i >= 0 && (j < 0 || float64(sound[i].StoreCalls) <= (1-leastSaving)*float64(sound[j].StoreCalls)):
		return sound[i], "It is the default: its batches follow demand, so that no size needs to be kept in step with limits and traffic. " +
			"No other policy that wastes little of the limit makes less than half its store calls."
	case j >= 0:
		return sound[j], "Batches that waste little of the limit save next to nothing here: it is too small for the number of processes, " +
			"keys are called for too seldom, or most requests are refused from memory. Direct calls are exact."
	}
	return best, "It makes the fewest store calls of the policies that waste little of the limit."
}

func cost(o sim.Outcome) string {
	s := fmt.Sprintf("It makes %s for %s (%s); %s of the requests wait for the store", count(int(o.StoreCalls), "store call", "s"),
		count(int(o.Requests), "request", "s"), table.Percent(o.CallsPerRequest), table.Percent(o.WaitedShare))
	if o.StrandedWindows > 0 {
		s += fmt.Sprintf("; when the first is refused, %s of the limit lies unspent in processes", table.Percent(o.Stranded))
	}
	return s + "."
}

// faults describes what speaks against a policy, or is empty.
func faults(o sim.Outcome) string {
	var f []string
	if float64(o.Needless) > mostNeedless*float64(o.Admitted) {
		f = append(f, fmt.Sprintf("refuses %s requests that the limit had tokens for", table.Commas(o.Needless)))
	}
	if o.Stranded > mostStranded && !o.Cold || o.Stranded > mostCold {
		f = append(f, fmt.Sprintf("strands %s of the limit", table.Percent(o.Stranded)))
	}
	return strings.Join(f, " and ")
}

// waste ranks policies if all of them have faults.
func waste(o sim.Outcome) int64 {
	return o.Needless + int64(o.Stranded*float64(o.Admitted))
}
