package redisstore

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A group sends the calls to one server in shared pipelines (a group commit):
//
//   - A call that finds fewer than four pipelines in flight is sent at once, alone.
//   - Other calls are queued. The first pipeline that returns takes them all, or one more
//     pipeline does if none returns for a while. So neither a connection that hangs nor
//     a distant server delays them for long.
//   - A pipeline goes on after its callers have left, so that later callers find the
//     connection made and the scripts loaded.
type group struct {
	client        redis.UniversalClient
	clock         *serverClock
	ack           *ack
	redirects     *group // takes the calls that this server no longer serves; it follows redirections
	pipelines     int    // in flight at most, before an extra one
	obeysDeadline bool   // go-redis ends a call at its context's deadline

	mu       sync.Mutex // guards the fields below; the lock that counts the store's calls may be taken under it
	queue    []*call
	inFlight int           // pipelines in flight
	extraDue bool          // a timer will start one more
	trip     time.Duration // recent least time of a pipeline; 0 = the last had no reply
	earned   int           // calls that may still earn a repetition: see mayRepeat
}

const (
	pipelines    = 4                     // in flight to one server: few, so they are long, but several, in case one hangs
	maxPipelines = 20                    // including those that left because none returned
	unbounded    = math.MaxInt           // pipelines of a group in which each call is sent alone
	longest      = 256                   // calls of one pipeline, so that the first does not wait for thousands
	tooLong      = 20 * time.Millisecond // for a call to wait; a server with longer round trips is distant
)

// submit sends c now, or queues it. If the call is detached and the server near, the
// caller's goroutine makes it: two goroutine switches take as long as the network.
func (g *group) submit(c *call) {
	g.mu.Lock()
	g.earned = min(g.earned+1, mostSaved)
	if g.inFlight >= g.pipelines {
		if len(g.queue) == cap(g.queue) { // make room by dropping calls whose callers have left
			g.queue = slices.DeleteFunc(g.queue, (*call).dropped)
		}
		g.queue = append(g.queue, c)
		g.armExtra()
		g.mu.Unlock()
		return
	}
	g.inFlight++
	c.inline = c.detached && g.obeysDeadline && 0 < g.trip && g.trip < tooLong
	g.mu.Unlock()
	if c.inline {
		g.run([]*call{c})
	} else {
		go g.run([]*call{c})
	}
}

// armExtra sets a timer that sends queued calls in an extra pipeline, if none returns
// before that. The caller holds g.mu.
func (g *group) armExtra() {
	if len(g.queue) == 0 || g.inFlight >= maxPipelines || g.extraDue {
		return
	}
	g.extraDue = true
	wait := tooLong
	if g.trip > tooLong {
		wait /= 4
	}
	time.AfterFunc(wait, func() {
		g.mu.Lock()
		g.extraDue = false
		g.inFlight++
		g.mu.Unlock()
		g.run(g.next())
	})
}

// next returns the queued calls for a pipeline to send. If there are none, the pipeline ends.
func (g *group) next() []*call {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := min(len(g.queue), longest)
	batch := slices.DeleteFunc(slices.Clone(g.queue[:n]), (*call).dropped)
	g.queue = slices.Delete(g.queue, 0, n)
	if len(batch) == 0 {
		g.inFlight--
	}
	g.armExtra()
	return batch
}

// run sends the calls, then those queued meanwhile, until the queue is empty. A panic of a
// go-redis hook is not caught. In the goroutine of a caller it may be, so run leaves nothing
// in flight.
func (g *group) run(batch []*call) {
	defer func() {
		if len(batch) > 0 { // a panic, or runtime.Goexit
			for _, c := range batch {
				c.err = errCrashed
				c.complete()
			}
			go g.run(g.next())
		}
	}()
	for len(batch) > 0 {
		inline := batch[0].inline
		g.send(batch, false)
		// A script's text is sent only to a server that lacks it. Loading it in advance
		// would not be enough, because a restart or a failover loses it.
		if batch = g.complete(batch); len(batch) > 0 {
			g.send(batch, true)
			for _, c := range g.complete(batch) {
				c.complete()
			}
		}
		if batch = g.next(); inline && len(batch) > 0 {
			go g.run(batch)
			batch = nil
		}
	}
}

