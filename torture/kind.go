package torture

import (
	"time"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// kind is a kind of fault, or none.
type kind int

const (
	calm kind = iota
	lostReply
	lostRequest
	lateReply
	slowNetwork
	blackHole
	connectionReset
	connectionRefused
	shardFails
	serverStopped
	serverKilled
	restartedEmpty
	dataFlushed
	scriptsFlushed
	processStopped
	processKilled
	failedOver
	failedOverLagging
	masterHung
	masterKilled
	resharded
	clockForward
	clockBack
	kinds = iota
)

// loss is what a kind of fault takes from the store, and so what it may cost.
type loss int

const (
	nothing  loss = iota
	tail          // what was charged of late and is not replicated
	all           // every window
	timeline      // no data, but the server's time leaps
	losses   = iota
)

// fault is what there is to know of a kind.
type fault struct {
	name  string
	loses loss
	on    []topology // the cheapest first
	do    func(*run, *event)
}

func (k kind) String() string { return k.fault().name }

func (k kind) fault() fault { return faults()[k] }

type proxy = redistest.Proxy

// proxied is where a proxy makes faults, and every part has a server that can be
// asked for anything.
var proxied = []topology{durable, pair, clustered, sharded}

// faults is a function, for the faults themselves refer to kinds.
func faults() [kinds]fault {
	return [kinds]fault{
		calm:              {name: "none"},
		lostReply:         {"lost replies", nothing, proxied, network((*proxy).Swallowed, func(x *run, p *proxy) { p.SwallowReply("evalsha", 3+x.rng.IntN(10)) })},
		lostRequest:       {"lost requests", nothing, proxied, network((*proxy).Dropped, func(x *run, p *proxy) { p.DropRequests("evalsha", 3+x.rng.IntN(10)) })},
		lateReply:         {"replies later than the timeout", nothing, proxied, network((*proxy).Delayed, func(x *run, p *proxy) { p.Delay(x.sc.Timeout + x.sc.Timeout/2) })},
		slowNetwork:       {"latency of 2 to 20 ms", nothing, proxied, network((*proxy).Delayed, func(x *run, p *proxy) { p.Delay(time.Duration(2+x.rng.IntN(18)) * time.Millisecond) })},
		blackHole:         {"network black hole, late delivery", nothing, proxied, network((*proxy).Held, func(_ *run, p *proxy) { p.Hold(true) })},
		connectionReset:   {"connections reset", nothing, proxied, (*run).reset},
		connectionRefused: {"connections refused", nothing, proxied, (*run).refuse},
		shardFails:        {"every call fails", nothing, []topology{durable, sharded}, (*run).failAll},
		serverStopped:     {"server SIGSTOP", nothing, []topology{durable, sharded}, (*run).stopServer},
		serverKilled:      {"server SIGKILL, back with its data", nothing, []topology{durable, sharded}, (*run).killServer},
		restartedEmpty:    {"server SIGKILL, back empty", all, []topology{volatile}, (*run).killServer},
		dataFlushed:       {"FLUSHALL", all, []topology{volatile}, (*run).flush},
		scriptsFlushed:    {"SCRIPT FLUSH", nothing, []topology{durable, clustered, sharded}, (*run).flushScripts},
		processStopped:    {"process SIGSTOP over a window's end", nothing, []topology{durable, clustered, sharded}, (*run).stopProcess},
		processKilled:     {"process SIGKILL", nothing, []topology{volatile, sharded}, (*run).killProcess},
		failedOver:        {"failover", tail, []topology{pair}, promote(false)},
		failedOverLagging: {"failover to a replica that lags", tail, []topology{pair}, promote(true)},
		masterHung:        {"cluster master SIGSTOP, election", tail, []topology{clustered}, takeOver((*peer).Pause, (*peer).Resume)},
		masterKilled:      {"cluster master SIGKILL, election", tail, []topology{clustered}, takeOver((*peer).Kill, (*peer).Restart)},
		resharded:         {"slots resharded and back", nothing, []topology{clustered}, (*run).reshard},
		clockForward:      {"server's clock forward", timeline, []topology{clocked}, step(1)},
		clockBack:         {"server's clock back", timeline, []topology{clocked}, step(-1)},
	}
}

// event is one fault that happened.
type event struct {
	Kind       kind
	Part       int       // of the store that it befell
	Begin, End time.Time // End: when it was over, or a replica was elected

	Active          int64         // how often it was seen to take effect
	Recovery        time.Duration // from End until every process had been answered on every part
	Failed          int64         // requests that ended in an error, on any part
	Elsewhere       int64         // of these, on parts that the fault did not befall
	Calls, Commands int64         // made to the store, and seen on the way to it; where counted
	Lost            [roles]int64  // tokens that the store forgot, where that is known
	Starved         time.Duration // longest time without a token for anybody; where watched
}
