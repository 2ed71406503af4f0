package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/deadline"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// command is a command that go-redis sends once. By default it sends EVALSHA
// again, three times, when a reply is lost; retries are decided here, by what
// may be repeated. A pipeline that holds one is not sent again either.
type command struct{ *redis.IntSliceCmd }

// NoRetry is read by go-redis on Client, ClusterClient and in pipelines.
func (command) NoRetry() bool { return true }

// call is a request on its way: the arguments, its place in a group, the answer.
// All attempts at the request use the same one, each with a new command.
//
// The caller owns it while it makes it and once it has heard of an answer; in
// between, and for good when the caller leaves, the group does.
type call struct {
	script *script
	ctx    context.Context // the caller's
	ends   bool            // the context has a deadline or can be cancelled
	inline bool            // it may keep the caller's own goroutine until it is answered
	undo   *undo           // of a charge that comes when the caller has left; nil = nothing to do
	tag    string          // the first key, by which a cluster finds its node

	attempt int // at the call, from 0; the caller's alone, written while no group has the call

	// args holds pointers into nums, to be written without boxing each number.
	args  [maxArgs]any
	nargs int
	nums  [maxNums]int64
	nnums int
	test  bool   // a test's clock is in args
	after *int64 // the latest instant at which it may run, in nums; nil = it takes none

	state  atomic.Int32 // waiting, answered or left
	done   chan struct{}
	cmd    command
	loads  uint32 // of the script, as counted when cmd left
	reply  []int64
	err    error
	panic  any                    // of a hook of go-redis, which the caller is to see
	flight atomic.Pointer[flight] // the last that it boarded

	queued     bool // with next and prev guarded by the mutex of its group
	next, prev *call
}

const (
	maxArgs = 3 + 3 + 19 // sync: command, script, number of keys; keys; arguments
	maxNums = 17
)

// Who is first decides what becomes of an answer: the flight that brings it, or
// the caller whose context has ended.
const (
	waiting = iota
	answered
	left
)

// errUnsent is the outcome of a call whose caller left while it was still queued.
var errUnsent = errors.New("the call was not sent")

// dones are channels of calls that were answered, empty again.
var dones = sync.Pool{New: func() any { return make(chan struct{}, 1) }}

// newCall makes a call with its keys; text and numbers add the arguments.
func newCall(ctx context.Context, sc *script, prefix, key string) *call {
	keys := keysOf(prefix, key)
	c := &call{script: sc, ctx: ctx, tag: keys[0], nargs: 3}
	c.args[2] = sc.keys
	for _, k := range keys[:sc.keys] {
		c.text(k)
	}
	return c
}

func (c *call) text(s string) {
	c.args[c.nargs] = s
	c.nargs++
}

func (c *call) numbers(list ...int64) {
	for _, n := range list {
		c.nums[c.nnums] = n
		c.args[c.nargs] = &c.nums[c.nnums]
		c.nnums, c.nargs = c.nnums+1, c.nargs+1
	}
}

// finish adds what every script ends with: the instant after which it must not
// run, for a flight to fill in, and a test's clock instead of the server's.
func (c *call) finish() {
	if c.script.dated {
		c.after = &c.nums[c.nnums]
		c.numbers(0)
	}
	now, test := storeclock.From(c.ctx)
	if c.test = test; test {
		c.text(fmt.Sprint(now.UnixMicro()))
	} else {
		c.text("")
	}
}

// bound looks at how the call's context can end. One that nobody can cancel and
// that go-redis will not outlast needs no second goroutine to watch it, which
// costs a lone call more than all else on the client's side. The function that
// is returned frees what was needed for that.
func (c *call) bound(prompt bool) context.CancelFunc {
	c.ends = true
	if _, ok := c.ctx.(*deadline.Context); ok { // it has a Done, but only time ends it
		c.inline = prompt
		return func() {}
	}
	if c.ctx.Done() != nil {
		return func() {}
	}
	deadline, ok := c.ctx.Deadline()
	c.ends, c.inline = ok, !ok || prompt
	if !ok {
		return func() {}
	}
	ctx, cancel := context.WithDeadline(c.ctx, deadline)
	c.ctx = ctx
	return cancel
}

// ready makes the call fit for a new attempt.
func (c *call) ready() {
	c.reply, c.err, c.panic = nil, nil, nil
	c.flight.Store(nil)
	c.state.Store(waiting)
	c.done = dones.Get().(chan struct{})
}