// complete reports the outcomes to the callers. Calls that the server no longer serves go
// to another group instead. Calls whose script the server lacks are returned.
func (g *group) complete(calls []*call) (missing []*call) {
	for _, c := range calls {
		switch {
		case c.err == nil:
			c.complete()
		case redis.HasErrorPrefix(c.err, "NOSCRIPT"):
			c.unwritten()
			missing = append(missing, c)
		case g.redirects != nil && isMoved(c.err):
			c.unwritten()
			if redis.HasErrorPrefix(c.err, "ASK") { // no key of the counter is here, and there a command may have one new key at most
				c.declare()
			}
			g.redirects.submit(c)
		default:
			c.complete()
		}
	}
	return missing
}

// send sends the calls and judges their outcomes. With scripts, the first call of each
// script carries its text and the later ones find it loaded.
func (g *group) send(calls []*call, scripts bool) {
	began, ahead, loaded := time.Now(), g.clock.ahead(), map[*script]bool{}
	cmds := make([]redis.Cmder, len(calls))
	for i, c := range calls {
		c.stamp(scripts && !loaded[c.script], ahead)
		cmds[i], loaded[c.script] = c.cmd, true
	}
	ctx, cancel := detach(calls)
	defer cancel()
	var lack error
	switch {
	case g.ack.concerns(calls):
		lack = g.ack.send(ctx, g.client, calls, cmds)
	case len(calls) == 1:
		_ = g.client.Process(ctx, cmds[0])
	default:
		pipeline(ctx, g.client, calls, cmds...)
	}
	at := int64(0)
	for _, c := range calls {
		at = max(at, c.judge(lack))
	}
	g.measure(at, time.Since(began))
}

// measure records the server's time, or 0 for no reply, and how long the pipeline took.
func (g *group) measure(at int64, took time.Duration) {
	if at != 0 {
		g.clock.observe(at)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case at == 0:
		g.trip = 0
	case g.trip == 0 || took < g.trip:
		g.trip = took
	default:
		g.trip += (took - g.trip) / 8
	}
}

// pipeline sends the commands; the first ones belong to the calls. If a server refuses
// the connection, because of its password for example, go-redis takes that for the reply
// to one command and leaves the others without an error, which pipeline then sets.
func pipeline(ctx context.Context, client redis.UniversalClient, calls []*call, cmds ...redis.Cmder) {
	pipe := client.Pipeline()
	_ = pipe.BatchProcess(ctx, cmds...)
	_, err := pipe.Exec(ctx)
	for _, c := range calls {
		if err != nil && c.cmd.Err() == nil && c.cmd.Val() == nil {
			c.cmd.SetErr(err)
		}
	}
}

// isMoved reports whether the server surely did not execute a command, because the
// slot or the server itself has moved.
func isMoved(err error) bool {
	return redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") || errors.Is(err, redis.ErrClosed)
}

// connectTime is the least time of a pipeline, even if its callers leave sooner: a
// distant server needs it for dial, TLS, handshake and the first load of a script.
const connectTime = 2 * time.Second

// detach returns the context of a pipeline. It has the values of a lone caller's context
// and outlasts those of all callers. When a context ends, go-redis closes the connection,
// finished or not, and the next caller would have to start over.
//
// An inline call ends with its own context.
func detach(calls []*call) (context.Context, context.CancelFunc) {
	if calls[0].inline {
		return calls[0].ctx, func() {}
	}
	ctx, last := context.Background(), time.Now().Add(connectTime)
	if len(calls) == 1 {
		ctx = context.WithoutCancel(calls[0].ctx)
	}
	for _, c := range calls {
		at, ok := c.ctx.Deadline()
		if !ok {
			return ctx, func() {}
		}
		if after := at.Add(connectTime / 20); after.After(last) {
			last = after
		}
	}
	return context.WithDeadline(ctx, last)
}

// perRepeat is how many calls earn one repetition, which is one of these calls itself. So
// a failing server gets at most a tenth more commands, after the first few.
const (
	perRepeat = 11
	mostSaved = 3 * perRepeat
)

// mayRepeat reports whether a call may be repeated.
func (g *group) mayRepeat() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.earned < perRepeat {
		return false
	}
	g.earned -= perRepeat
	return true
}
