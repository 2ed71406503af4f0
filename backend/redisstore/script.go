package redisstore

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/storeclock"
	"github.com/go-reservoir/reservoir/lua"
)

// script is one Lua script and how to call it.
type script struct {
	op      string // as errors name it
	source  string
	sha     string
	bySHA   string // EVALSHA, or the form that replicas take
	bySrc   string
	fields  int           // integers in a full reply
	dated   bool          // takes an instant after which it does nothing
	repeats backend.Class // up to which class of failure it may be sent again
}

// Whether a script may be repeated after a failure is decided here alone. Sync is
// idempotent and check changes nothing; take and refund are not, and go again
// only when they surely did not run.
var (
	syncScript   = newScript("sync", lua.Sync, "", 12, true)
	takeScript   = newScript("take", lua.Take, "", 5, false)
	checkScript  = newScript("check", lua.Check, "_ro", 5, true)
	refundScript = newScript("refund", lua.Refund, "", 3, false)
)

func newScript(op, source, suffix string, fields int, idempotent bool) *script {
	sum := sha1.Sum([]byte(source))
	s := &script{
		op: op, source: source, sha: hex.EncodeToString(sum[:]),
		bySHA: "evalsha" + suffix, bySrc: "eval" + suffix,
		fields: fields, dated: suffix == "", repeats: backend.Unavailable,
	}
	if idempotent {
		s.repeats = backend.Unknown
	}
	return s
}

// mayRepeat reports whether the script may be sent again after a failure of class c.
func (s *script) mayRepeat(c backend.Class) bool {
	return c == backend.Unavailable || c == backend.Unknown && s.repeats == backend.Unknown
}

// command is a command that go-redis sends once. By default it sends EVALSHA
// again, three times, when a reply is lost; retries are decided here, by what
// may be repeated.
type command struct{ *redis.Cmd }

// NoRetry is read by go-redis on Client, ClusterClient and in pipelines.
func (command) NoRetry() bool { return true }

func newCommand(ctx context.Context, name, script string, keys []string, args []any) command {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, name, script, len(keys))
	for _, k := range keys {
		all = append(all, k)
	}
	return command{redis.NewCmd(ctx, append(all, args...)...)}
}

// Attempts at one call, the first included, and the pause before the second;
// it doubles and is jittered. All of them share the caller's deadline.
const (
	attempts = 3
	pause    = 2 * time.Millisecond
)

// run calls the script until it has an answer, may not be repeated, or ctx ends.
// late is told the reply of a call that was given up before it came.
func (s *Store) run(ctx context.Context, sc *script, clients []redis.UniversalClient, keys []string, args []any, late func([]int64)) ([]int64, error) {
	if s.err != nil {
		return nil, &backend.Error{Op: sc.op, Class: backend.Rejected, Err: s.err}
	}
	if err := ctx.Err(); err != nil {
		return nil, &backend.Error{Op: sc.op, Class: backend.Unavailable, Err: err}
	}
	for i := 0; ; i++ {
		client := clients[min(i, len(clients)-1)]
		reply, err := s.try(ctx, sc, client, keys, s.dated(ctx, sc, args), late)
		if err == nil {
			return reply, nil
		}
		class := classify(err)
		if i+1 >= attempts || ctx.Err() != nil || !sc.mayRepeat(class) {
			return nil, &backend.Error{Op: sc.op, Class: class, Err: err}
		}
		reload(ctx, client)
		if !sleep(ctx, jitter(pause<<i)) {
			return nil, &backend.Error{Op: sc.op, Class: class, Err: err}
		}
	}
}

// dated ends args with the instants of one attempt: the one after which the
// script must not run, by what is known of the server's clock by now, and the
// clock of a test instead of the server's. They are the last of every script.
func (s *Store) dated(ctx context.Context, sc *script, args []any) []any {
	now, test := storeclock.From(ctx)
	if sc.dated {
		limit := int64(0)
		if !test { // the end of ctx is no instant of a test's clock
			limit = s.clock.limit(ctx)
		}
		args = append(args[:len(args):len(args)], limit)
	}
	if test {
		return append(args, now.UnixMicro())
	}
	return append(args, "")
}

// try calls the script once, by its hash and, if the server does not know it, by
// its text. A script is never loaded ahead: a restart or a failover would lose it.
func (s *Store) try(ctx context.Context, sc *script, client redis.UniversalClient, keys []string, args []any, late func([]int64)) ([]int64, error) {
	reply, err := s.send(ctx, sc, client, newCommand(ctx, sc.bySHA, sc.sha, keys, args), late)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		return s.send(ctx, sc, client, newCommand(ctx, sc.bySrc, sc.source, keys, args), late)
	}
	return reply, err
}

// send sends one command and returns when it is answered or ctx ends, whichever
// is first: go-redis does not interrupt a read for a context.
func (s *Store) send(ctx context.Context, sc *script, client redis.UniversalClient, cmd command, late func([]int64)) ([]int64, error) {
	if ctx.Done() == nil {
		_ = client.Process(ctx, cmd)
		return s.read(ctx, sc, cmd)
	}
	var settled atomic.Bool // by the reply or by the end of ctx
	done := make(chan struct{})
	go func() {
		_ = client.Process(ctx, cmd)
		if settled.CompareAndSwap(false, true) {
			close(done)
			return
		}
		if reply, err := s.read(ctx, sc, cmd); err == nil && late != nil {
			late(reply)
		}
	}()
	select {
	case <-done:
		return s.read(ctx, sc, cmd)
	case <-ctx.Done():
		if settled.CompareAndSwap(false, true) {
			return nil, ctx.Err()
		}
		<-done // the reply came first after all
		return s.read(ctx, sc, cmd)
	}
}

// read checks the form of a reply and learns the server's clock from it.
func (s *Store) read(ctx context.Context, sc *script, cmd command) ([]int64, error) {
	reply, err := cmd.Int64Slice()
	if err != nil {
		return nil, err
	}
	if len(reply) != sc.fields {
		return nil, fmt.Errorf("a reply of %d integers, want %d", len(reply), sc.fields)
	}
	if _, test := storeclock.From(ctx); !test {
		s.clock.heard(reply[1])
	}
	if reply[0]&flagLate != 0 {
		return nil, errLate
	}
	return reply, nil
}
