package torture

import (
	"errors"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
)

const aLot = 1 << 30 // more chunks than any fault sees

// network is a fault that a proxy makes for a while. It counts what it did.
func network(count func(*proxy) int64, arm func(*run, *proxy)) func(*run, *event) {
	return func(x *run, e *event) {
		p := x.peer(e.Part).proxy
		before := count(p)
		arm(x, p)
		time.Sleep(x.span())
		e.Active = seen(before, func() int64 { return count(p) })
		p.Heal()
	}
}

// seen is by how much a counter has grown, as soon as it has.
func seen(before int64, count func() int64) int64 {
	until(patience, func() bool { return count() != before })
	return count() - before
}

// failAll is where repetitions would show: calls fail at once, and time is left.
func (x *run) failAll(e *event) {
	network((*proxy).Dropped, func(_ *run, p *proxy) { p.DropRequests("evalsha", aLot) })(x, e)
	e.Commands = e.Active
}

// reset cuts connections for a while, and until there was one.
func (x *run) reset(e *event) {
	p := x.peer(e.Part).proxy
	before, least := p.CutConns(), time.Now().Add(x.span())
	until(patience, func() bool {
		p.Cut()
		e.Active = p.CutConns() - before
		return e.Active > 0 && time.Now().After(least)
	})
}

func (x *run) refuse(e *event) {
	p := x.peer(e.Part).proxy
	p.Refuse(true)
	p.Cut()
	if _, err := net.Dial("tcp", p.Addr()); errors.Is(err, syscall.ECONNREFUSED) {
		e.Active = 1
	}
	time.Sleep(x.span())
	p.Heal()
}

// stopServer is evident by the calls that fail.
func (x *run) stopServer(e *event) {
	server := x.peer(e.Part)
	server.Pause()
	time.Sleep(x.Hang)
	e.Active = seen(0, func() int64 { return told(x, &e.Faults) })
	server.Resume()
}

// killServer has a server come back with what it has written down. Nobody
// reaches it until that has been looked at.
func (x *run) killServer(e *event) {
	server := x.peer(e.Part)
	server.proxy.Hold(true)
	server.Kill()
	time.Sleep(x.span())
	server.Restart()
	if (server.Do("dbsize").Val().(int64) == 0) == (e.Kind == restartedEmpty) {
		e.Active = 1
	}
	server.proxy.Cut()
	server.proxy.Heal()
}

func (x *run) flush(e *event) {
	server := x.peer(e.Part)
	e.Active = server.Do("dbsize").Val().(int64)
	server.Do("flushall")
	x.recover(e)
	time.Sleep(x.span())
}

// flushScripts is evident by the scripts that are told again.
func (x *run) flushScripts(e *event) {
	server := x.peer(e.Part)
	evals := func() int64 { return server.Calls("eval") }
	for range 3 {
		before := evals()
		server.Do("script", "flush")
		e.Active += seen(before, evals)
		time.Sleep(x.span() / 3)
	}
}

// anyWorker is a process that makes requests.
func (x *run) anyWorker() *worker {
	return x.workers[x.rng.IntN(len(x.workers))]
}

// stopProcess is evident by the window that ends meanwhile.
func (x *run) stopProcess(e *event) {
	window := func() int64 { return int64(x.contents(x.peer(e.Part), tight, e.Part).Window) }
	x.await("a window is open", func() bool { return window() > 0 })
	w, before := x.anyWorker(), window()
	w.Pause()
	still := time.Now()
	x.await("the window ends", func() bool { return window() > before })
	time.Sleep(time.Duration(x.rng.Int64N(int64(x.span()))))
	if told(x, &w.last).Before(still) {
		e.Active = 1
	}
	w.Resume()
}

// killProcess replaces the process by another.
func (x *run) killProcess(e *event) {
	w := x.anyWorker()
	select {
	case <-w.read:
	default:
		e.Active = 1
	}
	w.Kill()
	x.end(w, true)
	time.Sleep(x.span())
	x.start()
}

