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
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/guard"
	"github.com/go-reservoir/reservoir/internal/inflight"
	"github.com/go-reservoir/reservoir/internal/storeclock"
	"github.com/go-reservoir/reservoir/lua"
)

// script is one Lua script and how to call it.
type script struct {
	op, source, sha string
	readOnly        string             // the suffix of EVALSHA and EVAL for replicas, or ""
	keys, least     int                // number of its keys, and of those that it needs while a slot moves
	fields          int                // number of integers in its reply
	rolling         bool               // its keys are those of a rolling limit
	handsOut        func([]int64) bool // whether replicas must have what it did, by its reply; nil = never
}

var (
	syncScript = newScript("sync", lua.Sync, "", 3, 3, 17, func(v []int64) bool {
		return v[5] > 0 || len(v) > firstContact && v[9] > 0 // debt is spent already
	})
	takeScript   = newScript("take", lua.Take, "", 3, 2, 5, allowed) // without the ledger, if need be
	checkScript  = newScript("check", lua.Check, "_ro", 2, 2, 5, nil)
	settleScript = newScript("settle", lua.Settle, "", 3, 3, 3, nil)
	resetScript  = newScript("reset", lua.Reset, "", 3, 3, 5, opened)

	// The calls of a rolling limit are one script. It can do without the count of a plain one.
	syncRolling   = newScript("sync", lua.Rolling, "", 2, 1, rolled+12, func(v []int64) bool { return v[rolled] > 0 || v[rolled+4] > 0 })
	takeRolling   = newScript("take", lua.Rolling, "", 2, 1, rolled, allowed)
	checkRolling  = newScript("check", lua.Rolling, "_ro", 2, 1, rolled, nil)
	settleRolling = newScript("settle", lua.Rolling, "", 2, 1, rolled, nil)
	resetRolling  = newScript("reset", lua.Rolling, "", 2, 1, rolled, opened)
)

func allowed(v []int64) bool { return v[0]&flagAllowed != 0 }

func opened(v []int64) bool { return v[2] != 0 && v[0]&flagConflict == 0 }

func newScript(op, source, suffix string, keys, least, fields int, handsOut func([]int64) bool) *script {
	sum := sha1.Sum([]byte(source))
	return &script{op, source, hex.EncodeToString(sum[:]), suffix, keys, least, fields, source == lua.Rolling, handsOut}
}

// firstContact is the number of integers in sync's reply to a client that named no
// window and opened one. The last of them is its grant.
const firstContact = 6

// reads reports whether replicas may run the script.
func (sc *script) reads() bool { return sc.readOnly != "" }

// replies reports whether a reply of the script may have n integers.
func (sc *script) replies(n int) bool {
	return n == sc.fields || n == firstContact && sc == syncScript
}

// command is a command that go-redis sends only once, alone or in a pipeline. By
// default go-redis repeats EVALSHA three times if its reply is lost.
type command struct{ *redis.IntSliceCmd }

// NoRetry makes Client, ClusterClient and pipelines of go-redis send the command once.
func (command) NoRetry() bool { return true }

// request is what a method of Store asks of the server.
type request struct {
	script   *script
	keys     int   // of the script's that it gets; 0 = all
	fault    error // for which it is not made
	key      string
	args     []any
	detached bool // only its deadline ends it; see backend.SyncRequest
}

// call is one attempt at a request. Its pipeline owns it until complete reports the outcome
// to the caller, and to the end if the caller leaves.
type call struct {
	request
	ctx    context.Context
	tag    string            // the first key, by which a cluster finds its node
	line   []any             // the command
	clock  string            // time set by a test, Unix us; empty = the server's clock
	after  int64             // server time, Unix us, after which the script does nothing; 0 = no bound
	calls  *inflight.Counter // the store's
	inline bool              // the caller's own goroutine makes it
	state  atomic.Int32
	done   chan struct{}
	cmd    command
	reply  []int64
	err    error // or a panic of a go-redis hook, which is raised again in the caller
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
	keys, n := keysOf(s.prefix, r.key), cmp.Or(r.keys, r.script.keys)
	if r.script.rolling {
		keys = ringOf(s.prefix, r.key)
	}
	c := &call{request: r, ctx: ctx, tag: keys[0], calls: &s.calls, done: make(chan struct{}, 1)}
	c.line = append(make([]any, 0, 3+len(keys)+len(r.args)+2), nil, nil, n)
	for _, k := range keys[:n] {
		c.line = append(c.line, k)
	}
	if now, test := storeclock.From(ctx); test {
		c.clock = strconv.FormatInt(now.UnixMicro(), 10)
	}
	if c.line = append(append(c.line, r.args...), instant{c}); !r.script.reads() {
		c.line = append(c.line, c.clock)
	}
	return c
}

// instant is the script argument "not after"; for check, which has none, it is "now".
// go-redis calls MarshalBinary when it writes the command.
type instant struct{ c *call }

// MarshalBinary implements encoding.BinaryMarshaler.
func (i instant) MarshalBinary() ([]byte, error) {
	if !i.c.state.CompareAndSwap(waiting, written) && i.c.state.Load() == abandoned && !i.c.script.reads() {
		return []byte("1"), nil // long ago
	}
	return []byte(i.String()), nil
}

// String is for hooks that print commands.
func (i instant) String() string {
	if i.c.script.reads() {
		return i.c.clock
	}
	return strconv.FormatInt(i.c.after, 10)
}

// stamp makes the next command, with the script's text or only its hash.
func (c *call) stamp(text bool, ahead time.Duration) {
	if c.clock == "" {
		c.after = notAfter(c.ctx, ahead)
	}
	c.line[0], c.line[1] = "evalsha"+c.script.readOnly, c.script.sha
	if text {
		c.line[0], c.line[1] = "eval"+c.script.readOnly, c.script.source
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
	case !c.script.replies(len(c.reply)):
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
	case lack != nil && c.script.handsOut != nil && c.script.handsOut(c.reply):
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

// complete reports the outcome to the caller, once, and returns whether the caller gets it.
func (c *call) complete() (heard bool) {
	switch c.state.Swap(answered) {
	case answered:
		return false
	case waiting, written:
		c.done <- struct{}{} // never blocks: there is room for one
		heard = true
	}
	c.calls.End()
	return heard
}

// late reports whether the caller wants the reply even if it comes after the deadline. The
// limiter gives back what a late take was charged, because nobody else could.
func (c *call) late() bool { return c.detached && c.script.op == "take" }

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
		if !c.late() && c.state.CompareAndSwap(written, abandoned) {
			return nil, c.ctx.Err()
		}
		<-c.done
	}
	return c.reply, guard.Raise(c.err)
}

// pause is about how long the store waits before it repeats a call.
const pause = 10 * time.Millisecond

// do makes a call. If it surely was not carried out, do repeats it once. Nothing else repeats
// a call: the limiter makes a statement again by itself.
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
		g := s.group(ctx, c.tag)
		reply, err := c.await(g)
		if err == nil {
			s.known.Store(true)
			if reply[0]&flagMute != 0 {
				s.ears.cut(errMute)
			}
			return reply, nil
		}
		if least := r.script.least; r.keys == 0 && least < r.script.keys && redis.HasErrorPrefix(err, "TRYAGAIN") { // the slot is moving, and not all keys are there
			r.keys = least
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
	if len(s.readers) == 0 || !r.script.reads() {
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
