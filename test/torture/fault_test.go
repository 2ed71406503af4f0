package torture

import (
	"crypto/sha1"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/lua"
)

// kind is a kind of fault, or none. Kinds that other code refers to have constants.
type kind string

const (
	calm           kind = "none"
	shardFails     kind = "every call fails"
	serverStopped  kind = "server SIGSTOP"
	restartedEmpty kind = "server SIGKILL, back empty"
	processStopped kind = "process SIGSTOP over a window's end"
	processKilled  kind = "process SIGKILL"
	resharded      kind = "slots resharded and back"
	clockForward   kind = "server's clock forward"
	clockBack      kind = "server's clock back"
)

// loss is the data that a kind of fault takes from the store. It bounds what the fault
// may cost.
type loss int

const (
	nothing  loss = iota
	tail          // recent charges that are not replicated
	elected       // the same in a cluster, where it cannot be measured
	all           // every window
	timeline      // no data, but the server's time jumps
	losses   = iota
)

// fault describes a kind. do returns when the fault is over, with the number of times
// that it was seen to take effect.
type fault struct {
	kind  kind
	loses loss
	on    []topology // the cheapest first
	do    func(*run, *event) int64
}

// single has the topologies in which a stopped server is not replaced. proxied has those
// in which a proxy makes faults and every part has a server that accepts any command.
var (
	single  = []topology{durable, sharded}
	proxied = []topology{durable, pair, clustered, sharded}
)

var faults = []fault{
	{"lost replies", nothing, proxied, network((*proxy).Swallowed, func(x *run, p *proxy) { p.SwallowReply("evalsha", 3+x.rng.IntN(10)) })},
	{"lost requests", nothing, proxied, network((*proxy).Dropped, func(x *run, p *proxy) { p.DropRequests("evalsha", 3+x.rng.IntN(10)) })},
	{"replies later than the timeout", nothing, proxied, network((*proxy).Delayed, func(x *run, p *proxy) { p.Delay(x.Timeout + x.Timeout/2) })},
	{"latency of 2 to 20 ms", nothing, proxied, network((*proxy).Delayed, func(x *run, p *proxy) { p.Delay(time.Duration(2+x.rng.IntN(18)) * time.Millisecond) })},
	{"network black hole, late delivery", nothing, proxied, network((*proxy).Held, func(_ *run, p *proxy) { p.Hold(true) })},
	{"connections reset", nothing, proxied, network((*proxy).CutConns, func(x *run, p *proxy) {
		for end := time.Now().Add(x.span()); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
			p.Cut()
		}
	})},
	{"connections refused", nothing, proxied, network(refuses, func(_ *run, p *proxy) {
		p.Refuse(true)
		p.Cut()
	})},
	{"requests repeated", nothing, single, network((*proxy).Repeated, func(x *run, p *proxy) {
		p.Repeat(repeatable, 1+x.rng.IntN(20), time.Duration(x.rng.Int64N(int64(x.Timeout))))
	})},
	{"messages lost", nothing, single, network((*proxy).Lost, func(x *run, p *proxy) { p.LoseMessages(1 + x.rng.IntN(9)) })},
	{shardFails, nothing, single, network((*proxy).Dropped, func(_ *run, p *proxy) { p.DropRequests("evalsha", 1<<30) })},
	{serverStopped, nothing, single, (*run).stopServer},
	{"server SIGKILL, back with its data", nothing, single, (*run).killServer},
	{restartedEmpty, all, []topology{volatile}, (*run).killServer},
	{"FLUSHALL", all, []topology{volatile}, (*run).flush},
	{"SCRIPT FLUSH", nothing, []topology{durable, clustered, sharded}, (*run).flushScripts},
	{processStopped, nothing, []topology{durable, clustered, sharded}, (*run).stopProcess},
	{processKilled, nothing, []topology{volatile, sharded}, (*run).killProcess},
	{"failover", tail, []topology{pair}, promote(false)},
	{"failover to a replica that lags", tail, []topology{pair}, promote(true)},
	{"cluster master SIGSTOP, election", elected, []topology{clustered}, takeOver((*peer).Pause, (*peer).Resume)},
	{"cluster master SIGKILL, election", elected, []topology{clustered}, takeOver((*peer).Kill, (*peer).Restart)},
	{resharded, nothing, []topology{clustered}, (*run).reshard},
	{clockForward, timeline, []topology{clocked}, step(1)},
	{clockBack, timeline, []topology{clocked}, step(-1)},
}

