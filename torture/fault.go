package torture

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// This file is the faults of the network and of single servers.

// aLot is more chunks than any fault sees.
const aLot = 1 << 30

// proxy is the one before the server of a part.
func (x *run) proxy(part int) *redistest.Proxy {
	switch {
	case x.stage.cluster != nil:
		return x.stage.nodeProxy(x.stage.owner(part))
	case x.stage.pair != nil:
		return x.stage.proxies[0]
	}
	return x.stage.proxies[part]
}

// patience is how long a fault may take to show its effect on a busy machine.
const patience = 20 * time.Second

// while lets time pass, and takes a counter's growth meanwhile as evidence.
func (x *run) while(e *event, count func() int64) {
	before := count()
	time.Sleep(x.span())
	e.Active += seen(before, count)
}

// seen is by how much a counter has grown, as soon as it has.
func seen(before int64, count func() int64) int64 {
	for end := time.Now().Add(patience); count() == before && time.Now().Before(end); {
		time.Sleep(2 * time.Millisecond)
	}
	return count() - before
}

// repeat acts for a while, and until that had an effect.
func (x *run) repeat(e *event, act func() int64) {
	least := time.Now().Add(x.span())
	for most := least.Add(patience); time.Now().Before(least) || e.Active == 0 && time.Now().Before(most); {
		e.Active += act()
		time.Sleep(20 * time.Millisecond)
	}
}

func (x *run) loseReplies(e *event) {
	p, n := x.proxy(e.Part), 3+x.rng.IntN(10)
	p.SwallowReply("evalsha", n)
	x.while(e, p.Swallowed)
	p.SwallowReply("", 0)
}

func (x *run) loseRequests(e *event) {
	p, n := x.proxy(e.Part), 3+x.rng.IntN(10)
	p.DropRequests("evalsha", n)
	x.while(e, p.Dropped)
	p.DropRequests("", 0)
}

// failAll is where repetitions would show: calls fail at once, and time is left.
func (x *run) failAll(e *event) {
	p := x.proxy(e.Part)
	calls := x.fleet.sumPart(e.Part, callsOf)
	p.DropRequests("evalsha", aLot)
	x.while(e, p.Dropped)
	p.DropRequests("", 0)
	e.Calls, e.Commands = x.fleet.sumPart(e.Part, callsOf)-calls, e.Active
	e.Spare = repeatsInVain * int64(len(x.fleet.workers))
}

func (x *run) delayBeyondTimeout(e *event) {
	p := x.proxy(e.Part)
	p.Delay(x.sc.Timeout + x.sc.Timeout/2)
	x.while(e, p.Delayed)
	p.Delay(0)
}

func (x *run) delay(e *event) {
	p := x.proxy(e.Part)
	p.Delay(time.Duration(2+x.rng.IntN(18)) * time.Millisecond)
	x.while(e, p.Delayed)
	p.Delay(0)
}

func (x *run) hold(e *event) {
	p := x.proxy(e.Part)
	p.Hold(true)
	x.while(e, p.Held)
	p.Hold(false)
}

func (x *run) reset(e *event) {
	p := x.proxy(e.Part)
	x.repeat(e, func() int64 {
		before := p.CutConns()
		p.Cut()
		return p.CutConns() - before
	})
}

func (x *run) refuse(e *event) {
	p := x.proxy(e.Part)
	p.Refuse(true)
	p.Cut()
	x.repeat(e, func() int64 {
		conn, err := net.Dial("tcp", p.Addr())
		if err == nil {
			_ = conn.Close()
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			return 1
		}
		return 0
	})
	p.Refuse(false)
}

// stopServer is evident by the calls that fail.
func (x *run) stopServer(e *event) {
	server := x.stage.servers[e.Part]
	server.Pause()
	failed := func() int64 { return x.fleet.sumPart(e.Part, faultsOf) }
	before := failed()
	time.Sleep(x.sc.Hang)
	e.Active = seen(before, failed)
	server.Resume()
}

