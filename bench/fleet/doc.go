// Package fleet is a model of many processes that share one limit.
//
// Every process is a real reservoir.Limiter. Package sim, which "reservoir tune" runs
// too, makes their requests, here on the virtual clock of testing/synctest, over one
// memstore and a network of 1 ms there and back. Requests for one token each come at random, in one of several shapes of
// demand, and who is refused does not come again. Demand and network are
// modelled; everything else is the library as it is.
//
// make fleet simulates all rows of the table under all rules. While changing the
// library, simulate those that matter:
//
//	go test -tags=fleet -run=TestFleet -fleet=bars -rules=adaptive
//
// # What is measured
//
// A row is some windows from the very first, which is cold. Requests count to
// the window that their Result names, so that the table rests on what callers
// were told; a run whose limiters count differently fails. Stranded is what all
// processes hold, by the store's ledger, when the first refusal of a window is handed to
// its caller, without grants that are still on their way. Waited is the requests whose
// Source is on the network, whether they were admitted or not.
//
// # The same seed, the same table
//
// Arrivals and library draw from generators with a seed, a run has one thread,
// and what happens to one process shares no instant with what happens to another
// (see lane). All rules meet the same arrivals.
package fleet