func faultOf(k kind) fault {
	return faults[slices.IndexFunc(faults, func(f fault) bool { return f.kind == k })]
}

// event is one fault that happened. Records count for it from its beginning until all
// processes have recovered.
type event struct {
	Kind       kind
	Part       int       // of the store that it hit
	Begin, End time.Time // End: when it was over, or a replica was elected
	Over       time.Time // when every process had a reply on every part, and the next fault may begin

	Active    int64         // how often it was seen to take effect
	Recovery  time.Duration // from End until every process had a reply on every part
	Failed    int64         // requests that ended in an error, on any part
	Elsewhere int64         // of these, on parts that the fault did not hit
	Calls     int64         // to the store that began before the end
	Faults    int64         // of these, failed
	Lost      [roles]int64  // tokens that the store lost, at most
	Starved   time.Duration // longest time without an admission, if it was watched

	Errors  map[string]int64 // of requests, by their text
	Latency [answers]*hdrhistogram.Histogram
}

func newEvent(k kind, part int) *event {
	e := &event{Kind: k, Part: part, Begin: time.Now(), Errors: make(map[string]int64)}
	for a := range e.Latency {
		e.Latency[a] = hdrhistogram.New(1, time.Hour.Nanoseconds(), 2) // exact to 1 %
	}
	return e
}

// failed adds the error of a request or a reset, and reports whether it failed.
func (e *event) failed(r *record) bool {
	if r.Err == "" {
		return false
	}
	e.Errors[r.Err]++
	if e.Failed++; r.Key.Part != e.Part {
		e.Elsewhere++
	}
	return true
}

func (e *event) wait(a answer, d time.Duration) { _ = e.Latency[a].RecordValue(int64(d)) }

// once counts a fault that took effect once or not at all.
func once(took bool) int64 {
	if took {
		return 1
	}
	return 0
}

type proxy = redistest.Proxy

// network returns a fault that a proxy makes for a while and counts.
func network(count func(*proxy) int64, arm func(*run, *proxy)) func(*run, *event) int64 {
	return func(x *run, e *event) int64 {
		p := x.peer(e.Part).proxy
		defer p.Heal()
		before := count(p)
		arm(x, p)
		time.Sleep(x.span())
		return seen(before, func() int64 { return count(p) })
	}
}

// repeatable reports whether a chunk of requests has only statements of account. Others are promised never to be repeated.
func repeatable(chunk []byte) bool {
	text := string(chunk)
	n := strings.Count(text, "evalsha")
	return n > 0 && n == strings.Count(text, shaOfSync)+strings.Count(text, "\r\nsync\r\n")
}

var shaOfSync = fmt.Sprintf("%x", sha1.Sum([]byte(lua.Sync)))

// seen waits until a counter has grown, and returns by how much.
func seen(before int64, count func() int64) int64 {
	until(func() bool { return count() != before })
	return count() - before
}

// refuses tries a connection, because a proxy cannot count those that it refuses.
func refuses(p *proxy) int64 {
	conn, err := net.Dial("tcp", p.Addr())
	if err == nil {
		_ = conn.Close()
	}
	return once(errors.Is(err, syscall.ECONNREFUSED))
}

// stopServer stops a server. Failed calls prove the effect.
func (x *run) stopServer(e *event) int64 {
	server := x.peer(e.Part)
	server.Pause()
	defer server.Resume()
	time.Sleep(x.Hang)
	return seen(0, func() int64 { return told(x, &e.Faults) })
}

// killServer kills a server and restarts it with the data of its files. The proxy holds
// all traffic until the number of keys is read.
func (x *run) killServer(e *event) int64 {
	server := x.peer(e.Part)
	server.proxy.Hold(true)
	server.Kill()
	time.Sleep(x.span())
	server.Restart()
	empty := server.Do("dbsize").Val().(int64) == 0
	server.proxy.Cut()
	server.proxy.Heal()
	return once(empty == (e.Kind == restartedEmpty))
}

func (x *run) flush(e *event) int64 {
	server := x.peer(e.Part)
	keys := server.Do("dbsize").Val().(int64)
	server.Do("flushall")
	x.recover(e)
	time.Sleep(x.span())
	return keys
}

// flushScripts drops the scripts. EVALs, which load them again, prove the effect.
func (x *run) flushScripts(e *event) (told int64) {
	server := x.peer(e.Part)
	evals := func() int64 { return server.Calls("eval") }
	for range 3 {
		before := evals()
		server.Do("script", "flush")
		told += seen(before, evals)
		time.Sleep(x.span() / 3)
	}
	return told
}

