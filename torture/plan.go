package torture

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-reservoir/reservoir"
)

// scenario is a topology and what befalls it. It follows from the seed, but for when
// midnight is.
type scenario struct {
	Topology topology
	Loses    loss // of all its faults: one that takes more would hide whether another takes any
	Faults   []kind
	Seed     uint64
	Fleet    int           // processes
	Pace     float64       // share of the full rate of requests
	Timeout  time.Duration // of a fetch
	Span     time.Duration // of a fault, about
	Hang     time.Duration // of a server that is stopped
	Slots    int           // that are resharded
	Skew     int64         // a deliberate bug; see skewed
	Parts    int           // of the store; of a set-up that has more it is set when that is there
	Midnight int64         // when the calendar's first window ends, Unix seconds
}

var (
	// brief is for where many tests share a machine.
	brief = scenario{
		Parts: 1, Fleet: 2, Pace: 0.2, Slots: 60,
		Timeout: 400 * time.Millisecond, Span: 300 * time.Millisecond, Hang: 1200 * time.Millisecond,
	}
	// full has the library's default timeout.
	full = scenario{Parts: 1, Fleet: 4, Pace: 1, Timeout: 100 * time.Millisecond, Span: time.Second, Hang: 3 * time.Second, Slots: 3000}
)

// scenarios are all topologies, each with the faults that take as much from the store,
// and seeds that count up. cheapest leaves out the faults that a cheaper one has.
func scenarios(like scenario, seed uint64, cheapest bool) (list []scenario) {
	for _, like.Topology = range topologies {
		for like.Loses = range loss(losses) {
			like.Faults = nil
			for _, f := range faults {
				if i := slices.Index(f.on, like.Topology); f.loses == like.Loses && (i == 0 || i > 0 && !cheapest) {
					like.Faults = append(like.Faults, f.kind)
				}
			}
			if like.Faults != nil {
				like.Seed = seed + uint64(len(list))
				shuffle(like.Faults, like.Seed)
				list = append(list, like)
			}
		}
	}
	return list
}

// sample is every kind of fault once, where it is cheapest to have.
func sample(seed uint64) []scenario { return scenarios(brief, seed, true) }

// shortest is how many faults make it worth while to start servers, about.
const shortest = 8

// round is all scenarios, and the faults of each, in an order that the seed decides. Seeds
// of the next round begin where those of this one end.
func round(seed uint64) []scenario {
	list := scenarios(full, seed, false)
	shuffle(list, seed)
	for i := range list {
		sc := &list[i]
		sc.Faults = slices.Repeat(sc.Faults, max(shortest/len(sc.Faults), 1))
		shuffle(sc.Faults, sc.Seed)
	}
	return list
}

func shuffle[T any](list []T, seed uint64) {
	rand.New(rand.NewPCG(seed, 2)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}

// role is what a limit is there to show; see the package's comment.
type role int

const (
	tight role = iota
	ample
	fresh
	daily
	ledger
	stock
	open
	local
	roles = iota
)

const (
	shortWindow = time.Second
	tightLimit  = 1_000_000
	longLimit   = 4_000_000_000

	// localShare is what a process needs in four seconds, where there are four.
	localShare = 0.00005
)

// uses is how all processes together use each role's limit. A request asks for one to
// twice so many tokens as make up the demand.
var uses = [roles]struct {
	name    string
	window  time.Duration // 0: until midnight
	limit   int64
	demand  int64 // tokens a second
	rate    int64 // requests a second at full pace
	options []reservoir.Option
}{
	tight:  {"tight", shortWindow, tightLimit, 2_000_000, 1000, nil},
	ample:  {"ample", shortWindow, tightLimit, 400_000, 1000, nil},
	fresh:  {"fresh", shortWindow, tightLimit, 2_000_000, 500, []reservoir.Option{reservoir.WithLateOverruns()}},
	daily:  {"daily", 0, tightLimit, 2_000_000, 500, []reservoir.Option{reservoir.WithLateOverruns()}},
	ledger: {"ledger", time.Hour, longLimit, 200_000, 1000, nil},
	stock:  {"stock", time.Hour, longLimit, 200_000, 2000, nil},
	open:   {"open", time.Hour, longLimit, 200_000, 1000, []reservoir.Option{reservoir.WithFailure(reservoir.FailOpen)}},
	local:  {"local", time.Hour, longLimit, 200_000, 1000, []reservoir.Option{reservoir.WithFailure(reservoir.FailLocal(localShare))}},
}

func (r role) String() string { return uses[r].name }

// windowed reports whether the role's windows roll over while it runs.
func (r role) windowed() bool { return uses[r].window <= shortWindow }

// renewed reports whether the role's windows are reset while they are open.
func (r role) renewed() bool { return r == fresh || r == daily }

// settles reports whether the role's requests are settled: its windows outlast the run,
// and its batches are small.
func (r role) settles() bool { return r == ledger || r.fallsBack() }

// fallsBack reports whether the role's requests are admitted without the store, and
// charged when it is back.
func (r role) fallsBack() bool { return r == open || r == local }

// demand is how a role is used on one part of a store.
type demand struct {
	limit    reservoir.Limit
	tokens   int64 // a second
	requests int64 // a second
	batch    int64 // 0 = by the default policy
}

// demand shares a role's demand among the parts of the store. A small machine leaves room
// for fewer requests; tokens stay the same.
func (sc *scenario) demand(r role) demand {
	u, n := uses[r], int64(sc.Parts)
	d := demand{
		limit:  reservoir.Limit{Tokens: u.limit / n, Window: u.window},
		tokens: u.demand / n, requests: max(int64(float64(u.rate)*sc.Pace)/n, 1),
	}
	if r == daily { // in a zone whose midnight comes soon
		d.limit = reservoir.PerDay(u.limit/n, time.FixedZone("near", -int(sc.Midnight%(24*60*60))))
	}
	if r.settles() { // a call for every six requests
		d.batch = 6 * d.each()
	}
	return d
}

// each is the mean number of tokens of a request.
func (d demand) each() int64 { return max(d.tokens/d.requests, 1) }

// alone is what one process may admit without the store, by FailLocal.
func (d demand) alone() int64 { return int64(localShare * float64(d.limit.Tokens)) }

// beyond is what a process may hold beyond what it said when its last call had ended:
// what it has ordered since, and what its callers were just being told about. By
// default a hundredth of the limit may be stranded, and a batch lasts for five minutes.
func (d demand) beyond() int64 {
	if d.batch > 0 {
		return 2*d.batch + 2*callers*d.each()
	}
	return d.limit.Tokens/100 + 300*d.tokens
}
