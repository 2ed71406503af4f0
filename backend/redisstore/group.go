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
//   - A call that finds few pipelines in flight is sent at once, alone, if possible in its caller's goroutine.
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
	inFlight int  // pipelines in flight
	returned int  // pipelines that have ended
	extraDue bool // a timer will look whether none returns
	near     bool // the last pipeline had a reply, and soon
	earned   int  // calls that may still earn a repetition: see mayRepeat
}

const (
	pipelines    = 4                     // in flight to one server: few, so they are long, but several, in case one hangs
	maxPipelines = 20                    // including those that left because none returned
	unbounded    = math.MaxInt           // pipelines of a group in which each call is sent alone
	longest      = 256                   // calls of one pipeline, so that the first does not wait for thousands
	patience     = 5 * time.Millisecond  // in which one of the pipelines should return
	tooLong      = 20 * time.Millisecond // for a round trip to a server that is near
)

// submit queues c, or sends it now. It returns true if the caller is to make the pipeline itself, because the call
// is detached and the server near: two goroutine switches take as long as the network.
func (g *group) submit(c *call) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.earned = min(g.earned+1, mostSaved)
	free := g.inFlight < g.pipelines
	if free {
		g.inFlight++
	}
	switch {
	case free && c.detached && c.done == nil && g.obeysDeadline && g.near:
		return true
	case c.done == nil:
		c.done = make(chan struct{}, 1)
	}
	if free {
		go g.run([]*call{c})
		return false
	}
	if len(g.queue) == cap(g.queue) { // make room by dropping calls whose callers have left
		g.queue = slices.DeleteFunc(g.queue, (*call).dropped)
	}
	g.queue = append(g.queue, c)
	g.armExtra()
	return false
}

// armExtra sets a timer that sends queued calls in an extra pipeline, if none returns
// before that. The caller holds g.mu.
func (g *group) armExtra() {
	if len(g.queue) == 0 || g.inFlight >= maxPipelines || g.extraDue {
		return
	}
	g.extraDue = true
	seen := g.returned
	time.AfterFunc(patience, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.extraDue = false; g.returned == seen {
			g.inFlight++
			g.proceed()
		} else {
			g.armExtra()
		}
	})
}

// proceed begins a pipeline with the queued calls in place of one that has ended, if there are any. The caller holds
// g.mu.
func (g *group) proceed() {
	g.queue = slices.DeleteFunc(g.queue, (*call).dropped)
	n := min(len(g.queue), longest)
	if n > 0 {
		go g.run(slices.Clone(g.queue[:n]))
	} else {
		g.inFlight--
	}
	g.queue = slices.Delete(g.queue, 0, n)
	g.armExtra()
}

// run sends the calls of a pipeline. A panic of a go-redis hook is not caught. In the goroutine of a caller it may
// be, so run leaves nothing in flight.
func (g *group) run(batch []*call) {
	defer func() {
		for _, c := range batch { // left by a panic, or runtime.Goexit
			c.err = errCrashed
			c.complete()
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.returned++
		g.proceed()
	}()
	// A script's text is sent only to a server that lacks it. Loading it in advance
	// would not be enough, because a restart or a failover loses it.
	for text := false; len(batch) > 0; text = true {
		g.send(batch, text)
		batch = g.complete(batch, text)
	}
}

// complete reports the outcomes to the callers. Calls that the server no longer serves go
// to another group instead. Calls whose script the server lacks are returned, unless its text was sent.
func (g *group) complete(calls []*call, text bool) (missing []*call) {
	for _, c := range calls {
		lacks := !text && c.err != nil && redis.HasErrorPrefix(c.err, "NOSCRIPT")
		moved := g.redirects != nil && c.err != nil && isMoved(c.err)
		if lacks || moved {
			c.state.CompareAndSwap(written, waiting) // the server has surely not carried it out
		}
		switch {
		case lacks:
			missing = append(missing, c)
		case moved:
			if redis.HasErrorPrefix(c.err, "ASK") { // no key of the counter is here, and there a command may have one new key at most
				c.declare(1)
			}
			g.redirects.submit(c) // which never leaves it to this goroutine
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
	for _, c := range calls {
		c.stamp(scripts && !loaded[c.script], ahead)
		loaded[c.script] = true
	}
	ctx, cancel := outlast(calls)
	defer cancel()
	var lack error
	switch {
	case g.ack.concerns(calls):
		lack = g.ack.send(ctx, g.client, calls)
	case len(calls) == 1:
		_ = g.client.Process(ctx, calls[0].cmd)
	default:
		pipeline(ctx, g.client, calls)
	}
	at := int64(0) // the server's time
	for _, c := range calls {
		at = max(at, c.judge(lack))
	}
	if at != 0 {
		g.clock.observe(at)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.near = at != 0 && time.Since(began) < tooLong
}

// pipeline sends the calls, and more commands after them. If a server refuses
// the connection, because of its password for example, go-redis takes that for the reply
// to one command and leaves the others without an error, which pipeline then sets.
func pipeline(ctx context.Context, client redis.UniversalClient, calls []*call, more ...redis.Cmder) {
	pipe := client.Pipeline()
	for _, c := range calls {
		_ = pipe.Process(ctx, c.cmd)
	}
	_ = pipe.BatchProcess(ctx, more...)
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

// connectTime is how long a pipeline may go on after its callers have left: a
// distant server needs it for dial, TLS, handshake and the first load of a script.
const connectTime = 2 * time.Second

// outlast returns the context of a pipeline, which outlasts those of all callers: when a context ends, go-redis
// closes the connection, finished or not, and the next caller would have to start over. It has the values of the
// first, for hooks. A call in the goroutine of its caller ends with its own context.
func outlast(calls []*call) (context.Context, context.CancelFunc) {
	first, last := calls[0], time.Now()
	if first.done == nil {
		return first.ctx, func() {}
	}
	ctx := context.WithoutCancel(first.ctx)
	for _, c := range calls {
		at, ok := c.ctx.Deadline()
		if !ok {
			return ctx, func() {}
		}
		if at.After(last) {
			last = at
		}
	}
	return context.WithDeadline(ctx, last.Add(connectTime))
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
