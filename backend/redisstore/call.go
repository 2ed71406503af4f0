package redisstore

import (
	"cmp"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/inflight"
	"github.com/go-reservoir/reservoir/internal/storeclock"
	"github.com/go-reservoir/reservoir/lua"
)

// script is one Lua script and how to call it.
type script struct {
	op, source, sha string
	reads           bool               // it writes nothing, so replicas may run it
	keys            int                // number of its keys
	fields          int                // number of integers in its reply
	handsOut        func([]int64) bool // whether replicas must have what it did, by its reply; nil = never
}

var (
	syncScript  = newScript("sync", lua.Sync, 3, 11, granted)
	checkScript = newScript("check", lua.Check, 3, 5, nil)
	resetScript = newScript("reset", lua.Reset, 3, 5, voids)

	// Those of rolling limits, whose one key holds all.
	rollScript      = newScript("sync", lua.Roll, 1, 12, granted)
	rollCheckScript = newScript("check", lua.RollCheck, 1, 7, nil)
	rollResetScript = newScript("reset", lua.RollReset, 1, 5, voids)
)

func granted(v []int64) bool { return len(v) > 6 && v[6] > 0 }

func voids([]int64) bool { return true }

func newScript(op, source string, keys, fields int, handsOut func([]int64) bool) *script {
	sum := sha1.Sum([]byte(source))
	return &script{op, source, hex.EncodeToString(sum[:]), op == "check", keys, fields, handsOut}
}

// replies reports whether a reply of the script may be so long. Sync leaves out zeros after the count, and if it did
// nothing, all but the time. That of a rolling limit ends with pairs, which say what it grants.
func (sc *script) replies(v []int64) bool {
	n := len(v)
	return n == sc.fields || sc.op == "sync" && (n >= 5 && n < sc.fields || n == 2 && v[0]&(flagLate|flagAstray|flagVoid) != 0) ||
		sc == rollScript && n > sc.fields && (n-sc.fields)%2 == 0
}

// command is a command that go-redis sends only once, alone or in a pipeline. By
// default go-redis repeats EVALSHA three times if its reply is lost.
type command struct{ *redis.IntSliceCmd }

// NoRetry makes Client, ClusterClient and pipelines of go-redis send the command once.
func (command) NoRetry() bool { return true }

// request is what a method of Store asks of the server.
type request struct {
	script     *script
	keys       int   // of the script's that it gets; 0 = all
	fault      error // for which it is not made
	key        string
	limit      backend.Limit
	args       []any
	spends     bool // tokens that were used already, so replicas must have that
	ledgerless bool // it does without the ledger, if there is none
	plain      bool // it reads, but by a command that could write
	detached   bool // only its deadline ends it; see backend.Statement
}

// call is one attempt at a request. Its pipeline owns it until complete reports the outcome
// to the caller, and to the end if the caller leaves.
type call struct {
	request
	ctx    context.Context
	line   []any             // the command
	reads  bool              // by a command that replicas may run
	clock  string            // time set by a test, Unix us; empty = the server's clock
	after  int64             // server time, Unix us, after which the script does nothing; 0 = no bound
	calls  *inflight.Counter // the store's
	inline bool              // the caller's own goroutine makes it
	state  atomic.Int32
	done   chan struct{}
	cmd    command
	reply  []int64
	err    error
}

// States of a call. It becomes written when go-redis begins to encode it. If it fails
// before that, or its caller leaves, the server surely does not carry it out: a call that
// is encoded after its caller has left does nothing.
const (
	waiting int32 = iota
	written
	abandoned
	answered
)

func (s *Store) newCall(ctx context.Context, r request) *call {
	keys, n := keysOf(s.prefix, r.key, r.limit.Counter()), cmp.Or(r.keys, r.script.keys)
	c := &call{request: r, ctx: ctx, reads: r.script.reads && !r.plain && !s.noRO.Load(), calls: &s.calls, done: make(chan struct{}, 1)}
	c.line = append(make([]any, 0, 3+len(keys)+len(r.args)+2), nil, nil, n)
	for _, k := range keys[:n] {
		c.line = append(c.line, k)
	}
	if now, test := storeclock.From(ctx); test {
		c.clock = strconv.FormatInt(now.UnixMicro(), 10)
	}
	if c.line = append(append(c.line, r.args...), instant{c}); !r.script.reads && c.clock != "" {
		c.line = append(c.line, c.clock)
	}
	return c
}

// tag is the first key, by which a cluster finds its node.
func (c *call) tag() string { return c.line[3].(string) }

