package main

import (
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

// Bounds on the cost of the default.
const (
	mostNeedless = 0.01 // requests refused with tokens left, per admitted request
	mostStranded = 0.05 // of the limit, at the first refusal of a window
	mostCold     = 0.1  // the same if all refusals were in first windows, before demand is known
	leastSaving  = 0.2  // of direct calls, that the default must save
)

// advise recommends the default, or direct calls if the default wastes much of the limit
// or saves little. If one of these was not replayed, it recommends the other, or the first policy of all.
func advise(all []sim.Outcome) advice {
	find := func(name string) *sim.Outcome {
		if i := slices.IndexFunc(all, func(o sim.Outcome) bool { return o.Policy == name }); i >= 0 {
			return &all[i]
		}
		return nil
	}
	usual, direct := find("adaptive"), find("direct")
	chosen, why := usual, "It is the default: its batches follow demand, so that no size needs to be kept in step with limits and traffic."
	switch {
	case usual == nil && direct == nil:
		chosen, why = &all[0], "Neither the default nor direct calls were replayed."
	case usual == nil:
		chosen, why = direct, "Direct calls are exact."
	case direct == nil:
		if f := faults(usual); f != "" { // nothing better was replayed
			why = fmt.Sprintf("It is the default, though it %s: replay direct calls, too.", f)
		}
	case faults(usual) != "":
		chosen, why = direct, fmt.Sprintf("The default %s. Direct calls are exact.", faults(usual))
	case float64(usual.StoreCalls) > (1-leastSaving)*float64(direct.StoreCalls):
		chosen, why = direct, "Batches save next to nothing here: the limit is too small for the number of processes, "+
			"keys are called for too seldom, or most requests are refused from memory. Direct calls are exact."
	}
	why += fmt.Sprintf(" It makes %s for %s (%s); %s of the requests wait for the store", count(int(chosen.StoreCalls), "store call", "s"),
		count(int(chosen.Requests), "request", "s"), table.Percent(chosen.CallsPerRequest), table.Percent(chosen.WaitedShare))
	if chosen.StrandedWindows > 0 {
		why += fmt.Sprintf("; when the first is refused, %s of the limit is unspent", table.Percent(chosen.Stranded))
	}
	return advice{chosen.Policy, why + "."}
}

// faults describes what speaks against a policy, or is empty.
func faults(o *sim.Outcome) string {
	var f []string
	if float64(o.Needless) > mostNeedless*float64(o.Admitted) {
		f = append(f, fmt.Sprintf("refuses %s requests that the limit had tokens for", table.Commas(o.Needless)))
	}
	if o.Stranded > mostStranded && !o.Cold || o.Stranded > mostCold {
		f = append(f, fmt.Sprintf("strands %s of the limit", table.Percent(o.Stranded)))
	}
	return strings.Join(f, " and ")
}
