// Package bench measures the library side by side with its peers. It is a
// module of its own, so that nobody who imports the library inherits them.
//
// A kind is a way to limit, a peer is one that is set up, a scenario says who is
// measured at what, and a driver has them take turns. TestPeers does all of it:
// very small in the ordinary tests, where it proves that everything works, and
// in full for
//
//	make bench              # tables and a chart in bench/results
//	make bench SIZE=quick   # a minute, to see whether a change is worth more
//	go test -run='^TestPeers$' -size=full -scenarios='^hot' -peers='reservoir|Rockset' # a part, in this directory
//
// BenchmarkPeers has the same scenarios for benchstat.
//
// The peers' own packages are used as published. What cannot be had is written
// here from its description: [Rockset], which was published as an article, and
// rueidislimiter, which the module proxy does not serve: its name is in brackets.
//
// Package fleet, below this one, models many processes that share a limit.
package bench
