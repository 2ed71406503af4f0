package redisstore

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A group is the calls to one server, which share pipelines (a group commit):
//
//   - a call that finds fewer than lanes pipelines under way leaves at once and by
//     itself: nobody waits for company;
//   - who comes while all are under way leaves with all others who did so, on the
//     first that comes back, or on one more if none does for a while: a connection
//     that hangs, or a distant server, keeps nobody for long;
//   - a pipeline goes on when its callers have left, so that its connection is made
//     and its scripts are known for those who come later.
type group struct {
	client    redis.UniversalClient
	clock     *serverClock
	ack       ack
	elsewhere *group // takes what this server does not serve any more; it follows redirections
	lanes     int
	punctual  bool         // go-redis ends a call by its context's deadline
	looked    atomic.Bool  // at what to warn of
	vain      atomic.Int32 // repetitions since the last answer that had none: see afford

	mu      sync.Mutex // guards what follows; nothing else is locked under it
	queue   []*call
	flying  int           // pipelines under way
	hurry   bool          // one more is to leave soon
	trip    time.Duration // the least that one took of late; 0 = the last was not answered
	retries float64       // that may still be made: see afford
	kept    float64       // of these, at most: what the calls of a second earn
	calls   int           // since second began
	second  time.Time
}

const (
	lanes    = 4                     // pipelines to one server: few are long, several survive one that hangs
	maxLanes = 20                    // with those that left because none came back
	alone    = math.MaxInt           // every call leaves by itself
	longest  = 256                   // calls of one pipeline, so that the first need not wait for thousands
	tooLong  = 20 * time.Millisecond // for a call to wait; a server that takes longer is distant
)

// submit sends c now, or queues it. A caller who cannot leave makes the call itself, if
// the server is near: two switches of goroutines take as long as the network.
func (g *group) submit(c *call) {
	g.mu.Lock()
	if !c.again {
		g.earn(time.Now())
	}
	if g.flying >= g.lanes {
		if len(g.queue) == cap(g.queue) { // make room: who has left needs none
			g.queue = slices.DeleteFunc(g.queue, (*call).dropped)
		}
		g.queue = append(g.queue, c)
		g.hasten()
		g.mu.Unlock()
		return
	}
	g.flying++
	c.own = g.punctual && 0 < g.trip && g.trip < tooLong && c.timed()
	g.mu.Unlock()
	if c.own {
		g.fly([]*call{c})
	} else {
		go g.fly([]*call{c})
	}
}

// hasten lets those who wait leave before a pipeline comes back. The caller holds g.mu.
func (g *group) hasten() {
	if len(g.queue) == 0 || g.flying >= maxLanes || g.hurry {
		return
	}
	g.hurry = true
	wait := tooLong
	if g.trip > tooLong {
		wait /= 4
	}
	time.AfterFunc(wait, func() {
		g.mu.Lock()
		g.hurry = false
		g.flying++
		g.mu.Unlock()
		g.fly(g.next())
	})
}

// next fills a pipeline with those who wait. If there are none it is not under way any more.
func (g *group) next() []*call {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := min(len(g.queue), longest)
	batch := slices.DeleteFunc(slices.Clone(g.queue[:n]), (*call).dropped)
	g.queue = slices.Delete(g.queue, 0, n)
	if len(batch) == 0 {
		g.flying--
	}
	g.hasten()
	return batch
}

// fly serves the calls, and who waits when it comes back. The callers see a panic of
// a hook of go-redis.
func (g *group) fly(batch []*call) {
	defer func() {
		if len(batch) > 0 { // a panic, or the goroutine's end
			panicked := recover()
			for _, c := range batch {
				c.panic, c.err = panicked, errCrashed
				c.settle()
			}
			go g.fly(g.next())
		}
	}()
	for len(batch) > 0 {
		own := batch[0].own
		g.send(batch, false)
		// A script is sent to a server that does not know it, and never ahead: a restart
		// or a failover would lose it.
		if batch = g.settle(batch); len(batch) > 0 {
			g.send(batch, true)
			for _, c := range g.settle(batch) {
				c.settle()
			}
		}
		if batch = g.next(); own && len(batch) > 0 {
			go g.fly(batch)
			batch = nil
		}
	}
}