// declare leaves the command only its first key.
func (c *call) declare() {
	n := c.line[2].(int)
	c.line = slices.Concat(c.line[:4], c.line[3+n:]) // anew, because a hook may keep the old one
	c.line[2] = 1
}

// instant is the script argument "not after"; of a script that reads, it is "now".
// go-redis calls MarshalBinary when it writes the command.
type instant struct{ c *call }

// MarshalBinary implements encoding.BinaryMarshaler.
func (i instant) MarshalBinary() ([]byte, error) {
	if !i.c.state.CompareAndSwap(waiting, written) && i.c.state.Load() == abandoned && !i.c.script.reads {
		return []byte("1"), nil // long ago
	}
	return []byte(i.String()), nil
}

// String is for hooks that print commands.
func (i instant) String() string {
	if i.c.script.reads {
		return i.c.clock
	}
	return strconv.FormatInt(i.c.after, 10)
}

// stamp makes the next command, with the script's text or only its hash.
func (c *call) stamp(text bool, ahead time.Duration) {
	if c.clock == "" {
		c.after = notAfter(c.ctx, ahead)
	}
	c.line[0], c.line[1] = "evalsha", c.script.sha
	if text {
		c.line[0], c.line[1] = "eval", c.script.source
	}
	if c.reads {
		c.line[0] = c.line[0].(string) + "_ro"
	}
	c.cmd = command{redis.NewIntSliceCmd(c.ctx, c.line...)}
}

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
	if c.clock != "" {
		return 0
	}
	return c.reply[1]
}

// expired reports whether the caller's own time is over.
func (c *call) expired() bool {
	at, ends := c.ctx.Deadline()
	return ends && !time.Now().Before(at)
}

// unwritten records that the server has surely not carried the call out.
func (c *call) unwritten() { c.state.CompareAndSwap(written, waiting) }

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
		c.done <- struct{}{} // never blocks: there is room for one
	}
	c.calls.End()
}

// await sends the call through g and returns when it has the outcome or the context
// ends. go-redis does not interrupt a read when a context ends.
func (c *call) await(g *group) ([]int64, error) {
	c.calls.Add()
	g.submit(c)
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

// do makes a call. If it surely was not carried out, do repeats it once. Nothing else repeats
// a call.
func (s *Store) do(ctx context.Context, r request) ([]int64, error) {
	if r.fault != nil {
		return nil, r.fault
	}
	if err := s.begin(r.script.op); err != nil {
		return nil, err
	}
	defer s.calls.End()
	if err := ctx.Err(); err != nil {
		return nil, &backend.Error{Op: r.script.op, Class: backend.Unavailable, Err: err}
	}
	if reply := s.read(ctx, r); reply != nil {
		return reply, nil
	}
	for first := true; ; first = false {
		c := s.newCall(ctx, r)
		g := s.group(ctx, c.tag())
		reply, err := c.await(g)
		if err == nil {
			s.known.Store(true)
			if r.plain {
				s.noRO.Store(true)
			}
			if reply[0]&flagMute != 0 {
				s.ears.cut(errMute)
			}
			return reply, nil
		}
		switch {
		case redis.HasErrorPrefix(err, "TRYAGAIN"): // the slot is moving, and not all keys are there
			s.known.Store(true)
			if r.ledgerless && r.keys == 0 {
				r.keys = 2
				continue
			}
		case c.reads && refusesRO(err):
			r.plain = true
			continue
		}
		failure := s.failure(r.script.op, err)
		if !first || failure.Class != backend.Unavailable || !g.mayRepeat() || !sleep(ctx, pause) {
			return nil, failure
		}
	}
}

// read sends a check to one of the replicas, if there are any, for at most half of the caller's time:
// a replica that hangs leaves time for the primary. It returns nil without a reply.
func (s *Store) read(ctx context.Context, r request) []int64 {
	if len(s.readers) == 0 || !r.script.reads {
		return nil
	}
	half := time.Second
	if deadline, ok := ctx.Deadline(); ok {
		half = time.Until(deadline) / 2
	}
	ctx, cancel := context.WithTimeout(ctx, half)
	defer cancel()
	reply, err := s.newCall(ctx, r).await(s.readers[mathrand.IntN(len(s.readers))])
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

// refusesRO reports whether a server, or a proxy before it, does not know EVALSHA_RO or EVAL_RO, does not allow it, or
// takes TIME for a write, as miniredis does.
func refusesRO(err error) bool {
	return redis.HasErrorPrefix(err, "unknown command") || redis.HasErrorPrefix(err, "NOPERM") && strings.Contains(err.Error(), "_ro'") ||
		isReply(err) && strings.Contains(err.Error(), "not allowed in read-only scripts")
}