// stopProcess stops a process. The end of a window meanwhile proves the effect.
func (x *run) stopProcess(e *event) int64 {
	window := func() int64 { return x.contents(x.peer(e.Part), tight, e.Part).Window.End }
	x.await("a window is open", func() bool { return window() > 0 })
	w, before := x.workers[x.rng.IntN(len(x.workers))], window()
	w.Pause()
	defer w.Resume()
	still := time.Now()
	x.await("the window ends", func() bool { return window() > before })
	time.Sleep(time.Duration(x.rng.Int64N(int64(x.span()))))
	return once(told(x, &w.lines[lineID{tight, e.Part}].Last).Before(still))
}

// killProcess kills a process and starts another one.
func (x *run) killProcess(*event) int64 {
	w := x.workers[x.rng.IntN(len(x.workers))]
	alive := w.Up()
	w.Kill()
	x.end(w, true)
	time.Sleep(x.span())
	x.start()
	return once(alive)
}

// step moves the server's clock by up to two and a half windows. The server's TIME proves
// the effect.
func step(direction time.Duration) func(*run, *event) int64 {
	return func(x *run, e *event) int64 {
		step := shortWindow/5 + time.Duration(x.rng.Int64N(int64(shortWindow*23/10)))
		before := x.clock.Ahead()
		x.clock.Set(before + direction*step)
		moved := direction * (x.clock.Ahead() - before)
		e.Starved = x.starved(ample, 3*shortWindow)
		return once(moved > step/2 && moved < step*2)
	}
}

// starved watches a role for a while and returns the longest time without an admission.
func (x *run) starved(r role, during time.Duration) (longest time.Duration) {
	admitted := func() int64 { return told(x, &x.out.Lines[lineID{r, 0}].Allowed) }
	last, since := admitted(), time.Now()
	for end := since.Add(during); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if now := admitted(); now != last {
			last, since = now, time.Now()
		}
		longest = max(longest, time.Since(since))
	}
	return longest
}

// promote makes the replica the primary. It first holds all traffic to measure what the
// replica lacks, which is nothing unless it lags. Calls in flight are lost with the old
// primary.
func promote(lags bool) func(*run, *event) int64 {
	return func(x *run, e *event) int64 {
		servers, front := x.pair, x.peers[0].proxy
		if lags {
			x.link.Hold(true)
			time.Sleep(x.span())
			x.await("the replica lags", func() bool { return x.unreplicated(ledger) > 0 })
		}
		front.Hold(true)
		time.Sleep(20 * time.Millisecond) // until the server has executed what has passed
		if !lags {
			servers.AwaitSync()
		}
		for r := range role(roles) {
			if e.Lost[r] = x.unreplicated(r); uses[r].renewed { // windows that were reset since are lost, too
				e.Lost[r] = x.demand(r).limit.Tokens
			}
		}
		servers.Primary.Kill()
		x.link.Cut()
		servers.Promote(0)
		front.Lead(servers.Replicas[0].Addr())
		front.Heal()
		x.recover(e)
		slices.Reverse(x.peers)
		servers.Primary, servers.Replicas[0] = x.peers[0].Server, x.peers[1].Server
		servers.Replicas[0].Restart()
		x.link = servers.Link(0)
		time.Sleep(x.span()) // two failovers in one window could not be told apart
		return once(!lags || e.Lost[ledger] > 0)
	}
}

// takeOver stops or kills a cluster's master until a replica is elected.
func takeOver(away, back func(*peer)) func(*run, *event) int64 {
	return func(x *run, e *event) int64 {
		old := x.peer(e.Part)
		away(old)
		x.await("a replica is elected", func() bool {
			p := x.peer(e.Part)
			return p != nil && p != old
		})
		x.recover(e)
		back(old)
		x.cluster.AwaitWhole()
		return 1
	}
}

// reshard moves slots to another master and back, those of our keys first.
func (x *run) reshard(e *event) int64 {
	c := x.cluster
	from, to := x.peer(e.Part).Server, x.peer((e.Part+1)%x.Parts).Server
	var ours []int
	for r := range role(roles) {
		ours = append(ours, c.SlotOf(x.Keys[r][e.Part]))
	}
	slices.Sort(ours)
	rest := slices.DeleteFunc(c.SlotsOf(from), func(slot int) bool { return slices.Contains(ours, slot) })
	list := append(slices.Compact(ours), rest...)[:x.Slots]
	c.Reshard(from, to, list)
	c.Reshard(to, from, list)
	return int64(2 * len(list))
}