// stamp makes the command that is sent next: by the script's hash, or by its
// text. The end of a context is no instant of a test's clock. For a caller that has
// left it does nothing but make the server know the script.
func (c *call) stamp(r reading, whole bool) {
	switch {
	case c.after == nil:
	case c.state.Load() == left:
		*c.after = longAgo
	case !c.test:
		*c.after = r.limit(c.ctx)
	}
	if whole {
		c.args[0], c.args[1] = c.script.bySrc, c.script.source
	} else {
		c.args[0], c.args[1] = c.script.bySHA, c.script.sha
	}
	c.cmd = command{redis.NewIntSliceCmd(c.ctx, c.args[:c.nargs]...)}
}

// judge reads the command's outcome, which has the form of a reply or is an
// error. It returns the server's time, Unix us, if the reply tells it, else 0.
func (c *call) judge() (now int64) {
	c.reply, c.err = c.cmd.Result()
	switch {
	case c.err != nil:
		c.err = explain(c.err)
		return 0
	case !c.script.replies(len(c.reply)):
		c.err = fmt.Errorf("a reply of %d integers, want %d", len(c.reply), c.script.fields)
		return 0
	}
	if !sane(c.reply) {
		c.err = errInsane
		return 0
	}
	if c.reply[0]&flagLate != 0 {
		c.err = errLate
	}
	if c.test {
		return 0
	}
	return c.reply[1]
}

var errInsane = errors.New("a reply with a number out of range")

// sane reports whether the numbers can be those of a script: it counts in doubles
// and writes nothing below zero.
func sane(reply []int64) bool {
	for _, n := range reply {
		if n < 0 || n > backend.MaxTokens {
			return false
		}
	}
	return true
}

// settle tells the caller that the answer is there. If the caller has left, a
// charge that came too late is undone, and nobody waits for that.
func (c *call) settle() {
	if c.state.CompareAndSwap(waiting, answered) {
		c.done <- struct{}{} // never blocks: there is room for one
		return
	}
	if c.err == nil && c.undo != nil && c.reply[0]&flagAllowed != 0 {
		w := backend.Window(c.reply[2])
		quietly(func() { c.undo.refund(w) })
	}
}

// await sends the call through g and returns with its answer or when its context
// ends, whichever is first: go-redis does not interrupt a read for a context.
func (c *call) await(g *group) ([]int64, error) {
	c.ready()
	g.submit(c)
	select {
	case <-c.done: // it was inline; to ask for Done may cost a timer
	default:
		select {
		case <-c.done:
		case <-c.ctx.Done():
			if c.state.CompareAndSwap(waiting, left) {
				return nil, g.leave(c)
			}
			<-c.done // the answer came first after all
		}
	}
	dones.Put(c.done)
	if c.panic != nil {
		panic(c.panic)
	}
	if c.err != nil {
		return nil, c.timely()
	}
	return c.reply, nil
}

// timely is the call's error as its caller should see it. A socket that has the
// context's deadline reports it a moment before the context's own timer does.
func (c *call) timely() error {
	at, ok := c.ctx.Deadline()
	network, timeout := errors.AsType[net.Error](c.err)
	switch {
	case !timeout || !network.Timeout() || !ok || time.Now().Before(at):
		return c.err
	case isDial(c.err):
		return unsent{context.DeadlineExceeded}
	}
	return context.DeadlineExceeded
}

// undo gives back what a Take was charged.
type undo struct {
	store  *Store
	key    string
	tokens int64
}

func (u *undo) refund(w backend.Window) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = u.store.Refund(ctx, backend.RefundRequest{Key: u.key, Window: w, Client: "undo:" + rand.Text(), Total: u.tokens})
}

// longAgo is an instant, Unix us, that every server's clock has passed.
const longAgo = 1

// latest is the deadline of the most patient caller, and whether there is one.
func latest(calls []*call) (last time.Time, ok bool) {
	for _, c := range calls {
		deadline, ok := c.ctx.Deadline()
		if !ok {
			return time.Time{}, false
		}
		if deadline.After(last) {
			last = deadline
		}
	}
	return last, true
}

// connectTime is what a flight has at least, however soon its callers leave: for a
// distant server's dial, TLS, handshake and first load of a script.
const connectTime = 2 * time.Second

// detached is the context of a flight. It has the values of a lone caller's, lasts
// as long as the most patient caller's and at least connectTime, and cannot be
// cancelled: go-redis closes a connection, finished or not, whose context ends,
// and the next caller would have to begin again.
type detached struct {
	context.Context
	until time.Time
}

// detach returns the context of a flight with these calls.
func detach(calls []*call) context.Context {
	values := context.Background()
	if len(calls) == 1 {
		values = calls[0].ctx
	}
	last, ok := latest(calls)
	if !ok {
		return context.WithoutCancel(values)
	}
	if least := time.Now().Add(connectTime); last.Before(least) {
		last = least
	}
	return &detached{values, last}
}

func (d *detached) Deadline() (time.Time, bool) { return d.until, true }

func (*detached) Done() <-chan struct{} { return nil }

func (*detached) Err() error { return nil }