// settle tells the callers, but for the calls that go on: to another server or, and
// these it returns, to this one, for it does not know their script.
func (g *group) settle(calls []*call) (missing []*call) {
	for _, c := range calls {
		switch {
		case redis.HasErrorPrefix(c.err, "NOSCRIPT"):
			c.unwritten()
			missing = append(missing, c)
		case g.elsewhere != nil && isElsewhere(c.err):
			c.unwritten()
			g.elsewhere.submit(c)
		default:
			c.settle()
		}
	}
	return missing
}

// send sends the calls and judges their outcomes. The first that needs a script brings
// its text, if the server lacks them; the others are behind it.
func (g *group) send(calls []*call, scripts bool) {
	began, now, told := time.Now(), g.clock.read(), map[*script]bool{}
	cmds := make([]redis.Cmder, len(calls))
	for i, c := range calls {
		c.stamp(scripts && !told[c.script], now)
		cmds[i], told[c.script] = c.cmd, true
	}
	ctx, cancel := detach(calls)
	defer cancel()
	switch {
	case g.ack.concerns(calls):
		g.ack.send(ctx, g.client, calls, cmds)
	case len(calls) == 1:
		_ = g.client.Process(ctx, cmds[0])
	default:
		pipeline(ctx, g.client, calls, cmds...)
	}
	at := int64(0)
	for _, c := range calls {
		at = max(at, c.judge())
	}
	g.measure(at, time.Since(began))
}

// measure notes what the server's clock said, 0 for nothing, and how long that took.
func (g *group) measure(at int64, took time.Duration) {
	if at != 0 {
		g.clock.heard(at)
		g.vain.Store(0)
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

// pipeline sends the commands, of which the first are the calls'. go-redis leaves them
// without an error or a reply when a server refuses the connection, for its password
// say: it takes that for the reply to one of them.
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

// isElsewhere reports whether the server surely did not execute a command, for
// the slot or the server itself has moved.
func isElsewhere(err error) bool {
	return redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") || errors.Is(err, redis.ErrClosed)
}

// connectTime is what a pipeline has at least, however soon its callers leave: for a
// distant server's dial, TLS, handshake and first load of a script.
const connectTime = 2 * time.Second

// detach returns the context of a pipeline. It has the values of a lone caller's and
// outlasts all of them: go-redis closes a connection, finished or not, whose context
// ends, and the next caller would have to begin again.
func detach(calls []*call) (context.Context, context.CancelFunc) {
	if calls[0].own {
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

// The retry budget of finagle (RetryBudget) and of "Site Reliability Engineering",
// chapter 21: each call earns a tenth of a repetition, so that who repeats does not
// keep a server down that has trouble enough. What the calls of a second earn is kept,
// so that a busy server may lose a pipeline and hear it again; a quiet time saves
// nothing up for an outage.
const (
	earned  = 0.1
	initial = 3
)

// earn pays for a call. The caller holds g.mu.
func (g *group) earn(now time.Time) {
	if passed := now.Sub(g.second); passed >= time.Second {
		g.kept = earned * float64(g.calls) / passed.Seconds()
		g.calls, g.second = 0, now
	}
	g.calls++
	g.retries = min(g.retries+earned, max(g.kept, initial))
}

// inVain is how many repetitions without a reply, and no call between them that had
// one, tell a server that does not answer from a connection that broke: from then on
// nothing is repeated there until it has answered something.
const inVain = 2

// afford spends one repetition, if there is one.
func (g *group) afford() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.retries < 1 || g.vain.Load() >= inVain {
		return false
	}
	g.retries--
	return true
}
