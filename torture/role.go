package torture

import (
	"time"

	"github.com/go-reservoir/reservoir"
)

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

func (r role) String() string {
	return [...]string{"tight", "ample", "fresh", "daily", "ledger", "stock", "open", "local"}[r]
}

// windowed reports whether the role's windows roll over while it runs.
func (r role) windowed() bool { return r < ledger }

// renewed reports whether the role's windows are reset while they are open.
func (r role) renewed() bool { return r == fresh || r == daily }

// settles reports whether the role's requests are settled: its windows outlast the run,
// and its batches are small.
func (r role) settles() bool { return r == ledger || r.fallsBack() }

// fallsBack reports whether the role's requests are admitted without the store, and
// charged when it is back.
func (r role) fallsBack() bool { return r == open || r == local }

// Demand of all processes together, per second. A request asks for one to twice
// so many tokens as make that up.
const (
	shortWindow = time.Second
	longWindow  = time.Hour
	longLimit   = 4_000_000_000

	tightLimit  = 1_000_000
	tightDemand = 2_000_000
	ampleDemand = 400_000
	longDemand  = 200_000

	// localShare is what a process needs in four seconds, where there are four.
	localShare = 0.00005
)

// demand is how a role is used: so many tokens per second, so many requests.
type demand struct {
	limit    reservoir.Limit
	tokens   int64
	requests int64
	batch    int64 // 0 = by the default policy
}

// demand shares a role's demand among the parts of a store. A small machine leaves room
// for fewer requests; tokens stay the same.
func (sc *scenario) demand(r role, parts int) demand {
	n := int64(parts)
	d := demand{
		limit:  reservoir.Limit{Tokens: tightLimit / n, Window: shortWindow},
		tokens: tightDemand / n, requests: max(int64(1000*sc.Pace)/n, 1),
	}
	switch r {
	case ample:
		d.tokens = ampleDemand / n
	case daily: // in a zone whose midnight comes soon
		d.limit = reservoir.PerDay(d.limit.Tokens, time.FixedZone("near", -int(sc.Midnight%(24*60*60))))
	case ledger, open, local, stock:
		d.limit, d.tokens = reservoir.Limit{Tokens: longLimit / n, Window: longWindow}, longDemand/n
	}
	switch {
	case r == stock:
		d.requests *= 2
	case r.renewed():
		d.requests = max(d.requests/2, 1)
	case r.settles(): // a call for every six requests
		d.batch = 6 * d.each()
	}
	return d
}

// each is the mean number of tokens of a request.
func (d demand) each() int64 { return max(d.tokens/d.requests, 1) }

// options are those of the role's limiters, beside what all have.
func (r role) options(d demand) []reservoir.Option {
	list := []reservoir.Option{reservoir.WithBatch(reservoir.Adaptive(1, 0))}
	if d.batch > 0 {
		list[0] = reservoir.WithBatch(reservoir.Fixed(d.batch))
	}
	switch r {
	case fresh, daily:
		list = append(list, reservoir.WithLateOverruns())
	case open:
		list = append(list, reservoir.WithFailure(reservoir.FailOpen))
	case local:
		list = append(list, reservoir.WithFailure(reservoir.FailLocal(localShare)))
	}
	return list
}

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
