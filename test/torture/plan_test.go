package torture

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-reservoir/reservoir"
)

// scenario is a topology and the faults that hit it. The seed decides everything except
// what the set-up adds. Processes get it in their environment.
type scenario struct {
	Topology topology
	Loses    loss // of all its faults, because a larger loss would hide a smaller one
	Faults   []kind
	Seed     uint64
	Fleet    int           // processes
	Pace     float64       // share of the full rate of requests
	Timeout  time.Duration // of a fetch
	Span     time.Duration // of a fault, about
	Hang     time.Duration // of a stopped server
	Slots    int           // to reshard
	Skew     int64         // a deliberate bug; see skewed
	Parts    int           // of the store; a set-up with more than one sets it

	Midnight int64             // when the calendar's first window ends, Unix seconds
	Addrs    []string          // of the server; of the shards; of the cluster's nodes
	Via      map[string]string // the proxy before each
	Keys     [roles][]string   // by part
}

var (
	// brief is for machines that run many tests at once.
	brief = scenario{
		Parts: 1, Fleet: 2, Pace: 0.2, Slots: 60,
		Timeout: 400 * time.Millisecond, Span: 300 * time.Millisecond, Hang: 1200 * time.Millisecond,
	}
	// full has the library's default timeout.
	full = scenario{Parts: 1, Fleet: 4, Pace: 1, Timeout: 100 * time.Millisecond, Span: time.Second, Hang: 3 * time.Second, Slots: 3000}
)

// scenarios returns a scenario for each topology and loss, with consecutive seeds, in an
// order that the seed decides. If cheapest is set, a fault occurs once, where it is cheapest.
func scenarios(like scenario, seed uint64, cheapest bool) (list []scenario) {
	for _, like.Topology = range topologies {
		for like.Loses = range loss(losses) {
			like.Faults = nil
			for _, f := range faults {
				if i := slices.Index(f.on, like.Topology); f.loses == like.Loses && (i == 0 || i > 0 && !cheapest) {
					like.Faults = append(like.Faults, f.kind)
				}
			}
			if n := len(like.Faults); n > 0 {
				if !cheapest { // servers are started for eight faults or more
					like.Faults = slices.Repeat(like.Faults, max(8/n, 1))
				}
				like.Seed = seed + uint64(len(list))
				shuffle(like.Faults, like.Seed)
				list = append(list, like)
			}
		}
	}
	shuffle(list, seed)
	return list
}

func shuffle[T any](list []T, seed uint64) {
	rand.New(rand.NewPCG(seed, 2)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}

// role is the purpose of a limit; see the package's comment.
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
	rolling
	roles = iota
)

const (
	shortWindow = time.Second
	tightLimit  = 1_000_000
	localShare  = 0.00005 // what each of four processes needs in four seconds
)

// demand is how all processes together use a limit, or one part of it. The mean request
// asks for as many tokens as make up the demand, and none for more than twice as many.
type demand struct {
	name     string
	limit    reservoir.Limit
	tokens   int64 // a second
	requests int64 // a second
	batch    int64 // tokens, or in uses requests; 0 = by the default policy
	options  []reservoir.Option

	rolls   bool // its windows end while it runs
	renewed bool // and are reset while they are open
}

var (
	shortLimit = reservoir.Limit{Tokens: tightLimit, Window: shortWindow}
	longLimit  = reservoir.PerHour(4_000_000_000)
	uses       = [roles]demand{
		tight:  {name: "tight", limit: shortLimit, tokens: 2_000_000, requests: 1000, rolls: true},
		ample:  {name: "ample", limit: shortLimit, tokens: 400_000, requests: 1000, rolls: true},
		fresh:  {name: "fresh", limit: shortLimit, tokens: 2_000_000, requests: 500, rolls: true, renewed: true},
		daily:  {name: "daily", limit: shortLimit, tokens: 2_000_000, requests: 500, rolls: true, renewed: true},
		ledger: {name: "ledger", limit: longLimit, tokens: 200_000, requests: 1000, batch: 6},
		stock:  {name: "stock", limit: longLimit, tokens: 200_000, requests: 2000},
		open: {name: "open", limit: longLimit, tokens: 200_000, requests: 1000, batch: 6,
			options: []reservoir.Option{reservoir.WithFailOpen()}},
		local: {name: "local", limit: longLimit, tokens: 200_000, requests: 1000, batch: 6,
			options: []reservoir.Option{reservoir.WithFailLocal(localShare)}},
		rolling: {name: "rolling", limit: reservoir.Limit{Tokens: 600, Window: shortWindow}.Rolling(), tokens: 1000, requests: 250},
	}
)

func (r role) String() string { return uses[r].name }

// demand divides a role's demand among the parts of the store. Pace scales the requests
// and not the tokens.
func (sc *scenario) demand(r role) demand {
	d, n := uses[r], int64(sc.Parts)
	d.limit.Tokens, d.tokens = d.limit.Tokens/n, d.tokens/n
	d.requests = max(int64(float64(d.requests)*sc.Pace)/n, 1)
	if r == daily { // in a zone whose midnight comes soon
		d.limit = reservoir.PerDay(d.limit.Tokens, time.FixedZone("near", -int(sc.Midnight%(24*60*60))))
	}
	d.batch *= d.each()
	return d
}

// each returns the mean number of tokens of a request.
func (d demand) each() int64 { return max(d.tokens/d.requests, 1) }

// alone is what one process may admit without the store, by FailLocal.
func (d demand) alone() int64 { return int64(localShare * float64(d.limit.Tokens)) }

// beyond is what a process may hold beyond its last record: what it has ordered since,
// and what its callers were just being granted. By default a hundredth of the limit may
// be stranded, and a batch lasts for five minutes.
func (d demand) beyond() int64 {
	if d.batch > 0 {
		return 2*d.batch + 2*callers*d.each()
	}
	return d.limit.Tokens/100 + 300*d.tokens
}
