package torture

import (
	"slices"
	"time"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// kind is a kind of fault, or none. Those that others ask for have constants.
type kind string

const (
	calm              kind = "none"
	lostReply         kind = "lost replies"
	shardFails        kind = "every call fails"
	serverStopped     kind = "server SIGSTOP"
	serverKilled      kind = "server SIGKILL, back with its data"
	restartedEmpty    kind = "server SIGKILL, back empty"
	processStopped    kind = "process SIGSTOP over a window's end"
	processKilled     kind = "process SIGKILL"
	failedOver        kind = "failover"
	failedOverLagging kind = "failover to a replica that lags"
	masterHung        kind = "cluster master SIGSTOP, election"
	masterKilled      kind = "cluster master SIGKILL, election"
	resharded         kind = "slots resharded and back"
	clockForward      kind = "server's clock forward"
	clockBack         kind = "server's clock back"
)

// loss is what a kind of fault takes from the store, and so what it may cost.
type loss int

const (
	nothing  loss = iota
	tail          // what was charged of late and is not replicated
	elected       // the same in a cluster, which nobody can measure
	all           // every window
	timeline      // no data, but the server's time leaps
	losses   = iota
)

// fault is what there is to know of a kind.
type fault struct {
	kind  kind
	loses loss
	on    []topology // the cheapest first
	do    func(*run, *event)
}

type proxy = redistest.Proxy

// proxied is where a proxy makes faults, and every part has a server that can be
// asked for anything.
var proxied = []topology{durable, pair, clustered, sharded}

var faults = []fault{
	{lostReply, nothing, proxied, network((*proxy).Swallowed, func(x *run, p *proxy) { p.SwallowReply("evalsha", 3+x.rng.IntN(10)) })},
	{"lost requests", nothing, proxied, network((*proxy).Dropped, func(x *run, p *proxy) { p.DropRequests("evalsha", 3+x.rng.IntN(10)) })},
	{"replies later than the timeout", nothing, proxied, network((*proxy).Delayed, func(x *run, p *proxy) { p.Delay(x.Timeout + x.Timeout/2) })},
	{"latency of 2 to 20 ms", nothing, proxied, network((*proxy).Delayed, func(x *run, p *proxy) { p.Delay(time.Duration(2+x.rng.IntN(18)) * time.Millisecond) })},
	{"network black hole, late delivery", nothing, proxied, network((*proxy).Held, func(_ *run, p *proxy) { p.Hold(true) })},
	{"connections reset", nothing, proxied, (*run).reset},
	{"connections refused", nothing, proxied, (*run).refuse},
	{shardFails, nothing, []topology{durable, sharded}, (*run).failAll},
	{serverStopped, nothing, []topology{durable, sharded}, (*run).stopServer},
	{serverKilled, nothing, []topology{durable, sharded}, (*run).killServer},
	{restartedEmpty, all, []topology{volatile}, (*run).killServer},
	{"FLUSHALL", all, []topology{volatile}, (*run).flush},
	{"SCRIPT FLUSH", nothing, []topology{durable, clustered, sharded}, (*run).flushScripts},
	{processStopped, nothing, []topology{durable, clustered, sharded}, (*run).stopProcess},
	{processKilled, nothing, []topology{volatile, sharded}, (*run).killProcess},
	{failedOver, tail, []topology{pair}, promote(false)},
	{failedOverLagging, tail, []topology{pair}, promote(true)},
	{masterHung, elected, []topology{clustered}, takeOver((*peer).Pause, (*peer).Resume)},
	{masterKilled, elected, []topology{clustered}, takeOver((*peer).Kill, (*peer).Restart)},
	{resharded, nothing, []topology{clustered}, (*run).reshard},
	{clockForward, timeline, []topology{clocked}, step(1)},
	{clockBack, timeline, []topology{clocked}, step(-1)},
}

func faultOf(k kind) fault {
	return faults[slices.IndexFunc(faults, func(f fault) bool { return f.kind == k })]
}

// event is one fault that happened. What processes tell is its own from its beginning
// until all have recovered.
type event struct {
	Kind       kind
	Part       int       // of the store that it befell
	Begin, End time.Time // End: when it was over, or a replica was elected
	Over       time.Time // when every process had been answered on every part, and the next one may come

	Active    int64         // how often it was seen to take effect
	Recovery  time.Duration // from End until every process had been answered on every part
	Failed    int64         // requests that ended in an error, on any part
	Elsewhere int64         // of these, on parts that the fault did not befall
	Calls     int64         // to the store that began before the end
	Faults    int64         // of these, those that failed
	Commands  int64         // seen on the way to the store; where counted
	Lost      [roles]int64  // tokens that the store forgot, at most
	Starved   time.Duration // longest time without a token for anybody; where watched
}
