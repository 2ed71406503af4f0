package redisstore

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/inflight"
)

// call is a call of a script. A pipeline owns it until complete reports the outcome to the caller, and to the end
// if the caller leaves. Its arguments lie in it, so that a call is one allocation.
type call struct {
	script     *script
	ctx        context.Context
	calls      *inflight.Counter // the store's
	spends     bool              // tokens that were used already, so replicas must have that
	ledgerless bool              // it does without the ledger, if there is none
	detached   bool              // only its deadline ends it; see backend.Statement
	onReplica  bool              // by a command that replicas may run
	clock      word              // time set by a test, Unix us; empty = the server's clock

	all   []any  // the command with all keys, without what declare appends
	line  []any  // the command
	after []byte // server time, Unix us, after which the script does nothing; 0 = no bound
	cmd   command
	state atomic.Int32
	done  chan struct{} // nil = the caller's own goroutine makes the call
	reply []int64
	err   error

	list  [3 + mostWords + 2]any
	words [mostWords]word
	text  []byte    // the words, one after the other
	room  [200]byte // of text; what has no room in it lies elsewhere
	time  [20]byte  // of after
}

// mostWords is how many keys and arguments the longest statement has, which is one by the calendar that holds it.
const mostWords = 3 + 19

// States of a call. It becomes written when go-redis begins to encode it. If it fails
// before that, or its caller leaves, the server surely does not carry it out: a call that
// is encoded after its caller has left does nothing.
const (
	waiting int32 = iota
	written
	abandoned
	answered
)

var (
	errOutOfRange = errors.New("a reply with a number out of range")
	errCrashed    = errors.New("a hook of the client ended the call")
)

// judge reads the command's outcome. lack is an error if too few replicas have acknowledged
// what the pipeline did. It returns the server's time, Unix us, or 0.
func (c *call) judge(lack error) (now int64) {
	c.reply, c.err = c.cmd.Result()
	switch {
	case c.err != nil:
		c.err = redact(c.err)
		if network, ok := errors.AsType[net.Error](c.err); ok && network.Timeout() && c.expired() {
			c.err = context.DeadlineExceeded // the socket's timeout comes a moment earlier, as another error
		}
		if c.state.Load() == waiting {
			c.err = unsent{c.err}
		}
		return 0
	case !c.script.replies(c.reply):
		c.err = fmt.Errorf("a reply of %d integers, want %d", len(c.reply), c.script.fields)
		return 0
	case slices.Min(c.reply) < 0 || slices.Max(c.reply) > backend.MaxTokens:
		c.err = errOutOfRange
		return 0
	case c.reply[0]&flagLate != 0:
		c.err = errLate
		if c.expired() {
			c.err = errExpired
		}
	case lack != nil && c.script.handsOut != nil && (c.spends || c.script.handsOut(c.reply)):
		c.err = lack
	}
	if c.clock != nil {
		return 0
	}
	return c.reply[1]
}

// expired reports whether the caller's own time is over.
func (c *call) expired() bool {
	at, ends := c.ctx.Deadline()
	return ends && !time.Now().Before(at)
}

// dropped completes the call if its caller has left, and reports whether it has.
func (c *call) dropped() bool {
	if c.state.Load() != abandoned {
		return false
	}
	c.err = context.Canceled
	c.complete()
	return true
}

// complete reports the outcome to the caller, once.
func (c *call) complete() {
	switch c.state.Swap(answered) {
	case answered:
		return
	case waiting, written:
		if c.done != nil {
			c.done <- struct{}{} // never blocks: there is room for one
		}
	}
	c.calls.End()
}

// await sends the call, with so many of its keys, through g and returns when it has the outcome or the context
// ends. go-redis does not interrupt a read when a context ends.
func (c *call) await(g *group, keys int) ([]int64, error) {
	c.calls.Add()
	c.declare(keys)
	c.state.Store(waiting)
	if g.submit(c) {
		g.run([]*call{c})
	}
	if c.done == nil {
		return c.reply, c.err
	}
	select {
	case <-c.done:
	case <-c.ctx.Done():
		if c.state.CompareAndSwap(waiting, abandoned) {
			return nil, unsent{c.ctx.Err()}
		}
		if c.state.CompareAndSwap(written, abandoned) {
			return nil, c.ctx.Err()
		}
		<-c.done
	}
	return c.reply, c.err
}

// pause is about how long the store waits before it repeats a call.
const pause = 10 * time.Millisecond

// do makes a call. If it surely was not carried out, do repeats it once. Nothing else repeats a call.
func (s *Store) do(c *call) ([]int64, error) {
	if err := s.begin(c.script.op); err != nil {
		return nil, err
	}
	defer s.calls.End()
	if err := c.ctx.Err(); err != nil {
		return nil, &backend.Error{Op: c.script.op, Class: backend.Unavailable, Err: err}
	}
	if reply := s.read(c); reply != nil {
		return reply, nil
	}
	keys := c.script.keys
	for first := true; ; first = false {
		g := s.whole
		if s.cluster != nil {
			g = s.group(c.ctx, c.tag())
		}
		reply, err := c.await(g, keys)
		if err == nil {
			s.known.Store(true)
			if reply[0]&flagMute != 0 {
				s.ears.cut(errMute)
			}
			return reply, nil
		}
		if redis.HasErrorPrefix(err, "TRYAGAIN") { // the slot is moving, and not all keys are there
			s.known.Store(true)
			if c.ledgerless && keys == 3 {
				keys = 2
				continue
			}
		}
		failure := s.failure(c.script.op, blame(c.ctx, g.client, err))
		if !first || failure.Class != backend.Unavailable || !g.mayRepeat() || !sleep(c.ctx, pause) {
			return nil, failure
		}
	}
}

// read sends a check to one of the replicas, if there are any, for at most half of the caller's time:
// a replica that hangs leaves time for the primary. It returns nil without a reply.
func (s *Store) read(c *call) []int64 {
	if len(s.readers) == 0 || !c.script.reads {
		return nil
	}
	half := time.Second
	if deadline, ok := c.ctx.Deadline(); ok {
		half = time.Until(deadline) / 2
	}
	ctx, cancel := context.WithTimeout(c.ctx, half)
	defer cancel()
	twin := &call{script: c.script, ctx: ctx, calls: c.calls, onReplica: true, clock: c.clock, all: slices.Clone(c.all)}
	reply, err := twin.await(s.readers[mathrand.IntN(len(s.readers))], c.script.keys)
	if err != nil {
		return nil
	}
	return reply
}

// sleep waits for about d and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d/2 + mathrand.N(d)):
		return true
	case <-ctx.Done():
		return false
	}
}