// step sets the server's clock by up to two and a half windows. It is evident by
// the server's own word.
func step(direction time.Duration) func(*run, *event) {
	return func(x *run, e *event) {
		step := shortWindow/5 + time.Duration(x.rng.Int64N(int64(shortWindow*23/10)))
		before := x.ahead()
		x.offset += direction * step
		x.setClock(x.offset)
		if moved := direction * (x.ahead() - before); moved > step/2 && moved < step*2 {
			e.Active = 1
		}
		e.Starved = x.starved(ample, 3*shortWindow)
	}
}

// ahead is by how much the server's clock differs from ours.
func (x *run) ahead() time.Duration {
	now, err := x.peer(0).Client().Time(x.t.Context()).Result()
	require.NoError(x.t, err)
	return time.Until(now)
}

// starved watches a role for a while and tells for how long at most nobody was
// admitted.
func (x *run) starved(r role, during time.Duration) (longest time.Duration) {
	spent := func() int64 { return told(x, &x.out.Lines[lineID{r, 0}].Spent) }
	last, since := spent(), time.Now()
	for end := since.Add(during); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if now := spent(); now != last {
			last, since = now, time.Now()
		}
		longest = max(longest, time.Since(since))
	}
	return longest
}

// promote makes the replica the primary. Before, it holds all traffic for as long as it
// takes to see what the replica does not have, which is nothing unless it lags. What was
// under way then is lost, as the primary is.
func promote(lags bool) func(*run, *event) {
	return func(x *run, e *event) {
		servers, front := x.pair, x.peers[0].proxy
		if lags {
			x.link.Hold(true)
			time.Sleep(x.span())
			x.await("the replica lags", func() bool { return x.unreplicated(ledger) > 0 })
		}
		front.Hold(true)
		time.Sleep(20 * time.Millisecond) // what has passed is carried out
		if !lags {
			servers.AwaitSync()
		}
		for r := range role(roles) {
			if e.Lost[r] = x.unreplicated(r); r.renewed() { // and windows that were reset since
				e.Lost[r] = x.demand(r, 1).limit.Tokens
			}
		}
		servers.Primary.Kill()
		x.link.Cut()
		servers.Promote(0)
		front.Lead(servers.Replicas[0].Addr())
		front.Heal()
		if !lags || e.Lost[ledger] > 0 {
			e.Active = 1
		}
		x.recover(e)
		slices.Reverse(x.peers)
		servers.Primary, servers.Replicas[0] = x.peers[0].Server, x.peers[1].Server
		servers.Replicas[0].Restart()
		x.link = servers.Link(0)
		servers.AwaitSync()
		time.Sleep(x.span()) // two failovers in one window would be told apart by nobody
	}
}

// takeOver takes a cluster's master away until a replica is elected.
func takeOver(away, back func(*peer)) func(*run, *event) {
	return func(x *run, e *event) {
		old := x.peer(e.Part)
		away(old)
		x.await("a replica is elected", func() bool {
			p := x.peer(e.Part)
			return p != nil && p != old
		})
		e.Active = 1
		x.recover(e)
		back(old)
		x.cluster.AwaitWhole()
	}
}

// reshard moves slots to another master and back, those of our keys first.
func (x *run) reshard(e *event) {
	c, parts := x.cluster, x.parts()
	from, to := x.peer(e.Part).Server, x.peer((e.Part+1)%parts).Server
	var ours []int
	for r := range role(roles) {
		ours = append(ours, c.SlotOf(tag(x.Keys[r][e.Part])))
	}
	slices.Sort(ours)
	rest := slices.DeleteFunc(c.SlotsOf(from), func(slot int) bool { return slices.Contains(ours, slot) })
	list := append(slices.Compact(ours), rest...)[:x.Slots]
	c.Reshard(from, to, list)
	c.Reshard(to, from, list)
	e.Active = 2 * int64(len(list))
}