// killServer has a server come back with what it has written down. Nobody
// reaches it until that has been looked at.
func (x *run) killServer(e *event) {
	p, server := x.proxy(e.Part), x.stage.servers[e.Part]
	p.Hold(true)
	server.Kill()
	time.Sleep(x.span())
	plainly(server.Restart)
	keys, err := x.stage.direct(server).DBSize(context.Background()).Result()
	require.NoError(x.t, err)
	if (keys == 0) == (e.Kind == restartedEmpty) {
		e.Active = 1
	}
	p.Cut()
	p.Hold(false)
}

func (x *run) flush(e *event) {
	client := x.stage.direct(x.stage.servers[e.Part])
	ctx := context.Background()
	keys, err := client.DBSize(ctx).Result()
	require.NoError(x.t, err)
	require.NoError(x.t, client.FlushAll(ctx).Err())
	e.Active = keys
	e.End = time.Now()
	x.recover(e)
	time.Sleep(x.span())
}

// flushScripts is evident by the scripts that are told again.
func (x *run) flushScripts(e *event) {
	server := x.stage.servers[e.Part]
	if x.stage.cluster != nil {
		server = x.stage.cluster.Nodes[x.stage.owner(e.Part)]
	}
	client := x.stage.direct(server)
	told := func() int64 { return server.Calls("eval") }
	for range 3 {
		before := told()
		require.NoError(x.t, client.ScriptFlush(context.Background()).Err())
		e.Active += seen(before, told)
		time.Sleep(x.span() / 3)
	}
}

// stopProcess is evident by the window that ends meanwhile.
func (x *run) stopProcess(e *event) {
	list := x.fleet.alive()
	w := list[x.rng.IntN(len(list))]
	before, err := x.stage.contents(tight, e.Part)
	require.NoError(x.t, err)
	w.stop(x.t, true)
	beat := w.journal.Beat.Load()
	await(x.t, healLimit, "the window ends", func() bool {
		now, err := x.stage.contents(tight, e.Part)
		return err == nil && now.Window > before.Window
	})
	time.Sleep(time.Duration(x.rng.Int64N(int64(x.span()))))
	if before.Window > 0 && w.journal.Beat.Load() == beat {
		e.Active = 1
	}
	w.stop(x.t, false)
}

// killProcess replaces the process by another.
func (x *run) killProcess(e *event) {
	list := x.fleet.alive()
	w := list[x.rng.IntN(len(list))]
	if w.journal.State.Load() == running {
		e.Active = 1
	}
	x.fleet.kill(w)
	time.Sleep(x.span())
	x.fleet.start()
}

func (x *run) stepForward(e *event) { x.step(e, 1) }

func (x *run) stepBack(e *event) { x.step(e, -1) }

// step sets the server's clock by up to two and a half windows. It is evident by
// the server's own word.
func (x *run) step(e *event, direction time.Duration) {
	client := x.stage.direct(x.stage.servers[0])
	step := shortWindow/5 + time.Duration(x.rng.Int64N(int64(shortWindow*23/10)))
	before := x.ahead(client)
	x.offset += direction * step
	x.stage.clock.set(x.offset)
	if moved := direction * (x.ahead(client) - before); moved > step/2 && moved < step*2 {
		e.Active = 1
	}
	e.End = time.Now()
	x.recover(e)
	e.Starved = max(e.Recovery, x.starved(ample, 3*shortWindow))
}

// ahead is by how much the server's clock differs from ours.
func (x *run) ahead(client *redis.Client) time.Duration {
	now, err := client.Time(context.Background()).Result()
	require.NoError(x.t, err)
	return time.Until(now)
}

// starved watches a role for a while and tells for how long at most nobody was
// admitted.
func (x *run) starved(r role, during time.Duration) (longest time.Duration) {
	spent := func() (n int64) {
		for part := range x.stage.target.parts() {
			for _, w := range x.fleet.workers {
				n += w.journal.Lines[lineOf(r, part)].Spent.Load()
			}
		}
		return n
	}
	last, since := spent(), time.Now()
	for end := since.Add(during); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if now := spent(); now != last {
			last, since = now, time.Now()
		}
		longest = max(longest, time.Since(since))
	}
	return longest
}
